"""What is chosen inside a drafted block: distributions, processors, logprobs, seeds, neighbours, ties."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.toy import LogitsOf, ToyModel, probability_table, random_table
from surefoot.sampling import History
from surefoot.trace import Event
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, VerifyMode
from tests.conftest import Caught
from tests.harness import Scripted, assert_same, bushy, expected, ids, knowing, letters

SIZE = 16
TABLE = random_table(SIZE, 2, seed=1)
PROMPT = [3, 1, 4, 1, 5]


def toy(logits_of: LogitsOf = TABLE) -> ToyModel:
    return ToyModel(logits_of, SIZE)


def half_right(prompt: list[int], params: SamplingParams, logits_of: LogitsOf = TABLE) -> Drafter:
    """Drafts what plain decoding will say, and in some rounds goes wrong at some index."""
    answer = [*prompt, *expected(logits_of, prompt, params).token_ids]
    return Scripted(knowing([answer], lambda length: length % 4))


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_f2_filters_apply_to_drafted_positions(verify: VerifyMode) -> None:
    """Token 3 is the drafter's favourite, and outside of what the target may say."""
    target = toy(probability_table({(): [0.4, 0.3, 0.2, 0.1] + [0] * (SIZE - 4)}))
    draft = toy(probability_table({(): [0.1, 0.1, 0.1, 0.7] + [0] * (SIZE - 4)}))
    engine = Engine(target, ModelDrafter(draft), draft_tokens=3, verify=verify)
    params = [SamplingParams(seed=s, temperature=1, top_p=0.6, top_k=2, max_tokens=40) for s in range(40)]
    said = [token for result in engine.generate([PROMPT] * 40, params) for token in result.token_ids]
    assert set(said) == {0, 1}
    share = said.count(0) / len(said)  # 4/7 ± 4.5 standard deviations
    assert abs(share - 4 / 7) < 4.5 * (4 / 7 * 3 / 7 / len(said)) ** 0.5


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_f3_speculation_is_not_silently_greedy(verify: VerifyMode) -> None:
    engine = Engine(toy(), ModelDrafter(toy()), draft_tokens=3, verify=verify)
    params = [SamplingParams(seed=seed, temperature=2, max_tokens=3) for seed in range(300)]
    said = [result.token_ids for result in engine.generate([PROMPT] * 300, params)]
    for position in range(3):
        assert len({tokens[position] for tokens in said}) > 5


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_f7_temperatures_0_1_and_nearly_0_share_a_batch(verify: VerifyMode) -> None:
    engine = Engine(toy(), ModelDrafter(toy(random_table(SIZE, 1, seed=2))), draft_tokens=3, verify=verify)
    params = [SamplingParams(seed=7, temperature=t, max_tokens=30) for t in (0, 1, 1e-6)]
    cold, warm, nearly = engine.generate([PROMPT] * 3, params)
    assert_same(cold.choices[0], expected(TABLE, PROMPT, params[0]))
    assert nearly.token_ids == cold.token_ids != warm.token_ids


def greeting(prefix: tuple[int, ...]) -> NDArray[np.float32]:
    """Loves token 1, then 2."""
    row = np.zeros(SIZE, np.float32)
    row[[1, 2]] = 2.0, 1.5
    return row


PENALISED = SamplingParams(temperature=0, max_tokens=6, presence_penalty=1.0)


def hello_hello() -> Engine:
    return Engine(toy(greeting), Scripted(lambda tokens, budget: Draft((1,) * budget)), draft_tokens=3)


def test_g1_each_row_is_penalised_with_the_drafts_before_it() -> None:
    wanted = expected(greeting, PROMPT, PENALISED)
    assert wanted.token_ids[:3] == (1, 2, 1)
    assert_same(hello_hello().generate(PROMPT, PENALISED)[0].choices[0], wanted)
    engine = Engine(toy(greeting), half_right(PROMPT, PENALISED, greeting), draft_tokens=3)
    assert_same(engine.generate(PROMPT, PENALISED)[0].choices[0], wanted)


def test_g1_a_row_that_forgets_the_drafts_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    wanted = expected(greeting, PROMPT, PENALISED).token_ids
    engine = Engine(toy(greeting), half_right(PROMPT, PENALISED, greeting), draft_tokens=3)
    monkeypatch.setattr(History, "then", lambda self, drafted: self)
    got = engine.generate(PROMPT, PENALISED)[0].token_ids
    assert got != wanted
    caught("penalties that forget the drafted prefix", "engine", f"{got} for {wanted}")


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("drafted", [(0,) * 6, (1, 1, 1, 0, 0, 0)])
def test_g3_min_tokens_counts_drafted_tokens(k: int, drafted: tuple[int, ...]) -> None:
    def always_ending(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(SIZE, np.float32)
        row[[0, 1]] = 9, 5
        return row

    model = ToyModel(always_ending, SIZE, eos_token_ids=(0,))
    engine = Engine(model, Scripted(lambda tokens, budget: Draft(drafted[:budget])), draft_tokens=k)
    result = engine.generate(PROMPT, SamplingParams(temperature=0, min_tokens=4, max_tokens=20))[0]
    assert (result.token_ids, result.finish_reason) == ((1, 1, 1, 1, 0), "stop")


@pytest.mark.parametrize("k", range(1, 7))
def test_g4_a_budget_that_ends_inside_a_block_cuts_exactly_there(k: int) -> None:
    """The penalty lets token 1 be said three times; all that is drafted is token 1."""

    def fond(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(SIZE, np.float32)
        row[[1, 2]] = 3.5, 1.0
        return row

    params = SamplingParams(temperature=0, max_tokens=12, frequency_penalty=1.0)
    engine = Engine(toy(fond), Scripted(lambda tokens, budget: Draft((1,) * budget)), draft_tokens=k)
    wanted = expected(fond, PROMPT, params)
    assert wanted.token_ids[:5] == (1, 1, 1, 2, 1)
    assert_same(engine.generate(PROMPT, params)[0].choices[0], wanted)


@pytest.mark.parametrize("k", range(1, 7))
def test_h1_logprobs_are_the_targets_one_per_token(k: int) -> None:
    params = SamplingParams(seed=11, temperature=1.5, max_tokens=30, logprobs=3)
    engine = Engine(toy(), half_right(PROMPT, params), draft_tokens=k)
    result = engine.generate(PROMPT, params)[0]
    assert 0 < result.stats.accepted_tokens < result.stats.draft_tokens
    assert_same(result.choices[0], expected(TABLE, PROMPT, params))
    assert result.logprobs
    for token, logprobs in zip(result.token_ids, result.logprobs, strict=True):
        assert logprobs.chosen < 0
        assert len(logprobs.ids) == 3
        if token in logprobs.ids:
            assert logprobs.chosen == logprobs.values[logprobs.ids.tolist().index(token)]


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_i1_a_seed_repeats_a_text_and_another_changes_it(verify: VerifyMode) -> None:
    engine = Engine(toy(), ModelDrafter(toy(random_table(SIZE, 1, seed=2))), draft_tokens=3, verify=verify)
    first, again, other = (
        engine.generate(PROMPT, SamplingParams(seed=s, max_tokens=30))[0].token_ids for s in (1, 1, 2)
    )
    assert first == again != other


def test_i1_a_seed_that_was_drawn_is_reported_and_repeats_the_text() -> None:
    engine = Engine(toy())
    first, second = engine.generate([PROMPT] * 2, SamplingParams(max_tokens=30))
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = engine.generate(PROMPT, SamplingParams(max_tokens=30, seed=first.seed))[0]
    assert (again.token_ids, again.seed) == (first.token_ids, first.seed)


def test_i2_seeded_requests_do_not_notice_an_unseeded_neighbour() -> None:
    for k in (1, 3, 6):
        engine = Engine(toy(), ModelDrafter(toy(random_table(SIZE, 1, seed=2))), draft_tokens=k)
        seeds = (1, None, 2)
        params = [SamplingParams(seed=seed, max_tokens=10 * (i + 1)) for i, seed in enumerate(seeds)]
        results = engine.generate([PROMPT, PROMPT[:2], PROMPT[:3]], params)
        for i in (0, 2):
            assert_same(results[i].choices[0], expected(TABLE, results[i].prompt_token_ids, params[i]))


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_i4_ragged_drafts_in_any_order_give_what_each_gives_alone(verify: VerifyMode) -> None:
    """Drafts of 0, 1 and 4 tokens, by the first token of the prompt."""
    answers = {(a, b): [a, b] for a in range(3) for b in range(4)}
    lengths = (0, 1, 4)

    def script(tokens: Sequence[int], budget: int) -> Draft:
        size = min(lengths[tokens[0]], budget)
        return Draft(tuple((t + len(tokens)) % SIZE for t in range(size)))

    def engine() -> Engine:
        return Engine(toy(), Scripted(script), draft_tokens=4, verify=verify, max_requests=5, max_rows=9)

    params = SamplingParams(seed=3, temperature=2, max_tokens=25)
    alone = {prompt: engine().generate(prompt, params)[0].token_ids for prompt in answers}
    for shuffle in range(3):
        prompts = list(answers)
        random.Random(shuffle).shuffle(prompts)
        for prompt, result in zip(prompts, engine().generate(prompts, params), strict=True):
            assert result.token_ids == alone[prompt]


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_i5_choices_are_equal_at_temperature_0_and_differ_above(verify: VerifyMode) -> None:
    engine = Engine(toy(), ModelDrafter(toy(random_table(SIZE, 1, seed=2))), draft_tokens=3, verify=verify)
    cold = engine.generate(PROMPT, SamplingParams(temperature=0, n=2, max_tokens=20))[0]
    assert cold.choices[0].token_ids == cold.choices[1].token_ids
    warm = engine.generate(PROMPT, SamplingParams(seed=1, n=3, max_tokens=20))[0]
    assert len({choice.token_ids for choice in warm.choices}) == 3
    assert [choice.index for choice in warm.choices] == [0, 1, 2]
    assert warm.usage.completion_tokens == sum(len(choice.token_ids) for choice in warm.choices) == 60
    assert warm.usage.prompt_tokens == len(PROMPT)


def test_i5_every_choice_is_what_plain_decoding_chooses() -> None:
    params = SamplingParams(seed=1, n=4, max_tokens=20)
    engine = Engine(toy(), "ngram", max_requests=3)
    for choice in engine.generate(PROMPT, params)[0].choices:
        assert_same(choice, expected(TABLE, PROMPT, params, choice=choice.index))


@pytest.mark.parametrize("drafted", [(4, 9, 4, 9), (9, 4, 9, 4), (9, 9, 9, 9)])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1, "top_k": 1}])
@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_o1_an_exact_tie_goes_to_the_lowest_id(
    drafted: tuple[int, ...], params: dict[str, float], verify: VerifyMode
) -> None:
    def tied(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(SIZE, np.float32)
        row[[4, 9]] = 3
        return row

    engine = Engine(
        toy(tied), Scripted(lambda tokens, budget: Draft(drafted[:budget])), draft_tokens=4, verify=verify
    )
    result = engine.generate(PROMPT, SamplingParams(max_tokens=12, **params))[0]  # type: ignore[arg-type]
    assert result.token_ids == (4,) * 12


def test_p3_requests_share_passes() -> None:
    events: list[Event] = []
    engine = Engine(toy(), ModelDrafter(toy()), draft_tokens=3, trace=events.append)
    results = engine.generate([PROMPT] * 4, [SamplingParams(seed=s, max_tokens=21) for s in range(4)])
    assert [result.stats.rounds for result in results] == [5] * 4
    assert len({event.round for event in events}) == 6
    assert results[0].stats.verify_ms == results[1].stats.verify_ms  # a round's time is everyone's


def test_a_tree_is_walked_along_the_targets_own_choices() -> None:
    params = SamplingParams(seed=5, max_tokens=31)
    answer = [*PROMPT, *expected(TABLE, PROMPT, params).token_ids]
    events: list[Event] = []
    drafter = Scripted(bushy(knowing([answer]), SIZE))
    result = Engine(toy(), drafter, draft_tokens=6, trace=events.append).generate(PROMPT, params)[0]
    assert list(result.token_ids) == answer[len(PROMPT) :]
    assert result.stats.mean_acceptance_length > 3
    assert any(event.path != tuple(range(len(event.path))) for event in events)


def test_bad_words_are_never_said_across_drafts() -> None:
    params = SamplingParams(temperature=0, max_tokens=12, bad_words=("ab",))

    def ab(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(32, np.float32)
        row[ids("b" if prefix[-1] == ids("a")[0] else "a")] = 5
        row[ids("z")] = 2
        return row

    engine = Engine(
        ToyModel(ab, 32),
        Scripted(lambda tokens, budget: Draft(tuple(ids("ababab")[:budget]))),
        tokenizer=letters(),
        draft_tokens=4,
    )
    assert engine.generate("z", params)[0].text == "azazazazazaz"
