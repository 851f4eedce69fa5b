"""/v1/completions: every parameter reaches the engine, and the answer is the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.results import Result
from surefoot.types import SamplingParams
from tests.answers import BASE, NEUTRAL, PARAMETERS, same_choices, same_lists, same_prompt
from tests.api import COMPLETIONS, Api, Json, serving

PROMPT = "tell me of"


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(draft_tokens=4) as running:
        yield running


def solo(api: Api, prompt: str = PROMPT, **params: Any) -> Result:
    given: dict[str, Any] = {**NEUTRAL, **BASE, **params}
    return api.solo(api.tokenizer.encode(prompt, add_special=True), SamplingParams(**given))


@pytest.mark.parametrize(("body", "params"), PARAMETERS, ids=lambda value: str(value)[:40])
def test_a_parameter_reaches_the_engine(api: Api, body: Json, params: dict[str, Any]) -> None:
    wanted = solo(api, **params, logprobs=3)
    answer = api.ask(COMPLETIONS, **{"prompt": PROMPT, **BASE, **body}, return_token_ids=True, logprobs=3)
    assert [choice.token_ids for choice in wanted.choices] != [solo(api).token_ids]
    same_choices(answer["choices"], wanted)
    for choice, expected in zip(answer["choices"], wanted.choices, strict=True):
        same_lists(choice["logprobs"], expected, api.tokenizer)
    used, tokens = answer["usage"], wanted.usage
    assert (used["prompt_tokens"], used["completion_tokens"]) == (
        tokens.prompt_tokens,
        tokens.completion_tokens,
    )
    assert used["total_tokens"] == tokens.prompt_tokens + tokens.completion_tokens


def test_an_answer_has_its_shape(api: Api) -> None:
    answer = api.ask(COMPLETIONS, model="toy", prompt=PROMPT, **BASE)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "toy"
    assert answer["system_fingerprint"].startswith("surefoot-")
    assert set(answer["choices"][0]) == {"index", "text", "logprobs", "finish_reason", "seed"}
    assert "metrics" not in answer


def test_sixteen_tokens_unless_told(api: Api) -> None:
    wanted = solo(api, max_tokens=16)
    same_choices(api.ask(COMPLETIONS, prompt=PROMPT, seed=5, return_token_ids=True)["choices"], wanted)


@pytest.mark.parametrize("kind", ["text", "texts", "ids", "lists"])
def test_a_prompt_in_each_form(api: Api, kind: str) -> None:
    texts = [PROMPT, "and of", "tell me of"]
    lists = [api.tokenizer.encode(text, add_special=True) for text in texts]
    prompt: Any = {"text": texts[0], "texts": texts, "ids": lists[0], "lists": lists}[kind]
    several = kind in ("texts", "lists")
    wanted = [solo(api, text, n=2) for text in (texts if several else texts[:1])]
    answer = api.ask(COMPLETIONS, prompt=prompt, **BASE, n=2, return_token_ids=True)
    same_choices(answer["choices"], wanted)
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [
        list(result.prompt_token_ids) for result in wanted for _ in range(2)
    ]
    assert answer["usage"]["prompt_tokens"] == sum(result.usage.prompt_tokens for result in wanted)
    assert answer["usage"]["completion_tokens"] == sum(result.usage.completion_tokens for result in wanted)


def test_i1_the_seed_that_was_drawn_repeats_the_answer(api: Api) -> None:
    first = api.ask(COMPLETIONS, prompt=[PROMPT, PROMPT], max_tokens=30)["choices"]
    assert first[0]["seed"] != first[1]["seed"]
    assert first[0]["text"] != first[1]["text"]
    assert first[0]["seed"] < 2**53
    for choice in first:
        again = api.ask(COMPLETIONS, prompt=PROMPT, max_tokens=30, seed=choice["seed"])["choices"][0]
        assert (again["text"], again["seed"]) == (choice["text"], choice["seed"])


def test_i5_two_choices_at_temperature_0_are_equal(api: Api) -> None:
    first, second = api.ask(COMPLETIONS, prompt=PROMPT, temperature=0, n=2)["choices"]
    assert first == {**second, "index": 0, "seed": first["seed"]}


def test_best_of_gives_the_likeliest_by_the_token(api: Api) -> None:
    """Not the likeliest as a whole, which would be a short one."""
    wanted = solo(api, n=6, logprobs=0, seed=0, logit_bias={257: 2.0})
    sums = [sum(place.chosen for place in choice.logprobs or ()) for choice in wanted.choices]
    means = [total / len(choice.token_ids) for total, choice in zip(sums, wanted.choices, strict=True)]
    best, likeliest = (sorted(range(6), key=lambda index: -each[index])[:2] for each in (means, sums))
    assert best != likeliest
    body: Json = {"prompt": PROMPT, **BASE, "seed": 0, "logit_bias": {"257": 2}, "n": 2, "best_of": 6}
    answer = api.ask(COMPLETIONS, **body, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [
        list(wanted.choices[index].token_ids) for index in best
    ]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == wanted.usage.completion_tokens


def test_best_of_n_is_all(api: Api) -> None:
    answer = api.ask(COMPLETIONS, prompt=PROMPT, **BASE, n=3, best_of=3, return_token_ids=True)
    same_choices(answer["choices"], solo(api, n=3))


@pytest.mark.parametrize("count", [0, 1, 20])
def test_h2_an_echo_has_the_logprobs_of_its_prompt(api: Api, count: int) -> None:
    wanted = solo(api, logprobs=count, prompt_logprobs=count)
    choice = api.ask(COMPLETIONS, prompt=PROMPT, **BASE, echo=True, logprobs=count)["choices"][0]
    lists, size = choice["logprobs"], len(wanted.prompt_token_ids)
    assert choice["text"] == PROMPT + wanted.text
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert lists["tokens"][:size] == list(PROMPT)
    assert lists["text_offset"][: size + 1] == list(range(size + 1))
    assert wanted.prompt_logprobs is not None
    for place, want in list(enumerate(wanted.prompt_logprobs))[1:]:
        assert want is not None
        assert lists["token_logprobs"][place] == pytest.approx(want.chosen, abs=1e-5)
        assert len(lists["top_logprobs"][place]) in (count, count + 1)
    same_lists(lists, wanted.choices[0], api.tokenizer, start=size)


@pytest.mark.parametrize("prompt", [PROMPT, "<|im_start|>x", [104, 257, 105]])
def test_an_echo_repeats_the_prompt_with_its_special_tokens(api: Api, prompt: str | list[int]) -> None:
    text = prompt if isinstance(prompt, str) else "h<|im_end|>i"
    plain, echoed = (
        api.ask(COMPLETIONS, prompt=prompt, **BASE, echo=echo)["choices"][0] for echo in (False, True)
    )
    assert echoed["text"] == text + plain["text"]


def test_the_logprobs_of_a_prompt(api: Api) -> None:
    wanted = solo(api, prompt_logprobs=2)
    choice = api.ask(COMPLETIONS, prompt=PROMPT, **BASE, prompt_logprobs=2)["choices"][0]
    assert choice["text"] == wanted.text
    assert wanted.prompt_logprobs is not None
    same_prompt(choice["prompt_logprobs"], wanted.prompt_logprobs)
    assert [next(iter(place)) for place in choice["prompt_logprobs"][1:]] == list(
        map(str, wanted.prompt_token_ids[1:])
    )


def test_offsets_count_characters(api: Api) -> None:
    """Of which é takes two tokens here, neither of which is a text."""
    bias = {str(byte): 100 for byte in (0xC3, 0xA9)}
    body: Json = {
        "prompt": "aé",
        "max_tokens": 12,
        "seed": 1,
        "logit_bias": bias,
        "logprobs": 0,
        "echo": True,
    }
    choice = api.ask(COMPLETIONS, **body)["choices"][0]
    names, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert names[:3] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert offsets[:3] == [0, 1, 1]
    assert set(names[3:]) == {"bytes:\\xc3", "bytes:\\xa9"}
    done = b"".join(bytes.fromhex(name.removeprefix("bytes:\\x")) for name in names[3:])
    assert choice["text"] == "aé" + done.decode(errors="replace")
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("outputs", "matches"),
    [
        ({"regex": "[ab]{5}c"}, lambda text: set(text[:5]) <= {"a", "b"} and text[5:] == "c"),
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"grammar": 'start: "x" "y"+ "z"'}, lambda text: text.strip("xyz") == "" and text[0] == "x"),
        ({"json": {"type": "boolean"}}, lambda text: text.strip() in ("true", "false")),
        ({"json": '{"type": "boolean"}'}, lambda text: text.strip() in ("true", "false")),
    ],
    ids=["regex", "choice", "grammar", "schema", "schema as text"],
)
def test_an_output_that_must_be_of_a_form(api: Api, outputs: Json, matches: Any) -> None:
    answer = api.ask(COMPLETIONS, prompt=PROMPT, **BASE, structured_outputs=outputs)
    assert matches(answer["choices"][0]["text"])
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_draft_tokens_limit_the_drafts(api: Api) -> None:
    body: Json = {"prompt": "abcabcabcabc", "temperature": 0, "max_tokens": 60, "include_metrics": True}
    answers = [api.ask(COMPLETIONS, **body, draft_tokens=count) for count in (0, 2, None)]
    texts = {answer["choices"][0]["text"] for answer in answers}
    none, two, four = (answer["metrics"]["speculative_decoding"] for answer in answers)
    assert len(texts) == 1
    assert none == {
        "mean_acceptance_length": 1.0,
        "draft_acceptance_rate": 0.0,
        "acceptance_histogram": [0],
        "num_spec_steps": 0,
        "num_accepted_draft_tokens": 0,
        "num_draft_tokens": 0,
        "num_spec_tokens": 0,
    }
    assert (two["num_spec_tokens"], four["num_spec_tokens"]) == (2, 4)
    for numbers in (two, four):
        histogram, steps = numbers["acceptance_histogram"], numbers["num_spec_steps"]
        accepted = numbers["num_accepted_draft_tokens"]
        assert accepted == sum(length * count for length, count in enumerate(histogram)) > 0
        assert steps == sum(histogram)
        assert numbers["mean_acceptance_length"] == 1 + accepted / steps
        assert numbers["draft_acceptance_rate"] == accepted / numbers["num_draft_tokens"]


def test_a_request_that_takes_too_long(api: Api) -> None:
    response = api.post(COMPLETIONS, prompt=PROMPT, max_tokens=300, ignore_eos=True, timeout=1e-6)
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
