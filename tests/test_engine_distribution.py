"""The engine's output has the target's distribution in every mode, and mutants of it haven't.

Seeds are fixed, so a test passes always or never. What must be exact passes at the level 10⁻³; a mutant
must fail beyond 10⁻⁶.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, chisquare

from surefoot import noise
from surefoot.drafters.base import Drafter, DraftRequest
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, probability_table
from surefoot.noise import Key, Stream
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, Verdict, VerifyMode
from tests.conftest import Caught
from tests.harness import Scripted

EXACT, WRONG = 1e-3, 1e-6

Table = dict[tuple[int, ...], Sequence[float]]

TARGET: Table = {(0,): (0.5, 0.3, 0.2), (1,): (0.1, 0.2, 0.7), (2,): (0.4, 0.0, 0.6)}
DRAFT: Table = {(0,): (0.2, 0.5, 0.3), (1,): (0.0, 0.5, 0.5), (2,): (0.5, 0.3, 0.2)}
COIN: Table = {(): (0.5, 0.5)}
BENT: Table = {(): (0.8, 0.2)}


def toy(table: Table) -> ToyModel:
    return ToyModel(probability_table(table), len(next(iter(table.values()))))


def law(table: Table, length: int) -> dict[tuple[int, ...], float]:
    """The joint distribution of the tokens 1 to `length` after the first, the prompt being (0,)."""
    size = len(next(iter(table.values())))
    joint: Counter[tuple[int, ...]] = Counter()
    for tokens in product(range(size), repeat=length + 1):
        probability, last = 1.0, 0
        for token in tokens:
            probability *= table.get((last,), table.get((), ()))[token]
            last = token
        joint[tokens[1:]] += probability  # type: ignore[assignment]
    return dict(joint)


def p_value(
    table: Table, drafter: Drafter | str, mode: VerifyMode, *, runs: int, k: int = 3, length: int = 3
) -> float:
    """How well the engine's tokens fit the target: the first is drawn without a draft, the next `length`
    are counted, and enough follow for the drafts not to be clipped while these are made."""
    engine = Engine(toy(table), drafter, draft_tokens=k, verify=mode, max_requests=250, max_rows=2000)
    said: Counter[tuple[int, ...]] = Counter()
    for start in range(0, runs, 250):
        params = [
            SamplingParams(seed=s, temperature=1, top_p=1, max_tokens=1 + length + k)
            for s in range(start, start + 250)
        ]
        for result in engine.generate([[0]] * 250, params):
            said[result.token_ids[1 : length + 1]] += 1
    wanted = {tokens: runs * p for tokens, p in law(table, length).items() if p > 0}
    assert set(said) <= set(wanted)
    return float(chisquare([said[tokens] for tokens in wanted], list(wanted.values())).pvalue)


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_f1_sampled_drafts_keep_the_joint_distribution(mode: VerifyMode) -> None:
    assert p_value(TARGET, ModelDrafter(toy(DRAFT)), mode, runs=2500) > EXACT


def favourite(tokens: Sequence[int], budget: int) -> Draft:
    """The draft model's favourites, which were not drawn: point masses."""
    return Draft((int(np.argmax(DRAFT[(tokens[-1],)])),) * budget, source="favourite")


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_f1_argmax_and_ngram_drafts_keep_the_joint_distribution(mode: VerifyMode) -> None:
    drafters: tuple[Drafter | str, ...] = (Scripted(favourite), "ngram")
    for drafter in drafters:
        assert p_value(TARGET, drafter, mode, runs=1500) > EXACT


def twigs(tokens: Sequence[int], budget: int) -> Draft:
    """Both sides of a first branch, and a leaf below each, none of them drawn."""
    return Draft((1, 0, 2, 2), parents=(-1, -1, 0, 1), source="twigs") if budget >= 4 else Draft()


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_f6_trees_keep_the_joint_distribution(mode: VerifyMode) -> None:
    assert p_value(TARGET, Scripted(twigs), mode, runs=2500, k=4) > EXACT


def test_f1_argmax_drafts_said_to_be_drawn_are_found_out(caught: Caught) -> None:
    def boasting(tokens: Sequence[int], budget: int) -> Draft:
        draft = favourite(tokens, min(budget, 1))
        return Draft(draft.tokens, probs=np.array([DRAFT[(tokens[-1],)]], np.float64))

    p = p_value(TARGET, Scripted(boasting), "rejection", runs=1000)
    assert p < WRONG
    caught("argmax draft, verified with the full q", "engine, χ²", f"p = {p:.0e}")


class Forgetful(ModelDrafter):
    """Hands on a distribution that its tokens were not drawn from."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        flat = [None if d.probs is None else np.full_like(d.probs, 1 / d.probs.shape[1]) for d in drafts]
        return [Draft(d.tokens, probs=probs) for d, probs in zip(drafts, flat, strict=True)]


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_drafts_paired_with_another_distribution_are_found_out(mode: VerifyMode, caught: Caught) -> None:
    p = p_value(TARGET, Forgetful(toy(DRAFT)), mode, runs=1000)
    assert p < WRONG
    caught(f"q used is not q sampled, {mode}", "engine, χ²", f"p = {p:.0e}")


def keyed_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped position is drafted and tested again with the noise it had."""
    fresh = noise.round_key

    def reused(seed: int, choice: int, round_position: int, node: int, stream: Stream) -> Key:
        return fresh(seed, choice, round_position + node, 0, stream)

    monkeypatch.setattr(noise, "round_key", reused)


@pytest.mark.parametrize("reuse", [False, True])
def test_block_verification_needs_fresh_noise_in_every_round(
    reuse: bool, monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    if reuse:
        keyed_by_position(monkeypatch)
    p = p_value(COIN, ModelDrafter(toy(BENT)), "block", runs=1500, length=4)
    assert p < WRONG if reuse else p > EXACT
    if reuse:
        caught("block, noise keyed by position", "engine, χ²", f"p = {p:.0e}")


class Peeking(ModelDrafter):
    """Drafts as many tokens as the tail that the last verdict dropped began with zeros; 6 without a tail."""

    def __init__(self, model: ToyModel) -> None:
        super().__init__(model)
        self._last: dict[int, Draft] = {}
        self._length: dict[int, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [
            cut(draft, self._length.get(request.seq, 6))
            for request, draft in zip(requests, super().propose(requests), strict=True)
        ]
        self._last |= {request.seq: draft for request, draft in zip(requests, drafts, strict=True)}
        return drafts

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        dropped = self._last[seq].tokens[len(verdict.path) + 1 :]
        self._length[seq] = [*dropped, 1].index(1) if dropped else 6


def cut(draft: Draft, length: int) -> Draft:
    return Draft(draft.tokens[:length], probs=None if draft.probs is None else draft.probs[:length])


@pytest.mark.parametrize("reuse", [False, True])
def test_rejection_needs_fresh_noise_when_a_length_saw_the_dropped_tail(
    reuse: bool, monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    """The share of zeros among 20,000 tosses of a fair coin."""
    if reuse:
        keyed_by_position(monkeypatch)
    engine = Engine(toy(COIN), Peeking(toy(BENT)), draft_tokens=6, verify="rejection", max_requests=100)
    params = [SamplingParams(seed=s, temperature=1, top_p=1, max_tokens=200) for s in range(100)]
    zeros = sum(result.token_ids.count(0) for result in engine.generate([[0]] * 100, params))
    p = float(binomtest(zeros, 20_000).pvalue)
    assert p < WRONG if reuse else p > EXACT
    if reuse:
        caught("rejection, noise keyed by position, length by the tail", "engine, share", f"p = {p:.0e}")


class Trimming(ModelDrafter):
    """Drops a token after drawing it, because of what it is."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [cut(draft, [*draft.tokens, 1].index(1)) for draft in super().propose(requests)]


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_trimming_by_a_drawn_token_is_found_out_except_where_it_is_harmless(
    mode: VerifyMode, caught: Caught
) -> None:
    p = p_value(COIN, Trimming(toy(BENT)), mode, runs=1000)
    assert p > EXACT if mode == "coupled" else p < WRONG
    if mode != "coupled":
        caught(f"draft trimmed by what was drawn, {mode}", "engine, χ²", f"p = {p:.0e}")


def test_choices_of_a_request_are_independent() -> None:
    """Pairs of first tokens of two choices, over seeds."""
    engine = Engine(toy(TARGET), None, max_requests=500, max_rows=2000)
    params = [SamplingParams(seed=s, temperature=1, top_p=1, max_tokens=1, n=2) for s in range(2000)]
    pairs = Counter(
        tuple(choice.token_ids[0] for choice in result.choices)
        for result in engine.generate([[0]] * len(params), params)
    )
    p: NDArray[np.float64] = np.outer(TARGET[(0,)], TARGET[(0,)]).ravel()
    counts = [pairs[pair] for pair in product(range(3), repeat=2)]
    assert chisquare(counts, 2000 * p).pvalue > EXACT
