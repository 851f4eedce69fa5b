"""Speculation over two functions: equal to plain decoding when coupled, equal in law otherwise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats

from surefoot import SamplingParams, SurefootError, plain_decode, speculative_decode
from surefoot.models.toy import LogitsOf, probability_table, random_table
from surefoot.sampling import History, target_probs
from surefoot.types import VerifyMode

VOCAB = 12
TARGET = random_table(VOCAB, order=2, seed=1)
FRESH_MODES: list[VerifyMode] = ["rejection", "block"]


def near(distance: float) -> LogitsOf:
    other = random_table(VOCAB, order=1, seed=2, spread=distance)
    return lambda prefix: np.asarray(TARGET(prefix)) + np.asarray(other(prefix))


def always_wrong(prefix: tuple[int, ...]) -> ArrayLike:
    return -np.asarray(TARGET(prefix))


DRAFTS: dict[str, LogitsOf] = {
    "the target": TARGET,
    "near": near(0.7),
    "unrelated": random_table(VOCAB, order=1, seed=9),
    "opposite": always_wrong,
}

parameters = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.4, 1.0, 1.7]),
    top_p=st.sampled_from([0.6, 0.95, 1.0]),
    top_k=st.sampled_from([0, 3]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.6]),
    presence_penalty=st.sampled_from([0.0, -0.5]),
    logit_bias=st.sampled_from([{}, {3: 2.0}]),
    seed=st.integers(0, 2**64 - 1),
    stop_token_ids=st.sampled_from([(), (5,)]),
    ignore_eos=st.booleans(),
)


@given(parameters, st.sampled_from(sorted(DRAFTS)), st.integers(1, 12), st.integers(0, 3), st.integers(0, 24))
@settings(max_examples=150, deadline=None)
def test_coupled_speculation_is_plain_decoding(
    params: SamplingParams, draft: str, k: int, choice: int, min_tokens: int
) -> None:
    prompt, ends = [1, 2, 3], (0, 7)
    params = replace(params, min_tokens=min(min_tokens, params.max_tokens))
    plain = plain_decode(TARGET, prompt, params, end_ids=ends, choice=choice)
    speculated = speculative_decode(TARGET, DRAFTS[draft], prompt, k, params, end_ids=ends, choice=choice)
    assert speculated == plain


def exact_law(params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, prob in law.items():
            logits = np.asarray(SMALL((0, *tokens)), np.float32)
            row = target_probs(logits, params, History([0], tokens))
            for token, chance in zip(row.ids.tolist(), row.probs.tolist(), strict=True):
                longer[(*tokens, token)] = prob * chance
        law = longer
    return law


SMALL = probability_table({(): [0.5, 0.3, 0.2], (0,): [0.2, 0.2, 0.6], (1,): [0.7, 0.1, 0.2]})
SMALL_DRAFT = probability_table({(): [0.2, 0.4, 0.4], (1,): [0.3, 0.3, 0.4]})


@pytest.mark.parametrize("mode", ["coupled", *FRESH_MODES])
@pytest.mark.parametrize("k", [1, 3])
def test_every_mode_gives_the_targets_joint_law(mode: VerifyMode, k: int) -> None:
    runs, length = 2_500, 4
    params = SamplingParams(max_tokens=length, temperature=0.9, top_p=1.0, presence_penalty=0.3)
    law = exact_law(params, length)
    counts = Counter(
        tuple(speculative_decode(SMALL, SMALL_DRAFT, [0], k, replace(params, seed=seed), mode=mode))
        for seed in range(runs)
    )
    assert counts.keys() <= law.keys()
    large = [tokens for tokens, prob in law.items() if prob * runs >= 5]
    observed = [counts[tokens] for tokens in large]
    expected = [law[tokens] * runs for tokens in large]
    observed.append(runs - sum(observed))
    expected.append(runs - sum(expected))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("mode", FRESH_MODES)
@pytest.mark.parametrize("draft", DRAFTS)
def test_at_temperature_zero_every_mode_is_greedy(mode: VerifyMode, draft: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, repetition_penalty=1.2)
    expected = plain_decode(TARGET, [1], params)
    assert speculative_decode(TARGET, DRAFTS[draft], [1], 4, params, mode=mode) == expected


@pytest.mark.parametrize("mode", FRESH_MODES)
def test_the_same_drafts_and_lengths_repeat_a_run(mode: VerifyMode) -> None:
    runs = [
        speculative_decode(TARGET, near(1), [1], 3, SamplingParams(seed=8, max_tokens=30), mode=mode)
        for _ in "ab"
    ]
    assert runs[0] == runs[1]


def test_i1_seeds_matter_and_repeat() -> None:
    texts = [tuple(plain_decode(TARGET, [1], SamplingParams(seed=s % 5, max_tokens=12))) for s in range(10)]
    assert texts[:5] == texts[5:]
    assert len(set(texts)) == 5


def test_i5_choices_differ_but_not_at_temperature_zero() -> None:
    def decode(temperature: float, choice: int) -> list[int]:
        params = SamplingParams(seed=3, max_tokens=12, temperature=temperature)
        return speculative_decode(TARGET, near(1), [1], 3, params, choice=choice)

    assert decode(1.0, 0) != decode(1.0, 1)
    assert decode(0.0, 0) == decode(0.0, 1)


@pytest.mark.parametrize("mode", ["coupled", *FRESH_MODES])
def test_f3_speculation_is_not_greedy(mode: VerifyMode) -> None:
    firsts = {
        speculative_decode(
            TARGET, near(1), [1], 3, SamplingParams(seed=s, temperature=2.0, max_tokens=1), mode=mode
        )[0]
        for s in range(300)
    }
    assert len(firsts) > 5


@pytest.mark.parametrize("mode", ["coupled", *FRESH_MODES])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_a6_exactly_max_tokens_are_delivered(mode: VerifyMode, k: int) -> None:
    for length in range(1, k + 4):
        params = SamplingParams(max_tokens=length, seed=1)
        assert len(speculative_decode(TARGET, TARGET, [1], k, params, mode=mode)) == length


def counting(prefix: tuple[int, ...]) -> ArrayLike:
    """The target that always counts on: 1, 2, 3, …"""
    return [100.0 * (token == (prefix[-1] + 1) % VOCAB) for token in range(VOCAB)]


@pytest.mark.parametrize("end", range(2, 9))
def test_a1_nothing_follows_an_end_wherever_in_the_block_it_falls(end: int) -> None:
    for params in (SamplingParams(max_tokens=30), SamplingParams(max_tokens=30, stop_token_ids=(end,))):
        ends = () if params.stop_token_ids else (end,)
        output = speculative_decode(counting, counting, [1], 4, params, end_ids=ends)
        assert output == list(range(2, end + 1))


def test_ignoring_the_end_goes_on_and_a2_no_end_is_fine() -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    assert speculative_decode(counting, counting, [1], 4, params, end_ids=(3,)) == list(range(2, 11))
    assert speculative_decode(counting, counting, [1], 4, SamplingParams(max_tokens=9)) == list(range(2, 11))


def test_g3_min_tokens_holds_the_end_back_while_it_is_drafted() -> None:
    def eager(prefix: tuple[int, ...]) -> ArrayLike:
        return [1.0, 0.0, 9.0, 0.5]

    for k in range(7):
        params = SamplingParams(temperature=0, min_tokens=4, max_tokens=20)
        assert speculative_decode(eager, eager, [3], k, params, end_ids=(2,)) == [0, 0, 0, 0, 2]


def test_g1_penalties_see_the_drafted_tokens_before_each_row() -> None:
    def hello(prefix: tuple[int, ...]) -> ArrayLike:
        return [2.0, 1.0, 0.0, 0.0]

    for k in range(5):
        params = SamplingParams(temperature=0, frequency_penalty=1.5, max_tokens=4)
        assert speculative_decode(hello, hello, [3], k, params) == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("k", "mode", "params", "complaint"),
    [
        (-1, "coupled", SamplingParams(), "k: -1 is out of range; allowed is 0 or more"),
        (2.5, "coupled", SamplingParams(), "k: 2.5 is not a whole number; allowed is 0 or more"),
        (1, "lossy", SamplingParams(), "mode: 'lossy' is unknown; choose one of coupled, rejection, block"),
        (1, "coupled", SamplingParams(stop=("x",)), r"stop: \('x',\) is text"),
        (1, "coupled", SamplingParams(bad_words=("x",)), r"bad_words: \('x',\) is text"),
    ],
)
def test_bad_arguments_are_named(k: int, mode: VerifyMode, params: SamplingParams, complaint: str) -> None:
    with pytest.raises(SurefootError, match=complaint):
        speculative_decode(TARGET, TARGET, [1], k, params, mode=mode)


@pytest.mark.parametrize("mode", FRESH_MODES)
@pytest.mark.parametrize("size", [2, 4])
def test_two_vocabularies_are_named(mode: VerifyMode, size: int) -> None:
    def target(prefix: tuple[int, ...]) -> ArrayLike:
        return [0.0, 0.0, 0.0]

    def draft(prefix: tuple[int, ...]) -> ArrayLike:
        return [0.0] * size

    with pytest.raises(SurefootError, match=f"^draft: its vocabulary of {size} tokens .* target's, of 3"):
        speculative_decode(target, draft, [0], 2, SamplingParams(top_p=1), mode=mode)
