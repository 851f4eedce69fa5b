"""Evidence: a fair game for tokens drawn as they should be, and one that is won against those that aren't."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surefoot.evidence import ANYWHERE, LAMBDAS, Evidence, Observation, smallest_share

SUSPICIONS, PLACES = ("draft", "raw"), ("1", "2", "after")
PROBS = st.floats(0.0, 1.0)


def seen(prob: float, hit: bool, place: str = "1", pull: float | None = None) -> Observation:
    return Observation("draft", place, prob, hit, pull)


@settings(deadline=None)
@given(st.lists(st.tuples(PROBS, PROBS, st.sampled_from(PLACES)), min_size=1, max_size=6))
def test_the_stake_is_worth_the_same_on_average_whatever_happens(
    tokens: list[tuple[float, float, str]],
) -> None:
    """Over every outcome of a few tokens, each held against two suspicions at once (the second of which
    hits exactly when the first does not), with probabilities that depend on the outcome before."""
    expected = 0.0
    for hits in product((False, True), repeat=len(tokens)):
        evidence, chance, before = Evidence(SUSPICIONS, PLACES, 0.01), 1.0, False
        for (prob, other, place), hit in zip(tokens, hits, strict=True):
            now = other if before else prob
            chance *= now if hit else 1 - now
            raw = Observation("raw", place, 1 - now, not hit)
            evidence.add([seen(now, hit, place), raw], 1)
            before = hit
        expected += chance * math.exp(evidence.log_e)
    assert expected == pytest.approx(1)


@settings(deadline=None)
@given(
    st.lists(st.tuples(PROBS, st.floats(-1.0, 1.0), st.sampled_from(PLACES)), min_size=1, max_size=5),
    st.floats(0.0, 0.2),
)
def test_probabilities_within_the_tolerance_make_no_stake_grow(
    tokens: list[tuple[float, float, str]], tolerance: float
) -> None:
    """Over every outcome of a few tokens whose true probabilities are off by up to that much."""
    expected = 0.0
    for hits in product((False, True), repeat=len(tokens)):
        evidence, chance = Evidence(SUSPICIONS, PLACES, 0.01, tolerance), 1.0
        for (prob, off, place), hit in zip(tokens, hits, strict=True):
            true = min(1.0, max(0.0, prob + off * tolerance))
            chance *= true if hit else 1 - true
            evidence.add([seen(prob, hit, place)], 1)
        expected += chance * math.exp(evidence.log_e)
    assert expected <= 1 + 1e-9


def test_a_tolerance_is_part_of_the_bias_that_is_stated() -> None:
    evidences = [Evidence(SUSPICIONS, PLACES, 0.01, tolerance) for tolerance in (0.0, 0.03)]
    for evidence in evidences:
        evidence.add([seen(0.5, True)] * 1000, 1000)
    strict, tolerant = (evidence.sight("draft").bias for evidence in evidences)
    assert tolerant == pytest.approx(strict + 0.03, abs=0.003)


def stream(evidence: Evidence, probs: np.ndarray, shift: float, rng: np.random.Generator) -> None:
    """Tokens whose hits are as much likelier than they should be as `shift` says."""
    hits = rng.random(len(probs)) < np.clip(probs + shift, 0, 1)
    for start in range(0, len(probs), 50):
        part = slice(start, start + 50)
        evidence.add([seen(float(p), bool(h)) for p, h in zip(probs[part], hits[part], strict=True)], 50)


def test_false_alarms_are_as_rare_as_alpha_says() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        evidence = Evidence(SUSPICIONS, PLACES, 0.05)
        stream(evidence, rng.random(500), 0.0, rng)
        alarms += evidence.found
    assert alarms <= 29  # the upper 1% of a binomial of 400 and .05


ODDS: dict[str, tuple[float, ...]] = {
    "even": (0.5,),
    "spread": (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95),
    "nearly certain": (0.97, 0.03),
    "rare": (0.03,),
    "one in a hundred": (0.01, 0.01, 0.99),
    "mixed": (0.0, 0.001, 0.02, 0.6, 0.97, 0.999, 1.0),
}


@pytest.mark.parametrize(("tokens", "pull"), [(150, 1.0), (600, 0.6)])
@pytest.mark.parametrize("odds", ODDS)
def test_what_is_stated_is_seen_as_often_as_is_stated(odds: str, tokens: int, pull: float) -> None:
    """Nine times in ten, whatever the odds; of 100 runs, not fewer than the lower 1% of a binomial. pull:
    how far from p(A) to 1 what is suspected would bring it."""
    rng = np.random.default_rng(1)
    probs = np.resize(ODDS[odds], tokens)
    pulled = probs + pull * (1 - probs)
    sight = played(probs, pulled, probs, rng).sight("draft")
    assert sight.share is not None
    assert sight.distance is not None
    assert sight.distance == pytest.approx((pulled - probs).mean())
    if pull == 1:
        assert sight.bias == pytest.approx(sight.share * sight.distance)
    assert sight.share <= 1 or tokens == 150
    if sight.share <= 1:
        fault = probs + sight.share * (pulled - probs)
        found = sum(played(probs, pulled, fault, rng).found for _ in range(100))
        assert found >= 82


def played(probs: np.ndarray, pulled: np.ndarray, true: np.ndarray, rng: np.random.Generator) -> Evidence:
    evidence = Evidence(("draft",), ("1",), 0.01)
    hits = rng.random(len(probs)) < true
    for start in range(0, len(probs), 50):
        part = slice(start, start + 50)
        each = zip(probs[part].tolist(), hits[part].tolist(), pulled[part].tolist(), strict=True)
        evidence.add([seen(prob, hit, pull=pull) for prob, hit, pull in each], 50)
        if evidence.found:
            break
    return evidence


def test_a_fault_at_one_place_is_not_washed_out() -> None:
    rng = np.random.default_rng(2)
    evidence = Evidence(SUSPICIONS, PLACES, 0.01)
    for index in range(3000):
        third = index % 30 == 0
        hit = bool(rng.random() < (0.9 if third else 0.5))
        evidence.add([seen(0.5, hit, "2" if third else "1")], 1)
    assert evidence.found
    first = evidence.sights()[0]
    assert (first.suspicion, first.place) == ("draft", "2")
    assert first.excess == pytest.approx(0.4, abs=0.1)
    assert evidence.sight("draft", "1").log_e < 1


def test_what_was_found_stays_found() -> None:
    evidence = Evidence(SUSPICIONS, PLACES, 0.01)
    for _ in range(40):
        evidence.add([seen(0.1, True)], 1)
    assert evidence.found
    for _ in range(4000):
        evidence.add([seen(0.5, False)], 1)
        evidence.add([seen(0.5, True)], 1)
    assert evidence.log_e < evidence.limit
    assert evidence.found


def test_nothing_seen_shows_nothing() -> None:
    evidence = Evidence(SUSPICIONS, PLACES, 0.01)
    assert evidence.log_e == pytest.approx(0)
    assert not evidence.found
    assert evidence.sights() == []
    assert math.isinf(evidence.sight("draft").bias)


def test_a_share_is_the_bias_over_what_the_suspect_would_pull() -> None:
    evidence = Evidence(SUSPICIONS, PLACES, 0.01)
    for index in range(1000):
        evidence.add([seen(0.4, index % 5 < 2, pull=0.6)], 1)
    sight = evidence.sight("draft", ANYWHERE)
    assert sight.distance == pytest.approx(0.2)
    assert sight.share is not None
    assert sight.share == pytest.approx(sight.bias / 0.2)
    evidence.add([seen(0.4, True)], 1)  # one without
    sight = evidence.sight("draft", ANYWHERE)
    assert sight.share is None
    assert sight.distance is None


@given(st.integers(1, 10**6), st.floats(0.01, 0.99), st.floats(1.0, 20.0))
@example(43, 0.90625, 1.0)
def test_more_tokens_see_smaller_biases(tokens: int, prob: float, needed: float) -> None:
    won, lost = np.log1p(LAMBDAS * (1 - prob)), np.log1p(-LAMBDAS * prob)
    stride = won - lost
    moments = tokens * np.stack((lost + prob * stride, prob * (1 - prob) * stride**2))
    moved = tokens * (1 - prob) * np.stack((stride, (1 - 2 * prob) * stride**2))
    share = smallest_share(needed, moments, moved)
    if share > 1:  # none: a fault is whole at most, and what it adds to the variance would leave none
        return
    assert smallest_share(needed, 4 * moments, 4 * moved) < share
    assert smallest_share(needed + 1, moments, moved) > share


@pytest.mark.parametrize("prob", [-0.1, 1.1, math.nan])
def test_what_is_no_probability_is_refused(prob: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        Evidence(SUSPICIONS, PLACES, 0.01).add([seen(prob, True)], 1)


def test_a_suspicion_that_was_not_announced_is_refused() -> None:
    with pytest.raises(KeyError):
        Evidence(("raw",), PLACES, 0.01).add([seen(0.5, True)], 1)
