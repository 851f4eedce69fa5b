"""Every shape of answer that a server may give is read as the same thing, in one piece or as a stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.audit.servers.answers import Answer, Place, join, parse, parse_prompt
from surefoot.audit.servers.difference import find_offsets
from tests.scripted_server import VOCABULARY, Script, chunks, complete, spell, tokenize

BODY = {"prompt": "tell me about ba", "max_tokens": 30, "temperature": 1.0}
CHAT = {"messages": [{"role": "user", "content": BODY["prompt"]}], "max_tokens": 30, "temperature": 1.0}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def listed(answer: Answer) -> tuple[Place, ...]:
    assert answer.places is not None
    return answer.places


def test_completions_lists() -> None:
    lists = {
        "tokens": [" the", "bytes:\\xc3"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{" a": -2.0, " the": -0.5}, None],
        "text_offset": [0, 4],
    }
    answer = parse(
        {"choices": [{"text": " the", "finish_reason": "length", "logprobs": lists}], "usage": USAGE}
    )
    assert (answer.text, answer.finish, answer.prompt_tokens, answer.tokens) == (" the", "length", 3, 2)
    first, second = listed(answer)
    assert [choice.data for choice in first.top] == [b" the", b" a"]
    assert (second.token.data, second.token.logprob, second.top) == (b"\xc3", -1.0, ())


def test_chat_content_with_bytes_and_ids() -> None:
    entry = {"token": "�", "bytes": [0xC3], "logprob": -1.0, "id": 7}
    content = [entry | {"top_logprobs": [entry, {"token": "x", "bytes": None, "logprob": -2.0, "id": 8}]}]
    message = {"role": "assistant", "content": "�"}
    answer = parse(
        {"choices": [{"message": message, "finish_reason": "stop", "logprobs": {"content": content}}]}
    )
    [place] = listed(answer)
    assert (place.token.data, place.token.id, answer.ids, answer.tokens) == (b"\xc3", 7, (7,), None)
    assert [choice.data for choice in place.top] == [b"\xc3", b"x"]


@pytest.mark.parametrize("data", [None, list("�".encode())])
def test_a_character_that_was_lost_is_not_taken_for_its_mark(data: list[int] | None) -> None:
    content = [{"token": "�", "bytes": data, "logprob": -1.0}]
    [place] = listed(parse({"choices": [{"text": "", "logprobs": {"content": content}}]}))
    assert place.token.data is None


def test_token_ids_in_place_of_names() -> None:
    lists = {"tokens": ["token_id:5"], "token_logprobs": [-1.0], "top_logprobs": [{"token_id:5": -1.0}]}
    answer = parse({"choices": [{"text": "x", "logprobs": lists}]})
    assert (answer.ids, listed(answer)[0].top[0].id) == ((5,), 5)


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"tokens": []}])
def test_no_log_probabilities(logprobs: Any) -> None:
    answer = parse({"choices": [{"text": "x", "logprobs": logprobs}]})
    assert (answer.places, answer.ids, answer.emitted) == (None, None, None)


def test_an_empty_message() -> None:
    assert parse({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).text == ""


@pytest.mark.parametrize("inside", [True, False])
def test_prompt_log_probabilities(inside: bool) -> None:
    entries = [
        None,
        {"4": {"logprob": -2.0, "decoded_token": " a"}, "9": {"logprob": -0.1, "decoded_token": " b"}},
    ]
    payload: dict[str, Any] = {"choices": [{"text": ""}]}
    (payload["choices"][0] if inside else payload)["prompt_logprobs"] = entries
    first, second = parse_prompt(payload) or ()
    assert first is None
    assert second is not None
    assert (second.token.id, [choice.id for choice in second.top]) == (4, [9, 4])
    assert parse_prompt({"choices": [{"text": ""}]}) is None


@given(
    st.sampled_from(("lists", "content")), st.booleans(), st.integers(1, 7), st.integers(0, 50), st.booleans()
)
def test_a_stream_is_the_same_answer(shape: Any, chat: bool, size: int, times: int, names: bool) -> None:
    """Whatever the number of tokens in a chunk."""
    script = Script(shape=shape, ids=True, names_half="bytes" if names else "lost")
    asked = {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}
    body = (CHAT if chat else BODY) | asked | {"return_token_ids": True}
    whole = complete(script, body, times, chat=chat)
    assert parse(join(chunks(whole, size, chat=chat))) == parse(whole)


@given(st.integers(0, 200), st.sampled_from(("bytes", "lost")), st.sampled_from(("lists", "content")))
def test_offsets_are_where_the_tokens_are(times: int, names: Any, shape: Any) -> None:
    """Wherever a token can be read, even behind half characters that can't."""
    script = Script(names_half=names, shape=shape)
    answer = parse(complete(script, BODY | {"logprobs": 1}, times, chat=False))
    text = answer.text.rstrip("�").encode()
    offsets = find_offsets(listed(answer), text)
    assert offsets is not None
    for begin, place in zip(offsets, listed(answer), strict=True):
        if place.token.data is not None and begin < len(text):
            assert text.startswith(place.token.data[: len(text) - begin], begin)


def test_offsets_allow_for_a_lost_space_and_for_an_end_of_sequence() -> None:
    lists = {"tokens": [" a", " b", "</s>"], "token_logprobs": [-1.0] * 3, "top_logprobs": [None] * 3}
    places = listed(parse({"choices": [{"text": "a b", "logprobs": lists}]}))
    assert find_offsets(places, b"a b") == [0, 1, 3]
    assert find_offsets(places, b"a c") is None


def test_the_toy_tokenizer_undoes_itself() -> None:
    ids = [1, 2, VOCABULARY.index(b"\xc3"), VOCABULARY.index(b"\xa9"), 3]
    assert tokenize(spell(ids)) == ids
