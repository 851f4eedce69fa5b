"""What went wrong in other engines, at the API: ends, counts, penalties, log-probabilities, seeds, limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.models.toy import LogitsOf, ToyModel, random_table
from surefoot.text import Tokenizer
from surefoot.types import SamplingParams
from tests.answers import joined, same_lists
from tests.api import CHAT, COMPLETIONS, Api, Json, serving
from tests.harness import VOCAB_SIZE, Scripted, expected, ids, knowing, letters, reciting
from tests.serving import toy_model

SWEEP = range(1, 7)
PROMPT = "tell me "
GREEDY: Json = {
    "prompt": PROMPT,
    "seed": 0,
    "temperature": 0,
    "max_tokens": 40,
    "logprobs": 2,
    "return_token_ids": True,
}


def toy(logits_of: LogitsOf, max_length: int = 4096) -> ToyModel:
    return ToyModel(logits_of, VOCAB_SIZE, max_length)


def both_ways(api: Api, **body: Any) -> Json:
    """The one choice of an answer, the same in one piece and in a stream, and what was counted."""
    whole = api.ask(COMPLETIONS, **body)
    *events, last = api.events(COMPLETIONS, **body, stream_options={"include_usage": True})
    assert joined(events) == whole["choices"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    (choice,) = whole["choices"]
    return {**choice, "counted": whole["usage"]["completion_tokens"]}


def is_oracle(
    choice: Json, target: LogitsOf, tokenizer: Tokenizer, ends: tuple[int, ...] = (), **more: Any
) -> None:
    """Text, ids, finish reason, count and log-probabilities of one-token decoding of whole prefixes."""
    context = more.pop("context", 4096)
    given: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 40, "logprobs": 2, **more}
    prompt = ids(PROMPT)
    want = expected(
        target, prompt, SamplingParams(**given), tokenizer=tokenizer, end_ids=ends, max_length=context
    )
    assert (choice["text"], choice["token_ids"]) == (want.text, list(want.token_ids))
    assert (choice["finish_reason"], choice["counted"]) == (want.finish_reason, len(want.token_ids))
    same_lists(choice["logprobs"], want, tokenizer)


@pytest.mark.parametrize("k", SWEEP)
@pytest.mark.parametrize("end", range(7))
def test_a1_nothing_follows_an_eos_inside_an_accepted_block(k: int, end: int) -> None:
    path = ids("abcdefg"[:end] + "!" + "hijklmnopq")
    target = reciting(ids(PROMPT), path)
    drafter = Scripted(knowing([[*ids(PROMPT), *path]]))
    with serving(toy(target), letters("!"), draft=drafter, draft_tokens=k) as api:
        choice = both_ways(api, **GREEDY)
    assert choice["text"] == "abcdefg"[:end]
    assert choice["counted"] == end + 1
    is_oracle(choice, target, letters("!"), ends=(31,))


def test_a2_without_an_eos_a_match_runs_to_max_tokens() -> None:
    target = reciting(ids(PROMPT), ids("ab"))
    with serving(toy(target), letters(), draft=NgramDrafter(), draft_tokens=4) as api:
        choice = both_ways(api, **GREEDY)
    assert (choice["counted"], choice["finish_reason"]) == (40, "length")
    is_oracle(choice, target, letters())


@pytest.mark.parametrize("k", [*SWEEP, 16])
@pytest.mark.parametrize("text", ["XYabcdefg", "abXYcd", "abcXYde", "aXbXXYz", "abc.def"])
def test_a4_a_stop_string_cuts_text_ids_and_logprobs_at_one_boundary(k: int, text: str) -> None:
    path = ids(text + "qrstuvw")
    target = reciting(ids(PROMPT), path)
    drafter = Scripted(knowing([[*ids(PROMPT), *path]]))
    with serving(toy(target), letters(), draft=drafter, draft_tokens=k) as api:
        choice = both_ways(api, **GREEDY, stop=["XY", "."])
    stop = "XY" if "XY" in text else "."
    assert choice["text"] == text[: text.index(stop)]
    is_oracle(choice, target, letters(), stop=("XY", "."))


@pytest.mark.parametrize("k", SWEEP)
def test_a6_exactly_max_tokens_are_delivered_and_counted(k: int) -> None:
    path = ids("abcdefghijklmnop")
    target = reciting(ids(PROMPT), path)
    drafter = Scripted(knowing([[*ids(PROMPT), *path]]))
    with serving(toy(target), letters(), draft=drafter, draft_tokens=k) as api:
        for max_tokens in range(1, k + 4):
            choice = both_ways(api, **{**GREEDY, "max_tokens": max_tokens})
            assert (choice["counted"], choice["finish_reason"]) == (max_tokens, "length")
            is_oracle(choice, target, letters(), max_tokens=max_tokens)


def test_a7_stop_strings_work_with_a_draft_model() -> None:
    target = reciting(ids(PROMPT), ids("abcdeXYf"))
    with serving(toy(target), letters(), draft=ModelDrafter(toy(target)), draft_tokens=4) as api:
        choice = both_ways(api, **GREEDY, stop="eX")
    assert (choice["text"], choice["counted"]) == ("abcd", 6)
    is_oracle(choice, target, letters(), stop=("eX",))


@pytest.mark.parametrize("k", SWEEP)
@pytest.mark.parametrize("cut", [{"stop": "fg"}, {"max_tokens": 5}])
def test_b1_what_was_cut_is_not_counted(k: int, cut: Json) -> None:
    """Here no part of an answer counts as reasoning, so none can exceed the whole."""
    path = ids("abcdefghijklmnop")
    drafter = Scripted(knowing([[*ids(PROMPT), *path]]))
    with serving(toy(reciting(ids(PROMPT), path)), letters(), draft=drafter, draft_tokens=k) as api:
        body: Json = {**GREEDY, **cut, "include_metrics": True}
        answer = api.ask(COMPLETIONS, **body)
    usage, choice = answer["usage"], answer["choices"][0]
    assert usage["completion_tokens"] == len(choice["token_ids"]) == len(choice["logprobs"]["tokens"])
    assert usage["completion_tokens"] == (7 if "stop" in cut else 5)
    assert "completion_tokens_details" not in usage


def test_e4_a_draft_length_belongs_to_its_request() -> None:
    path = ids("abcdefghijklmnop")
    bad = Scripted(knowing([[*ids(PROMPT), *path, *path]], wrong_from=lambda length: 0))
    with serving(toy(reciting(ids(PROMPT), path)), letters(), draft=bad, draft_tokens=6) as api:
        for count in (1, 5, 3, None):
            bad.asked.clear()
            api.ask(COMPLETIONS, **{**GREEDY, "max_tokens": 20}, draft_tokens=count)
            assert max(budget for _, budget in bad.asked) == (count or 6)


@pytest.mark.parametrize("k", SWEEP)
def test_g1_penalties_reach_drafted_positions(k: int) -> None:
    """The target loves "hello"; a penalty makes it say something else the second time."""
    table = random_table(VOCAB_SIZE, 1, seed=3)

    def target(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.asarray(table(prefix), np.float32).copy()
        row[ids("hello")[(len(prefix) - len(PROMPT)) % 5]] += 6
        return row

    drafter = Scripted(knowing([[*ids(PROMPT), *ids("hello" * 3)]]))
    with serving(toy(target), letters(), draft=drafter, draft_tokens=k) as api:
        for name, value in (("presence_penalty", 2), ("frequency_penalty", 2), ("repetition_penalty", 4)):
            choice = both_ways(api, **GREEDY, **{name: value})
            assert not choice["text"].startswith("hellohello")
            params: dict[str, Any] = {name: float(value)}
            is_oracle(choice, target, letters(), **params)


@pytest.mark.parametrize("k", SWEEP)
def test_g3_min_tokens_holds_back_a_drafted_end(k: int) -> None:
    table = random_table(VOCAB_SIZE, 1, seed=4)

    def target(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.asarray(table(prefix), np.float32).copy()
        row[31] = 20
        return row

    drafter = Scripted(knowing([[*ids(PROMPT), *[31] * 12]]))
    with serving(toy(target), letters("!"), draft=drafter, draft_tokens=k) as api:
        choice = both_ways(api, **GREEDY, min_tokens=4)
    assert choice["counted"] == 5
    assert (choice["token_ids"].index(31), choice["finish_reason"]) == (4, "stop")
    is_oracle(choice, target, letters("!"), ends=(31,), min_tokens=4)


@pytest.mark.parametrize("k", SWEEP)
def test_g4_a_form_is_kept_inside_a_block(k: int) -> None:
    """What the drafter would go on with isn't of the form."""
    path = ids("abcdefghijkl")
    drafter = Scripted(knowing([[*ids(PROMPT), *path]]))
    with serving(toy(reciting(ids(PROMPT), path)), letters("!"), draft=drafter, draft_tokens=k) as api:
        for length in range(1, 6):
            choice = both_ways(api, **GREEDY, structured_outputs={"regex": f"[a-z]{{{length}}}"})
            assert (choice["text"], choice["finish_reason"]) == ("abcdefghijkl"[:length], "stop")


@pytest.mark.parametrize("k", SWEEP)
def test_h1_logprobs_are_the_targets_at_every_position(k: int) -> None:
    target = random_table(VOCAB_SIZE, 2, seed=2)
    plain = expected(target, ids(PROMPT), SamplingParams(seed=3, temperature=1.0, top_p=1.0, max_tokens=30))
    drafter = Scripted(knowing([[*ids(PROMPT), *plain.token_ids]], wrong_from=lambda length: length % 3))
    with serving(toy(target), letters(), draft=drafter, draft_tokens=k) as api:
        body: Json = {**GREEDY, "temperature": 1, "seed": 3, "max_tokens": 30}
        choice = both_ways(api, **body)
        chat = api.ask(
            CHAT,
            messages=[{"role": "user", "content": "tell me"}],
            logprobs=True,
            top_logprobs=3,
            max_tokens=9,
        )
    is_oracle(choice, target, letters(), temperature=1.0, seed=3, max_tokens=30)
    assert len(chat["choices"][0]["logprobs"]["content"]) == chat["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9])
def test_h2_the_logprobs_of_a_prompt_at_the_size_of_a_chunk(length: int) -> None:
    target = random_table(VOCAB_SIZE, 2, seed=2)
    prompt = (PROMPT * 2)[:length]
    body: Json = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
    with serving(toy(target), letters(), max_rows=4, prompt_rows=4, draft=None, draft_tokens=1) as api:
        lists = api.ask(COMPLETIONS, **body)["choices"][0]["logprobs"]
    assert lists["token_logprobs"][0] is None
    for place in range(1, length):
        row = np.asarray(target(tuple(ids(prompt[:place]))), np.float64)
        logprobs = row - np.log(np.exp(row).sum())
        assert lists["token_logprobs"][place] == pytest.approx(logprobs[ids(prompt[place])[0]], abs=1e-5)
        best = sorted(lists["top_logprobs"][place].values(), reverse=True)[:2]
        assert best == pytest.approx(np.sort(logprobs)[::-1][:2], abs=1e-5)


def test_h2_what_is_impossible_has_a_number() -> None:
    """JSON has none for a probability of 0."""

    def target(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.full(VOCAB_SIZE, -np.inf, np.float32)
        row[0] = 0
        return row

    with serving(toy(target), letters()) as api:
        lists = both_ways(api, **{**GREEDY, "echo": True, "logprobs": 3})["logprobs"]
        assert lists["token_logprobs"][1] == -9999.0
        assert min(lists["top_logprobs"][-1].values()) == -9999.0
        chat = api.ask(
            CHAT, messages=[{"role": "user", "content": "x"}], logprobs=True, top_logprobs=3, max_tokens=4
        )
        assert chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] == -9999.0


def test_i1_a_seed_repeats_its_text_and_another_gives_another() -> None:
    with serving() as api:
        texts = [
            api.ask(COMPLETIONS, prompt=PROMPT, seed=seed, max_tokens=40)["choices"][0]["text"]
            for seed in (1, 1, 2, 3)
        ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("draft", ["ngram", None])
def test_i2_i4_a_seeded_request_is_the_same_in_company(draft: str | None) -> None:
    """Of requests with other seeds, draft lengths and prompts, some of which have no seed at all."""
    bodies: Sequence[Json] = [
        {
            "prompt": "ab" * place,
            "seed": seed,
            "draft_tokens": place % 5 if draft else 0,
            "max_tokens": 30 + place,
        }
        for place, seed in enumerate([1, None, 2, None, 3, 1, None, 2], start=1)
    ]
    with serving(draft=draft, draft_tokens=5, max_requests=5) as api:

        def ask(body: Json) -> Json:
            return api.ask(COMPLETIONS, **body, return_token_ids=True)["choices"][0]  # type: ignore[no-any-return]

        for order in (bodies, bodies[::-1]):
            with ThreadPoolExecutor(len(order)) as pool:
                for body, choice in zip(order, pool.map(ask, order), strict=True):
                    params = SamplingParams(
                        temperature=1.0, top_p=1.0, seed=choice["seed"], max_tokens=body["max_tokens"]
                    )
                    solo = api.solo(api.tokenizer.encode(body["prompt"], add_special=True), params)
                    assert choice["token_ids"] == list(solo.token_ids)


def test_i5_equal_choices_at_temperature_0() -> None:
    with serving(draft_tokens=3) as api:
        first, second = api.ask(CHAT, messages=[{"role": "user", "content": "x"}], temperature=0, n=2)[
            "choices"
        ]
    assert first["message"] == second["message"]


@pytest.mark.parametrize(
    "outputs",
    [{"regex": "["}, {"grammar": "begin: x"}, {"json": {"type": "no such type"}}, {"json": "no JSON"}],
    ids=str,
)
def test_j4_a_grammar_that_is_none_is_refused(outputs: Json) -> None:
    with serving() as api:
        for stream in (False, True):
            response = api.post(COMPLETIONS, prompt=PROMPT, structured_outputs=outputs, stream=stream)
            assert response.status_code == 400
            assert json.loads(response.text)["error"]["message"].startswith("structured_outputs: ")


@pytest.mark.parametrize("length", range(24, 32))
def test_l1_drafts_end_with_the_context(length: int) -> None:
    target = random_table(VOCAB_SIZE, 1, seed=6)
    prompt = (PROMPT * 4)[:length]
    want = expected(target, ids(prompt), SamplingParams(temperature=0, max_tokens=99), max_length=32)
    knows = Scripted(knowing([[*ids(prompt), *want.token_ids, 1, 2, 3, 4, 5, 6]]))
    for drafter in (knows, NgramDrafter()):
        with serving(toy(target, 32), letters(), draft=drafter, draft_tokens=5) as api:
            choice = both_ways(api, **{**GREEDY, "prompt": prompt, "max_tokens": 99})
        assert choice["token_ids"] == list(want.token_ids)
        assert (choice["finish_reason"], choice["counted"]) == ("length", 32 - length)


def test_l1_a_prompt_that_fills_the_context_is_refused() -> None:
    with serving(toy(random_table(VOCAB_SIZE, 1, seed=6), 32), letters()) as api:
        for length in (32, 33, 100):
            assert api.refusal(COMPLETIONS, prompt=(PROMPT * 13)[:length]) == (
                f"prompt: {length} tokens are too many; the context of 32 leaves room for 31 and an answer"
            )


def test_the_toy_model_is_as_drafted() -> None:
    """Every case above has the model draft something that is accepted, or it would show nothing."""
    with serving(toy_model(), draft_tokens=4) as api:
        answer = api.ask(
            COMPLETIONS, prompt="abcabcabcabc", temperature=0, max_tokens=60, include_metrics=True
        )
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
