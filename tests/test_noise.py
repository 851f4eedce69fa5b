"""The noise itself: coupled decoding equals plain decoding even when both are biased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from surefoot import noise
from surefoot.exact import coupled_acceptance
from surefoot.noise import Key, Stream, round_key, token_key

QWEN_VOCAB = 151_936
PROBS = np.array([0.42, 0.25, 0.15, 0.1, 0.05, 0.02, 0.009, 0.001])
IDS = np.arange(len(PROBS))
TOKEN_WORDS = [3085888398802147198, 11136300713303553227, 6292157068571797191]
ROUND_WORDS = [6587429667488484592]
LEAST_P = 1e-3  # of a test with fixed seeds: it passes always or never

Axis = Callable[[int], Key]
AXES: dict[str, Axis] = {
    "seeds": lambda i: token_key(i, 0, 17),
    "high seeds": lambda i: token_key(i << 44, 0, 17),
    "positions": lambda i: token_key(5, 0, i),
    "choices": lambda i: token_key(5, i, 17),
    "draft rounds": lambda i: round_key(5, 0, i, 2, Stream.DRAFT),
    "residual nodes": lambda i: round_key(5, 0, 9, i, Stream.RESIDUAL),
}


def chi_square(observed: Sequence[float], expected: Sequence[float]) -> float:
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("axis", AXES)
def test_drawn_tokens_follow_their_probabilities(axis: str) -> None:
    draws = 20_000
    counts = Counter(noise.race(AXES[axis](i), IDS, PROBS) for i in range(draws))
    assert chi_square([counts[v] for v in IDS.tolist()], (draws * PROBS).tolist()) > LEAST_P


NEIGHBOURS: dict[str, Callable[[int], tuple[Key, Key]]] = {
    "positions": lambda i: (token_key(3, 0, 2 * i), token_key(3, 0, 2 * i + 1)),
    "seeds": lambda i: (token_key(2 * i, 0, 40), token_key(2 * i + 1, 0, 40)),
    "seed and position": lambda i: (token_key(2 * i, 0, 41), token_key(2 * i + 1, 0, 40)),
    "choices": lambda i: (token_key(i, 0, 40), token_key(i, 1, 40)),
    "drafting and residual": lambda i: (
        round_key(i, 0, 8, 0, Stream.DRAFT),
        round_key(i, 0, 8, 0, Stream.RESIDUAL),
    ),
    "rounds": lambda i: (round_key(i, 0, 8, 1, Stream.DRAFT), round_key(i, 0, 9, 0, Stream.DRAFT)),
    "position and round": lambda i: (token_key(i, 0, 8), round_key(i, 0, 8, 0, Stream.DRAFT)),
}


@pytest.mark.parametrize("pair", NEIGHBOURS)
def test_neighbours_draw_independently(pair: str) -> None:
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    pairs = 12_000
    counts = np.zeros((4, 4))
    for i in range(pairs):
        one, other = NEIGHBOURS[pair](i)
        counts[noise.race(one, IDS[:4], probs), noise.race(other, IDS[:4], probs)] += 1
    assert chi_square(counts.ravel().tolist(), (pairs * np.outer(probs, probs)).ravel().tolist()) > LEAST_P


def test_rare_tokens_are_as_rare_as_they_should_be() -> None:
    probs = np.array([0.99, *[0.0002] * 50])
    ids = np.arange(51) * 1009
    draws = 50_000
    counts = Counter(noise.race(token_key(77, 0, t), ids, probs) for t in range(draws))
    assert chi_square([counts[v] for v in ids.tolist()], (draws * probs).tolist()) > LEAST_P


def test_every_part_of_a_large_vocabulary_is_drawn_alike() -> None:
    ids, probs = np.arange(QWEN_VOCAB), np.full(QWEN_VOCAB, 1 / QWEN_VOCAB)
    draws, bins = 2_000, 64
    tokens = np.array([noise.race(token_key(4, 0, t), ids, probs) for t in range(draws)])
    assert QWEN_VOCAB % bins == 0
    for part in (tokens // (QWEN_VOCAB // bins), tokens % bins):
        assert chi_square(np.bincount(part, minlength=bins).tolist(), [draws / bins] * bins) > LEAST_P


def test_a_row_of_exponentials_is_exponential() -> None:
    row = noise.exponentials(token_key(1, 0, 0), np.arange(QWEN_VOCAB))
    column = np.array([noise.exponentials(token_key(1, 0, t), np.array([151_000]))[0] for t in range(5_000)])
    assert stats.kstest(row, "expon").pvalue > LEAST_P
    assert stats.kstest(column, "expon").pvalue > LEAST_P
    assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 4 / np.sqrt(QWEN_VOCAB)


def test_uniforms_are_uniform_and_independent_of_their_neighbours() -> None:
    values = np.array([noise.uniform(round_key(2, 0, r, 0, Stream.ACCEPT)) for r in range(10_000)])
    assert stats.kstest(values, "uniform").pvalue > LEAST_P
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / 100


EXTREMES = np.array([0, 1, 2**12 - 1, 2**12, 2**63, 2**64 - 2**12, 2**64 - 1], np.uint64)


def test_an_exponential_is_never_zero_and_never_infinite() -> None:
    uniforms = noise.to_uniforms(EXTREMES.copy())
    exponentials = noise.to_exponentials(uniforms)
    assert uniforms[0] == 2.0**-53
    assert uniforms[-1] == 1 - 2.0**-53
    assert (exponentials > 0).all()
    assert np.isfinite(exponentials).all()


def test_uniforms_are_the_exact_midpoints() -> None:
    for word, value in zip(EXTREMES.tolist(), noise.to_uniforms(EXTREMES.copy()).tolist(), strict=True):
        assert Fraction(value) == (Fraction(word >> 12) + Fraction(1, 2)) / 2**52


def test_no_two_uses_share_a_key() -> None:
    keys = [token_key(s, n, t) for s in range(4) for n in range(4) for t in range(8)]
    keys += [
        round_key(s, n, t, node, stream)
        for s in range(4)
        for n in range(4)
        for t in range(8)
        for node in range(-1, 4)
        for stream in Stream
    ]
    assert len(set(keys)) == len(keys)


def test_i5_two_choices_of_one_request_differ() -> None:
    rows = [noise.exponentials(token_key(9, choice, 3), np.arange(1000)) for choice in (0, 1)]
    assert not np.isin(rows[0], rows[1]).any()


def test_the_largest_arguments_have_keys() -> None:
    assert token_key(2**64 - 1, 127, 2**40) != token_key(2**64 - 1, 127, 2**40 + 1)


def test_the_noise_never_changes_between_versions() -> None:
    """The same seed must give the same text tomorrow, so these numbers are frozen."""
    assert noise.bits(token_key(1, 2, 3), np.array([0, 1, 151_935])).tolist() == TOKEN_WORDS
    assert noise.bits(round_key(1, 2, 3, -1, Stream.ACCEPT), np.array([0])).tolist() == ROUND_WORDS


def naive_race(key: Key, ids: NDArray[np.int64], probs: NDArray[np.float64]) -> int:
    ids, probs = ids[probs > 0], probs[probs > 0]  # a rate of 5e-324 runs forever too, and yet may win
    with np.errstate(over="ignore"):
        times = noise.exponentials(key, ids) / probs
    return int(ids[times.argmin()])


weights = st.one_of(st.just(0.0), st.floats(0, 1), st.floats(1e-300, 1e-290), st.just(0.25))


@given(st.lists(weights, min_size=1, max_size=60).filter(any), st.integers(0, 2**64 - 1))
def test_the_pruned_race_has_the_winner_of_the_whole_one(probs: list[float], seed: int) -> None:
    ids, row, key = np.arange(len(probs)) * 7, np.array(probs), token_key(seed, 0, 0)
    assert noise.race(key, ids, row) == naive_race(key, ids, row)


@pytest.mark.parametrize("size", [8191, 8192, 8193, 40_000])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 12.0])
def test_long_races_are_pruned_right_too(size: int, sharpness: float) -> None:
    for seed in range(20):
        probs = np.exp(sharpness * np.random.default_rng(seed).normal(size=size))
        probs[: size // 3] = 0
        key = token_key(seed, 0, 0)
        assert noise.race(key, np.arange(size), probs) == naive_race(key, np.arange(size), probs)


@pytest.mark.parametrize(("size", "first"), [(5, 2), (20_000, 9_000)])
def test_ties_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch, size: int, first: int) -> None:
    monkeypatch.setattr(noise, "bits", lambda key, ids: np.full(len(ids), 2**63, np.uint64))
    probs = np.full(size, 0.5)
    probs[:first] = 0.25
    assert noise.race(Key(0, 0), np.arange(size), probs) == first


def test_a_race_without_runners_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive probability"):
        noise.race(Key(0, 0), np.arange(3), np.zeros(3))


def test_shared_noise_agrees_exactly_as_often_as_computed() -> None:
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    rate = float(
        coupled_acceptance(
            [Fraction(x) for x in ("3/5", "3/10", "1/10")], [Fraction(x) for x in ("1/5", "1/2", "3/10")]
        )
    )
    rounds = 20_000
    ids = np.arange(3)
    agreed = sum(
        noise.race(token_key(0, 0, t), ids, target) == noise.race(token_key(0, 0, t), ids, draft)
        for t in range(rounds)
    )
    assert stats.binomtest(agreed, rounds, rate).pvalue > LEAST_P


def twenty_four_bits(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (words >> np.uint64(40)).astype(np.float64) * 2.0**-24


def fifty_three_bits(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


MUTANTS = {
    "uniform of 24 bits": lambda words: -np.log1p(-twenty_four_bits(words)),
    "uniform of 53 bits and a half": lambda words: -np.log(fifty_three_bits(words)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_exponentials_reach_zero(name: str, caught: Callable[[str, str, str], None]) -> None:
    least = MUTANTS[name](EXTREMES).min()
    assert least == 0
    caught(name, "forced word", "an exponential of 0")
