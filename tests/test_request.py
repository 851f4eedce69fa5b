"""Where a request ends: one boundary for text, ids and counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.prompts import Prompt, as_list, check, prepare
from surefoot.request import Limits, Request
from surefoot.stops import StopFilter
from surefoot.text import Detokenizer
from surefoot.types import SamplingParams, SurefootError
from tests.harness import ids, letters


def request(
    params: SamplingParams, *, prompt: str = "ab", max_length: int = 64, text: bool = True
) -> Request:
    tokenizer = letters("!")
    limits = Limits(max_length, tokenizer.eos_ids)
    detokenizer = Detokenizer(tokenizer) if text else None
    return Request(0, 0, 0, ids(prompt), params, limits, seed=1, detokenizer=detokenizer)


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the first stop string to be complete begins."""
    for end in range(1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins)
    return None


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_are_found_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    found = first_stop(text, stops)
    stop_filter = StopFilter(stops)
    shown = ""
    for piece in pieces:
        shown += stop_filter.push(piece)
        assert text.startswith(shown)
        assert found is None or len(shown) <= found
        if stop_filter.stopped:
            break
    assert stop_filter.stopped == (found is not None)
    assert shown + stop_filter.flush() == text[:found]


@given(pieces=st.lists(st.text("ab", max_size=3), max_size=8), stop=st.text("ab", min_size=2, max_size=4))
def test_text_is_held_back_only_while_it_may_become_a_stop_string(pieces: list[str], stop: str) -> None:
    stop_filter = StopFilter([stop])
    shown, text = "", ""
    for piece in pieces:
        text += piece
        shown += stop_filter.push(piece)
        if stop_filter.stopped:
            return
        held = text[len(shown) :]
        assert stop.startswith(held)
        assert len(held) < len(stop)


def test_a_stop_string_that_did_not_count_is_forgotten() -> None:
    stop_filter = StopFilter(["a", "ab", "xyz"])
    assert stop_filter.push("a", armed=False) == ""  # may still become "ab"
    assert stop_filter.push("c") == "ac"
    assert stop_filter.push("ab", armed=False) == "ab"
    assert not stop_filter.stopped


def test_a_stop_string_before_min_tokens_does_not_end_the_request() -> None:
    ended = request(SamplingParams(stop=("XY",), min_tokens=4))
    assert ended.extend(ids("XYXYab")) == tuple(ids("XYXY"))
    assert (ended.text, ended.finish_reason) == ("XY", "stop")


def test_eos_is_counted_and_not_shown() -> None:
    ended = request(SamplingParams())
    assert ended.extend(ids("cd!ef")) == tuple(ids("cd!"))
    assert (ended.text, ended.finish_reason, ended.output) == ("cd", "stop", ids("cd!"))
    assert ended.extend(ids("g")) == ()


def test_ignore_eos_goes_on() -> None:
    going = request(SamplingParams(ignore_eos=True, max_tokens=5))
    assert going.extend(ids("cd!efg")) == tuple(ids("cd!ef"))
    assert (going.text, going.finish_reason) == ("cd!ef", "length")


def test_stop_token_ids_end_like_eos_and_release_what_was_held_back() -> None:
    ended = request(SamplingParams(stop_token_ids=(ids("z")[0],), stop=("XY",)))
    assert ended.extend(ids("aXz")) == tuple(ids("aXz"))
    assert (ended.text, ended.finish_reason) == ("aX", "stop")


@pytest.mark.parametrize(("max_tokens", "max_length", "taken"), [(3, 64, 3), (9, 6, 4), (4, 6, 4)])
def test_a_request_ends_at_whichever_limit_comes_first(max_tokens: int, max_length: int, taken: int) -> None:
    ended = request(SamplingParams(max_tokens=max_tokens), max_length=max_length)
    assert ended.remaining == taken
    assert ended.extend(ids("cdefghij")) == tuple(ids("cdefghij"[:taken]))
    assert (ended.text, ended.finish_reason, ended.remaining) == ("cdefghij"[:taken], "length", 0)


def test_tokens_alone_have_no_text() -> None:
    ended = request(SamplingParams(max_tokens=2), text=False)
    ended.extend(ids("cd"))
    assert (ended.text, ended.tokens) == ("", ids("abcd"))


def test_prompts_come_as_text_ids_conversations_or_lists_of_them() -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    assert as_list("hi") == ["hi"]
    assert as_list([1, 2]) == [[1, 2]]
    assert as_list(talk) == [talk]
    mixed: list[Prompt] = ["hi", [1, 2], talk]
    assert as_list(mixed) == mixed
    params, tokenizer = SamplingParams(), letters("!")
    assert prepare("hi", params, tokenizer).ids == tuple(ids("hi"))
    assert prepare("hi", params, tokenizer, chat=True).ids == tuple(ids("hi."))
    assert prepare(talk, params, tokenizer).ids == tuple(ids("hi.yo."))
    assert prepare([1, 2], params, None).ids == (1, 2)
    assert [prepare(p, params, None).ids for p in as_list(np.array([[1, 2], [3, 4]]))] == [(1, 2), (3, 4)]  # type: ignore[arg-type]
    with pytest.raises(
        SurefootError, match=r"^prompt: float given; it is text, token ids or a list of messages"
    ):
        prepare(1.5, params, None)  # type: ignore[arg-type]


def test_bad_words_are_spelled_with_and_without_a_space() -> None:
    found = prepare("a", SamplingParams(bad_words=("no",)), letters()).bad_words
    assert set(found) == {tuple(ids("no")), tuple(ids(" no"))}


def test_one_string_is_not_taken_for_its_letters() -> None:
    with pytest.raises(SurefootError, match=r"^stop: 'XY' is one string; give a tuple of strings"):
        SamplingParams(stop="XY")  # type: ignore[arg-type]
    with pytest.raises(SurefootError, match=r"^bad_words: 'no' is one string"):
        SamplingParams(bad_words="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["prompt", "stop", "bad_words"])
def test_text_without_a_tokenizer_is_an_error_that_names_it(field: str) -> None:
    params = SamplingParams() if field == "prompt" else SamplingParams(**{field: ("no",)})  # type: ignore[arg-type]
    with pytest.raises(SurefootError, match=rf"^{field}: .*no tokenizer"):
        prepare("hi" if field == "prompt" else [1], params, None)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(), "prompt: it is empty"),
        (range(8), SamplingParams(), "prompt: 8 tokens are too many; the context of 8 leaves room for 7"),
        ([3, 32], SamplingParams(), r"prompt: token 32 is out of range; allowed is \[0, 31\]"),
        ([3, -1], SamplingParams(), "prompt: token -1 is out of range"),
        ([3], SamplingParams(stop_token_ids=(40,)), "stop_token_ids: token 40 is out of range"),
        ([3], SamplingParams(logit_bias={40: 1.0}), "logit_bias: token 40 is out of range"),
    ],
)
def test_what_cannot_be_served_is_named(prompt: list[int], params: SamplingParams, message: str) -> None:
    with pytest.raises(SurefootError, match=f"^{message}"):
        check(prompt, params, 32, 8)
