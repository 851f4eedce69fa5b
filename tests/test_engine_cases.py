"""What went wrong in other engines, restated small: ends, counts, drafts, limits (docs name the cases)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.base import DraftRequest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import LogitsOf, ToyModel, random_table
from surefoot.trace import Event
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, VerifyMode
from tests.harness import VOCAB_SIZE, Scripted, assert_same, expected, ids, joined, knowing, letters, reciting

SWEEP = range(1, 7)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
PROMPT = ids("tell me ")


def toy(logits_of: LogitsOf, max_length: int = 4096) -> ToyModel:
    return ToyModel(logits_of, VOCAB_SIZE, max_length)


@pytest.mark.parametrize("k", SWEEP)
@pytest.mark.parametrize("end", range(7))
def test_a1_nothing_follows_an_eos_inside_an_accepted_block(k: int, end: int) -> None:
    path = ids("abcdefg"[:end] + "!" + "hijklmnopq")
    target = reciting(PROMPT, path)
    events: list[Event] = []
    engine = Engine(
        toy(target),
        Scripted(knowing([[*PROMPT, *path]])),
        tokenizer=letters("!"),
        draft_tokens=k,
        trace=events.append,
    )
    chunks = list(engine.stream(PROMPT, GREEDY))
    result = chunks[-1].result
    assert result
    assert_same(result.choices[0], expected(target, PROMPT, GREEDY, tokenizer=letters("!"), end_ids=(31,)))
    assert joined(chunks) == (result.text, result.token_ids) == ("abcdefg"[:end], tuple(path[: end + 1]))
    assert result.usage.completion_tokens == end + 1 == sum(len(event.emitted) for event in events)
    assert result.stats.accepted_tokens == result.stats.draft_tokens  # what is cut off was not rejected
    assert not engine.has_work


def test_a2_without_an_eos_a_match_runs_to_max_tokens() -> None:
    target = reciting(PROMPT, ids("ab"))
    result = Engine(toy(target), "ngram", draft_tokens=4).generate(PROMPT, GREEDY)[0]
    assert (len(result.token_ids), result.finish_reason) == (40, "length")
    assert result.stats.accepted_tokens > 10


@pytest.mark.parametrize("k", [*SWEEP, 16])
@pytest.mark.parametrize(
    "text", ["XYabcdefg", "aXYbcdef", "abXYcd", "abcXYde", "abcdeXYf", "aXbXXYz", "abc.def"]
)
def test_a4_a_stop_string_cuts_text_ids_and_logprobs_at_one_boundary(k: int, text: str) -> None:
    """Complete at each index of a block, begun in one block and completed in the next, of one character."""
    path = ids(text + "qrstuvw")
    target = reciting(PROMPT, path)
    params = SamplingParams(temperature=0, max_tokens=14, stop=("XY", "."), logprobs=2)
    engine = Engine(toy(target), Scripted(knowing([[*PROMPT, *path]])), tokenizer=letters(), draft_tokens=k)
    chunks = list(engine.stream(PROMPT, params))
    result = chunks[-1].result
    assert result
    assert_same(result.choices[0], expected(target, PROMPT, params, tokenizer=letters()))
    stop = "XY" if "XY" in text else "."
    assert result.text == text[: text.index(stop)]
    assert len(result.token_ids) == text.index(stop) + len(stop) == result.usage.completion_tokens
    assert joined(chunks) == (result.text, result.token_ids)
    assert sum(len(chunk.logprobs or ()) for chunk in chunks) == len(result.token_ids)


@pytest.mark.parametrize("k", SWEEP)
def test_a6_exactly_max_tokens_are_delivered_and_counted(k: int) -> None:
    path = ids("abcdefghijklmnop")
    engine = Engine(toy(reciting(PROMPT, path)), Scripted(knowing([[*PROMPT, *path]])), draft_tokens=k)
    for max_tokens in range(1, k + 4):
        result = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens))[0]
        assert result.token_ids == tuple(path[:max_tokens])
        assert (result.usage.completion_tokens, result.finish_reason) == (max_tokens, "length")
        assert result.stats.accepted_tokens == result.stats.draft_tokens


def test_a7_stop_strings_work_with_a_draft_model() -> None:
    target = reciting(PROMPT, ids("abcdeXYf"))
    engine = Engine(toy(target), ModelDrafter(toy(target)), tokenizer=letters(), draft_tokens=4)
    result = engine.generate(PROMPT, SamplingParams(temperature=0, stop=("eX",)))[0]
    assert (result.text, result.token_ids) == ("abcd", tuple(ids("abcdeX")))


@pytest.mark.parametrize("k", SWEEP)
def test_b5_emitted_is_accepted_plus_one_in_every_round(k: int) -> None:
    path = ids("abcdefghijklmnop")
    events: list[Event] = []
    drafter = Scripted(knowing([[*PROMPT, *path, *path]], wrong_from=lambda length: length % 3))
    engine = Engine(toy(reciting(PROMPT, path)), drafter, draft_tokens=k, trace=events.append)
    stats = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=30))[0].stats
    for event in events:
        assert len(event.emitted) == len(event.path) + 1
        assert event.tested == min(len(event.path) + 1, len(event.draft_tokens))
        assert event.bonus == (len(event.path) == len(event.draft_tokens))
    assert 29 == stats.accepted_tokens + stats.rounds == round(stats.mean_acceptance_length * stats.rounds)
    assert stats.draft_tokens == sum(len(event.draft_tokens) for event in events)
    assert stats.acceptance_rate == stats.accepted_tokens / stats.draft_tokens


class Breaking(ToyModel):
    """Fails once, in a given pass, after the cache was extended."""

    def __init__(self, logits_of: LogitsOf, fails_in: int) -> None:
        super().__init__(logits_of, VOCAB_SIZE)
        self._passes_left = fails_in

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        logits = super().forward(batch)
        self._passes_left -= 1
        if self._passes_left == 0:
            raise RuntimeError("the pass broke")
        return logits


@pytest.mark.parametrize("fails_in", [1, 2, 4])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_c6_a_pass_that_breaks_once_is_undone_and_run_by_each_request_alone(
    fails_in: int, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    params = SamplingParams(seed=5, max_tokens=20)
    target = Breaking(table, fails_in if broken == "target" else 0)
    drafter = ModelDrafter(Breaking(table, fails_in if broken == "draft" else 0))
    engine = Engine(target, drafter, draft_tokens=3)
    for _ in range(2):
        results = engine.generate([PROMPT, PROMPT[:3]], params)
        for result, prompt in zip(results, (PROMPT, PROMPT[:3]), strict=True):
            assert_same(result.choices[0], expected(table, prompt, params))
    assert [message[:42] for message in caplog.messages] == ["a round failed, so its 2 requests run alon"]
    assert not engine.has_work
    engine.close()
    for model in (target, drafter.model):
        assert isinstance(model, ToyModel)
        assert not len(model.cache)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d1_full_acceptance_keeps_the_drafter_in_step(temperature: float) -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    engine = Engine(toy(table), ModelDrafter(toy(table)), draft_tokens=4)
    stats = engine.generate(PROMPT, SamplingParams(temperature=temperature, seed=2, max_tokens=61))[0].stats
    assert (stats.rounds, stats.draft_tokens, stats.acceptance_rate) == (12, 48, 1.0)
    assert stats.mean_acceptance_length == 5.0


class Watched(ModelDrafter):
    """Checks before every draft that the cache holds a prefix of what was emitted, up to the last token or,
    after a draft accepted whole, the one before it."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        model = self.model
        assert isinstance(model, ToyModel)
        for request in requests:
            held = model.cache.tokens(-1 - request.seq)
            assert held == tuple(request.tokens[: len(held)])
            assert not held or len(request.tokens) - len(held) in (1, 2)
        return super().propose(requests)


def test_d2_the_drafter_sees_the_emitted_prefix_in_every_round() -> None:
    draft = ToyModel(random_table(VOCAB_SIZE, 1, seed=1, spread=4), VOCAB_SIZE)
    sharp = random_table(VOCAB_SIZE, 1, seed=1, spread=4)
    other = random_table(VOCAB_SIZE, 2, seed=2, spread=1)
    target = toy(lambda prefix: np.asarray(sharp(prefix)) + np.asarray(other(prefix)))
    engine = Engine(target, Watched(draft), draft_tokens=3)
    stats = engine.generate([PROMPT, ids("ab")], SamplingParams(seed=2, max_tokens=60))[0].stats
    assert 0 < stats.accepted_tokens < stats.tested_tokens


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_d3_a_wrong_draft_of_one_token_is_rejected(verify: VerifyMode) -> None:
    path = ids("abcdefgh")
    drafter = Scripted(lambda tokens, budget: Draft((31,)))
    engine = Engine(toy(reciting(PROMPT, path)), drafter, draft_tokens=1, verify=verify)
    result = engine.generate(PROMPT, SamplingParams(max_tokens=8, temperature=1, top_k=1))[0]
    assert result.token_ids == tuple(path)
    assert (result.stats.draft_tokens, result.stats.accepted_tokens) == (6, 0)


@pytest.mark.parametrize("k", SWEEP)
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_d4_a_prompt_of_one_token(k: int, draft: str) -> None:
    table = random_table(VOCAB_SIZE, 1, seed=3)
    engine = Engine(
        toy(table), NgramDrafter() if draft == "ngram" else ModelDrafter(toy(table)), draft_tokens=k
    )
    assert_same(engine.generate([5], GREEDY)[0].choices[0], expected(table, [5], GREEDY))


def test_e1_request_2_finds_its_own_ngrams_and_none_of_request_1s() -> None:
    """Request 2's prompt ends in what occurs in request 1 only; its own output repeats."""
    first, second = ids("abcdefgh" * 4), ids("xbc")
    events: list[Event] = []

    def target(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(VOCAB_SIZE, np.float32)
        row[ids("uvw")[len(prefix) % 3]] = 9
        return row

    engine = Engine(toy(target), "ngram", draft_tokens=4, trace=events.append)
    engine.generate(first, GREEDY)
    events.clear()
    result = engine.generate(second, GREEDY)[0]
    assert not {token for event in events for token in event.draft_tokens} & set(first)
    assert result.stats.accepted_tokens > 20


def test_e3_fifty_requests_with_a_draft_context_for_two() -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    draft = toy(table, max_length=48)
    engine = Engine(toy(table), ModelDrafter(draft), draft_tokens=4)
    for number in range(50):
        stats = engine.generate(PROMPT, SamplingParams(seed=number, max_tokens=16))[0].stats
        assert stats.acceptance_rate == 1.0
    assert not len(draft.cache)


def test_e4_the_draft_length_outlives_a_bad_request() -> None:
    path = ids("abcdefghijklmnop")
    answers = [[*PROMPT, *path]]
    wrong = True
    drafter = Scripted(
        lambda tokens, budget: knowing(answers, lambda length: 0 if wrong else 99)(tokens, budget)
    )
    engine = Engine(toy(reciting(PROMPT, path)), drafter, draft_tokens=5)
    params = SamplingParams(temperature=0, max_tokens=13)
    engine.generate(PROMPT, params)
    wrong = False
    drafter.asked.clear()
    engine.generate(PROMPT, params)
    assert [budget for _, budget in drafter.asked] == [5, 5]


def test_e5_every_one_of_three_equal_requests_drafts() -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    engine = Engine(toy(table), ModelDrafter(toy(table)), draft_tokens=4)
    numbers = [engine.generate(PROMPT, GREEDY)[0].stats.draft_tokens for _ in range(3)]
    assert numbers[0] == numbers[1] == numbers[2] > 20


@pytest.mark.parametrize("k", SWEEP)
@pytest.mark.parametrize("length", range(24, 32))
@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_l1_drafting_stops_at_the_context(k: int, length: int, draft: str) -> None:
    table = random_table(VOCAB_SIZE, 1, seed=4, spread=6)
    target = toy(table, max_length=32)
    drafter = NgramDrafter() if draft == "ngram" else ModelDrafter(toy(table, max_length=32))
    prompt = [i % 5 for i in range(length)]
    result = Engine(target, drafter, draft_tokens=k).generate(prompt, GREEDY)[0]
    assert_same(result.choices[0], expected(table, prompt, GREEDY, max_length=32))
    assert (result.finish_reason, len(result.token_ids)) == ("length", 32 - length)


def test_l2_past_the_drafters_context_decoding_is_plain(caplog: pytest.LogCaptureFixture) -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    events: list[Event] = []
    engine = Engine(
        toy(table, 64), ModelDrafter(toy(table, 16), name="small"), draft_tokens=3, trace=events.append
    )
    with caplog.at_level(logging.WARNING):
        for seed in (1, 2):
            params = SamplingParams(seed=seed, max_tokens=100)
            result = engine.generate(PROMPT, params)[0]
            assert_same(result.choices[0], expected(table, PROMPT, params, max_length=64))
    assert caplog.messages == ["small: no drafts beyond its context of 16 tokens"]
    position = len(PROMPT)
    for event in (event for event in events if event.request == 1):
        assert bool(event.draft_tokens) == (not event.prompt_rows and position <= 16)
        position += len(event.emitted)


def test_l4_every_request_has_the_drafters_whole_context() -> None:
    table = random_table(VOCAB_SIZE, 2, seed=1)
    engine = Engine(toy(table, 64), ModelDrafter(toy(table, 32)), draft_tokens=3)
    params = [SamplingParams(seed=seed, max_tokens=32 - len(PROMPT)) for seed in range(4)]
    for result in engine.generate([PROMPT] * 4, params):
        assert result.stats.mean_acceptance_length > 3.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", VERIFY_MODES)
@pytest.mark.parametrize(("target_size", "draft_size"), [(40, 32), (32, 40), (40, 36)])
def test_m1_vocabularies_padded_differently(
    temperature: float, verify: VerifyMode, target_size: int, draft_size: int
) -> None:
    """The padding would be most likely of all, if it could be chosen."""

    def padded(size: int) -> ToyModel:
        table = random_table(VOCAB_SIZE, 1, seed=1)
        return ToyModel(
            lambda prefix: np.concatenate([np.asarray(table(prefix)), np.full(size - VOCAB_SIZE, 50.0)]), size
        )

    class Part:
        name, model, tokenizer = "small", padded(draft_size), letters()

    engine = Engine(
        padded(target_size),
        Part(),
        tokenizer=letters(),
        draft_tokens=3,
        verify=verify,
    )
    result = engine.generate(PROMPT, SamplingParams(temperature=temperature, seed=3, max_tokens=60))[0]
    assert max(result.token_ids) < VOCAB_SIZE
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.draft_tokens > 30


@pytest.mark.parametrize("prompt", ["abcdefgh", "abcdefab", "aaa"])
def test_n1_ngrams_without_a_match_or_at_the_end(prompt: str) -> None:
    table = random_table(VOCAB_SIZE, 2, seed=6)
    result = Engine(toy(table), "ngram").generate(ids(prompt), SamplingParams(seed=1, max_tokens=50))[0]
    wanted = expected(table, ids(prompt), SamplingParams(seed=1, max_tokens=50))
    assert_same(result.choices[0], wanted)


@pytest.mark.parametrize("length", range(3, 10))
def test_q5_nothing_is_drawn_or_drafted_before_the_last_chunk(length: int) -> None:
    table = random_table(VOCAB_SIZE, 2, seed=6)
    prompt = ids("abcdefghi"[:length])
    drafter = Scripted(lambda tokens, budget: Draft((1,) * budget))
    events: list[Event] = []
    engine = Engine(toy(table), drafter, draft_tokens=3, max_rows=4, trace=events.append)
    result = engine.generate(prompt, SamplingParams(seed=1, max_tokens=9))[0]
    assert_same(result.choices[0], expected(table, prompt, SamplingParams(seed=1, max_tokens=9)))
    chunks = [event for event in events if event.prompt_rows]
    assert sum(event.prompt_rows for event in chunks) == length
    assert [len(event.emitted) for event in chunks] == [0] * ((length - 1) // 4) + [1]
    assert not any(event.draft_tokens for event in chunks)
    assert all(len(tokens) > length for tokens, _ in drafter.asked)


def test_nothing_is_drafted_that_cannot_be_delivered() -> None:
    drafter = Scripted(lambda tokens, budget: Draft((31,) * budget))
    engine = Engine(toy(reciting(PROMPT, ids("ab"))), drafter, draft_tokens=6)
    engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=5))
    assert [budget for _, budget in drafter.asked] == [3, 2, 1]
