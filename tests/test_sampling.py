"""The transforms against a plain reading of their definitions, and what each does to a known row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from surefoot.noise import race, token_key
from surefoot.rounds import prompt_logprobs_of
from surefoot.sampling import Candidates, History, target_probs, top_logprobs
from surefoot.types import SamplingParams, SurefootError

PLAIN = SamplingParams(temperature=1.0, top_p=1.0)
INF = np.inf


def row(*logits: float) -> NDArray[np.float32]:
    return np.array(logits, np.float32)


def by_sorting(logits: NDArray[np.float32], params: SamplingParams) -> Candidates:
    """Temperature and the three filters, each by a stable sort of everything."""
    scaled = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    weights = np.exp(scaled)
    kept = np.arange(len(weights))
    if params.top_k:
        kept = np.sort(np.argsort(-logits, kind="stable")[: params.top_k])
    if params.top_p < 1:
        order = kept[np.argsort(-weights[kept], kind="stable")]
        cumulative = np.cumsum(weights[order])
        needed = params.top_p * weights[kept].sum()
        crossing = int(np.argmax(cumulative >= needed)) if cumulative[-1] >= needed else len(order) - 1
        kept = np.sort(order[: crossing + 1])
    kept = kept[weights[kept] >= max(params.min_p, np.finfo(np.float64).tiny)]
    return Candidates(kept, weights[kept] / weights[kept].sum())


filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 2.5, 100.0]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-12, 1 - 2**-53, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
tied_logits = st.integers(-3, 3).map(float)  # few values: ties everywhere
logit = st.one_of(tied_logits, st.floats(-80, 80, width=32), st.just(-INF))
rows = st.lists(logit, min_size=1, max_size=40).filter(lambda values: max(values) > -INF)


@given(rows, filters)
def test_filters_equal_a_full_stable_sort(logits: list[float], params: SamplingParams) -> None:
    fast, slow = target_probs(row(*logits), params, History()), by_sorting(row(*logits), params)
    assert fast.ids.tolist() == slow.ids.tolist()
    assert fast.probs.tolist() == slow.probs.tolist()


LARGE_ROW_FILTERS = (
    SamplingParams(),
    SamplingParams(top_p=0.999),
    SamplingParams(top_p=1.0, top_k=50),
    SamplingParams(top_p=0.9, top_k=50, min_p=0.02),
)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 10.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_filters_equal_a_full_stable_sort_on_large_rows(spread: float, rounded: bool) -> None:
    for seed, size in enumerate((151_936, 50_000, 64 * 50, 64 * 50 - 1)):
        logits = (np.random.default_rng(seed).normal(size=size) * spread).astype(np.float32)
        logits = logits.round() if rounded else logits
        for params in LARGE_ROW_FILTERS:
            fast, slow = target_probs(logits, params, History()), by_sorting(logits, params)
            assert np.array_equal(fast.ids, slow.ids)
            assert np.array_equal(fast.probs, slow.probs)


@given(rows, filters)
def test_candidates_are_a_distribution(logits: list[float], params: SamplingParams) -> None:
    candidates = target_probs(row(*logits), params, History())
    assert (np.diff(candidates.ids) > 0).all()
    assert (candidates.probs > 0).all()
    assert candidates.probs.sum() == pytest.approx(1, abs=1e-12)
    assert candidates.dense(40)[candidates.ids].tolist() == candidates.probs.tolist()
    assert candidates.dense(40).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=30, top_p=0.9, min_p=0.05, repetition_penalty=1.3),
        SamplingParams(temperature=1.5, top_p=0.6, repetition_penalty=0.8),
        SamplingParams(temperature=1.0, top_p=1.0, min_p=0.1),
    ],
)
def test_the_order_and_the_meaning_are_those_of_transformers(params: SamplingParams) -> None:
    logits = (np.random.default_rng(3).normal(size=500) * 3).astype(np.float32)
    history = [1, 2, 3, 3, 250, 499]
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(params.repetition_penalty),
            TemperatureLogitsWarper(params.temperature),
            *([TopKLogitsWarper(params.top_k)] if params.top_k else []),
            *([TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []),
            *([MinPLogitsWarper(params.min_p)] if params.min_p else []),
        ]
    )
    scores = theirs(torch.tensor([history]), torch.from_numpy(logits)[None].double())
    expected = scores.softmax(-1)[0].numpy()
    ours = target_probs(logits, params, History(history[:4], history[4:])).dense(500)
    assert np.array_equal(ours > 0, expected > 0)
    assert ours == pytest.approx(expected, abs=1e-7)


def test_the_row_is_left_as_it_was() -> None:
    logits = row(1, 2, 3, 4)
    params = SamplingParams(repetition_penalty=2.0, logit_bias={0: 5.0}, presence_penalty=1.0)
    target_probs(logits, params, History([1], [2], vocab_limit=3))
    assert logits.tolist() == [1, 2, 3, 4]


def test_temperature_zero_is_the_argmax_with_ties_to_the_lowest_id() -> None:
    candidates = target_probs(row(1, 5, 5, 2), SamplingParams(temperature=0), History())
    assert (candidates.ids.tolist(), candidates.probs.tolist()) == ([1], [1.0])


def test_temperature_zero_comes_after_the_penalties() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0)
    assert target_probs(row(3, 4), params, History(output=[1])).ids.tolist() == [0]


def test_f7_a_tiny_temperature_is_neither_nan_nor_another_token() -> None:
    for temperature in (1e-6, 1e-300, 5e-324):
        candidates = target_probs(row(1, 1.001, -50), SamplingParams(temperature=temperature), History())
        assert (candidates.ids.tolist(), candidates.probs.tolist()) == ([1], [1.0])


def test_f7_a_batch_of_temperatures_gives_each_row_its_own() -> None:
    logits = row(1, 2, 1.5, 0)
    kinds = [
        len(target_probs(logits, SamplingParams(temperature=t, top_p=1.0), History()).ids)
        for t in (0, 1, 1e-6)
    ]
    assert kinds == [1, 4, 1]


def test_f2_nothing_outside_the_filtered_set_is_ever_chosen() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.6, top_k=2)
    candidates = target_probs(np.log(row(0.4, 0.3, 0.2, 0.1)), params, History())
    assert candidates.ids.tolist() == [0, 1]  # 0.4 / 0.7 is short of 0.6
    assert candidates.probs == pytest.approx([4 / 7, 3 / 7])
    drawn = [race(token_key(s, 0, 0), candidates.ids, candidates.probs) for s in range(2000)]
    assert set(drawn) == {0, 1}
    assert drawn.count(0) == pytest.approx(2000 * 4 / 7, abs=80)


def test_top_p_includes_the_token_that_crosses_it() -> None:
    logits = np.log(row(0.5, 0.25, 0.25))
    kept = [
        len(target_probs(logits, SamplingParams(temperature=1.0, top_p=p), History()).ids)
        for p in (0.4, 0.6, 0.8)
    ]
    assert kept == [1, 2, 3]


def test_min_p_is_relative_to_the_best() -> None:
    params = SamplingParams(temperature=1.0, top_p=1.0, min_p=0.5)
    assert target_probs(np.log(row(0.5, 0.3, 0.2)), params, History()).ids.tolist() == [0, 1]


def test_logit_bias_is_added() -> None:
    params = SamplingParams(temperature=1.0, top_p=1.0, logit_bias={1: float(np.log(3))})
    assert target_probs(row(0, 0), params, History()).probs == pytest.approx([0.25, 0.75])


def test_a_bias_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(SurefootError, match="logit_bias: token 2 is out of range; the largest is 1"):
        target_probs(row(0, 0), SamplingParams(logit_bias={2: 1.0}), History())


def test_repetition_penalty_counts_prompt_and_output_and_minds_the_sign() -> None:
    params = SamplingParams(temperature=1.0, top_p=1.0, repetition_penalty=2.0)
    candidates = target_probs(row(2, -2, 2, -2), params, History([0, 0], [1]))
    assert np.log(candidates.probs / candidates.probs[2]) == pytest.approx([-1, -6, 0, -4])


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    params = SamplingParams(temperature=1.0, top_p=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    candidates = target_probs(row(0, 0, 0), params, History([2, 2], [0, 1, 1]))
    assert np.log(candidates.probs / candidates.probs[2]) == pytest.approx([-0.75, -1.0, 0])


def test_g1_a_row_is_penalised_with_the_drafts_before_it() -> None:
    """The target loves token 0, and the penalty turns it away once it has been drafted."""
    params = SamplingParams(temperature=0, frequency_penalty=1.5)
    history = History(prompt=[3])
    choices = [target_probs(row(2, 1, 0, 0), params, history.then([0] * i)).ids[0] for i in range(3)]
    assert choices == [0, 1, 1]


def test_g3_min_tokens_holds_back_every_end_until_then() -> None:
    params = SamplingParams(temperature=0, min_tokens=4)
    history = History([5, 5, 5, 5, 5], (), end_ids=(2, 3, 99))
    chosen = [int(target_probs(row(1, 0, 9, 8), params, history.then([0] * n)).ids[0]) for n in range(6)]
    assert chosen == [0, 0, 0, 0, 2, 2]


def test_min_tokens_ends_on_time_beside_other_transforms() -> None:
    params = SamplingParams(temperature=0, min_tokens=1, repetition_penalty=1.01)
    history = History([1], [0], end_ids=(2,))
    assert target_probs(row(0, 0, 9), params, history).ids.tolist() == [2]


def test_a_bad_word_loses_its_last_token_after_its_beginning() -> None:
    history = History([7, 1], (), bad_words=((1, 2, 3), (0,)))

    def best(output: list[int]) -> int:
        return int(
            target_probs(row(9, 0, 0, 5, 4), SamplingParams(temperature=0), history.then(output)).ids[0]
        )

    assert best([]) == 3
    assert best([2]) == 4  # "1 2" ends the history, its 1 in the prompt
    assert best([2, 2]) == 3
    assert best([1, 2]) == 4
    assert best([4, 1, 2]) == 4


def test_a_bad_word_longer_than_the_history_bans_nothing() -> None:
    history = History([2], (), bad_words=((1, 2, 3),))
    assert target_probs(row(0, 0, 0, 5), SamplingParams(temperature=0), history).ids.tolist() == [3]


def test_m1_padding_is_never_chosen() -> None:
    logits = row(0, 1, 50, 60)
    for params in (PLAIN, SamplingParams(temperature=0), SamplingParams(top_k=3)):
        assert target_probs(logits, params, History(vocab_limit=2)).ids.max() <= 1


def test_prompts_may_contain_ids_beyond_the_limit() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    assert target_probs(row(0, 1, 2), params, History([2], vocab_limit=2)).ids.tolist() == [0, 1]


def test_banned_logits_are_left_out() -> None:
    assert target_probs(row(0, -INF, 0), PLAIN, History()).ids.tolist() == [0, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_to_choose_is_one_line(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    with pytest.raises(SurefootError, match="position 3: every token is banned") as error:
        target_probs(row(-INF, -INF), params, History([1, 1], [0]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, INF])
def test_a_damaged_row_is_named(temperature: float, bad: float) -> None:
    with pytest.raises(ValueError, match="position 2"):
        target_probs(row(0, bad, 1), SamplingParams(temperature=temperature), History([1], [0]))


def test_a_grammar_takes_what_it_forbids_out_before_the_filters() -> None:
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    allowed = np.array([False, True, True, True, True])  # longer than the row: a vocabulary's padding
    params = SamplingParams(temperature=1.0, top_p=0.8, logit_bias={0: 100})
    candidates = target_probs(logits, params, History(allowed=allowed))
    assert candidates.ids.tolist() == [1, 2]  # of 0.5, 0.33 and 0.17
    assert candidates.probs == pytest.approx([0.6, 0.4])
    cold = target_probs(logits, SamplingParams(temperature=0), History(allowed=allowed))
    assert cold.ids.tolist() == [1]
    assert target_probs(logits, SamplingParams(top_k=1), History(allowed=allowed)).ids.tolist() == [1]


@given(rows, filters, st.data())
def test_a_grammar_is_the_same_as_a_row_without_what_it_forbids(
    logits: list[float], params: SamplingParams, data: st.DataObject
) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits))))
    without = np.where(allowed, row(*logits), np.float32(-INF)).astype(np.float32)
    if without.max() == -INF:
        with pytest.raises(
            SurefootError, match=r"^position 1: every token that the grammar allows is banned"
        ):
            target_probs(row(*logits), params, History([1], allowed=allowed))
        return
    masked, wanted = target_probs(row(*logits), params, History(allowed=allowed)), by_sorting(without, params)
    assert masked.ids.tolist() == wanted.ids.tolist()
    assert masked.probs == pytest.approx(wanted.probs, rel=1e-12)


def test_a_prompts_logprobs_are_each_of_the_row_before() -> None:
    logits = np.stack([row(1, 3, 3, 0), row(0, 0, 5, 0)])
    first, second = prompt_logprobs_of([3, 2], logits, 2)
    assert (first.ids.tolist(), second.ids.tolist()) == ([1, 2], [2, 0])
    assert first.chosen == top_logprobs(logits[0], 3, 0).chosen
    assert second.chosen == second.values[0] == top_logprobs(logits[1], 2, 0).chosen
    with pytest.raises(ValueError, match="longer"):
        prompt_logprobs_of([3], logits, 2)


def test_top_logprobs_are_the_models_own() -> None:
    logits = row(1, 3, 3, -INF, 0)
    reported = top_logprobs(logits, chosen=4, count=3)
    expected = torch.from_numpy(logits).double().log_softmax(0)
    assert reported.ids.tolist() == [1, 2, 0]
    assert reported.values == pytest.approx(expected[[1, 2, 0]].tolist())
    assert reported.chosen == pytest.approx(float(expected[4]))


@pytest.mark.parametrize("count", [0, 5, 20])
def test_any_number_of_top_logprobs_can_be_asked_for(count: int) -> None:
    reported = top_logprobs(row(1, 3, 3, 2, 0), chosen=0, count=count)
    assert reported.ids.tolist() == [1, 2, 3, 0, 4][:count]
