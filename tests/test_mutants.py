"""Every check must fail what it is there to fail: known faults, one by one, and how far off each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from surefoot import SamplingParams, noise, oracle, plain_decode, speculative_decode, verify
from surefoot.audit.broken import drafts, rules
from surefoot.audit.broken.models import Stale
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.exact import (
    Chances,
    Drafting,
    RowOf,
    chain,
    fractions,
    given,
    round_law,
    target_law,
    total_variation,
    tree,
)
from surefoot.models.toy import ToyModel, probability_table, random_table
from surefoot.types import Draft
from surefoot.verify import Rule
from tests import mutants
from tests.mutants import decoding_law, trimmed

Caught = Callable[[str, str, str], None]


def after_any(*values: str) -> RowOf:
    row = fractions(*values)
    return lambda prefix: row


TARGET = after_any("0.6", "0.3", "0.1")
DRAFT = after_any("0.2", "0.5", "0.3")
SHARPER = after_any("0.1", "0.7", "0.2")  # what a draft of lower temperature would say
RAW_TARGET = after_any("0.5", "0.25", "0.25")
TOP_2_TARGET = after_any("2/3", "1/3", "0")
F1_TARGET = after_any("0.5", "0.3", "0.2")
F1_DRAFT = after_any("0.6", "0.3", "0.1")
DSPARK_TARGET = after_any("0.7", "0.3")
DSPARK_DRAFT = after_any("0.5", "0.5")
TILTED = after_any("0.7", "0.2", "0.1")

Enumerated = tuple[Rule, Drafting, RowOf, int]
FLAT_TARGET = after_any("0.4", "0.35", "0.25")  # two tokens for which the draft says too little
FLAT_DRAFT = after_any("0.2", "0.2", "0.6")
TREE = tree(FLAT_DRAFT, (2, 2))

MUTANTS: dict[str, Enumerated] = {
    "draft recorded with another temperature's q": (
        verify.rejection,
        mutants.recorded_as(chain(DRAFT, 2), SHARPER),
        TARGET,
        3,
    ),
    "draft paired with another request's q": (
        verify.block,
        mutants.recorded_as(chain(DRAFT, 2), after_any("0.5", "0.1", "0.4")),
        TARGET,
        3,
    ),
    "argmax draft tested with full q (F1)": (
        verify.rejection,
        mutants.argmax_with_full_probs(F1_DRAFT, 2),
        F1_TARGET,
        3,
    ),
    "bonus without the transforms": (rules.bonus_from(RAW_TARGET), chain(DRAFT, 1), TOP_2_TARGET, 2),
    "first draft token never verified (D3)": (rules.first_token_unverified, chain(DRAFT, 2), TARGET, 3),
    "block: stops at the first failure": (rules.block_with(early_break=True), chain(DRAFT, 3), TARGET, 4),
    "block: recovers as by tokens": (
        rules.block_with(token_residual=True),
        chain(FLAT_DRAFT, 3),
        FLAT_TARGET,
        4,
    ),
    "tree: original q in the ratio": (rules.recursive(ratio_by_eldest=True), TREE, FLAT_TARGET, 3),
    "tree: original q in the residual": (rules.recursive(residual_by_eldest=True), TREE, FLAT_TARGET, 3),
    "tree: no residual": (rules.recursive(residual=False), TREE, FLAT_TARGET, 3),
    "tree: drawn siblings sorted by q": (
        verify.rejection,
        mutants.siblings(TILTED, 2, drafts.likeliest_first),
        TARGET,
        2,
    ),
    "tree: drawn child pruned by its own q": (
        verify.rejection,
        mutants.siblings(DRAFT, 2, drafts.without_unlikely),
        TARGET,
        2,
    ),
    "tree: top-k taken for samples (F6)": (
        verify.rejection,
        mutants.siblings(DRAFT, 2, drafts.likeliest_of_all),
        TARGET,
        2,
    ),
    "length: unlikely token dropped": (
        verify.rejection,
        trimmed(chain(DRAFT, 3), drafts.without_unlikely_token),
        TARGET,
        4,
    ),
    "length: unlikely token dropped, block": (
        verify.block,
        trimmed(chain(DRAFT, 3), drafts.without_unlikely_token),
        TARGET,
        4,
    ),
    "length: best prefix": (verify.rejection, trimmed(chain(DRAFT, 3), drafts.best_prefix), TARGET, 4),
    "length: best rate over all lengths": (
        verify.rejection,
        trimmed(chain(DRAFT, 3), drafts.best_rate),
        TARGET,
        4,
    ),
}


def off_by(rule: Rule, drafting: Drafting, target: RowOf, length: int) -> Fraction:
    return total_variation(round_law(rule, drafting, target, length), target_law(target, length))


@pytest.mark.parametrize("name", MUTANTS)
def test_enumeration_catches(name: str, caught: Caught) -> None:
    distance = off_by(*MUTANTS[name])
    assert distance > Fraction(1, 1000)
    caught(name, "enumeration", f"TV {float(distance):.4f}")


SAME_AS_MUTATED: dict[str, Enumerated] = {
    "recorded as drawn": (verify.block, mutants.recorded_as(chain(DRAFT, 2), DRAFT), TARGET, 3),
    "argmax as a point mass": (verify.rejection, given((0, 0)), F1_TARGET, 3),
    "bonus with the transforms": (rules.bonus_from(TOP_2_TARGET), chain(DRAFT, 1), TOP_2_TARGET, 2),
    "block written again": (rules.block_with(), chain(DRAFT, 3), TARGET, 4),
    "recursive rejection written again": (rules.recursive(), TREE, FLAT_TARGET, 3),
    "siblings in draw order": (
        verify.rejection,
        mutants.siblings(TILTED, 2, lambda tokens, row: tokens),
        TARGET,
        2,
    ),
    "top-k as point masses": (verify.rejection, given((1, 2), (-1, -1)), TARGET, 2),
    "unlikely token kept": (
        verify.rejection,
        trimmed(chain(DRAFT, 3), lambda probs: drafts.up_to_an_unlikely_token(probs, keep=True)),
        TARGET,
        4,
    ),
    "unlikely token kept, block": (
        verify.block,
        trimmed(chain(DRAFT, 3), lambda probs: drafts.up_to_an_unlikely_token(probs, keep=True)),
        TARGET,
        4,
    ),
}


@pytest.mark.parametrize("name", SAME_AS_MUTATED)
def test_enumeration_passes_the_same_without_the_fault(name: str) -> None:
    assert off_by(*SAME_AS_MUTATED[name]) == 0


def test_dropping_is_lossless_from_a_draft_that_knows_it() -> None:
    """Drawn from what would be kept, or with the remaining mass not drawn at all: nothing is dropped."""
    row = DRAFT(())
    kept = row * (row >= drafts.UNLIKELY)
    mass = kept.sum()

    def drafting(chances: Chances) -> Draft:
        if chances.pick([1 - mass, mass]) == 0:
            return Draft()
        return Draft((chances.pick(kept / mass),), probs=mutants.rows_of([kept / mass]))

    assert off_by(verify.rejection, drafting, TARGET, 2) == 0


def test_the_published_example_of_a_global_argmax_is_reproduced(caught: Caught) -> None:
    """p = (.7, .3), q = (.5, .5): submitting the draft only when it is token 0 gives (.85, .15) (DSpark,
    appendix A)."""

    def drafting(chances: Chances) -> Draft:
        draft = chain(DSPARK_DRAFT, 1)(chances)
        return draft if draft.tokens == (0,) else Draft()

    law = round_law(verify.rejection, drafting, DSPARK_TARGET, 2)
    first = sum((weight for tokens, weight in law.items() if tokens[0] == 0), Fraction(0))
    assert first == Fraction(17, 20)
    caught("length: token seen before it is submitted", "enumeration", "(.85, .15) for (.7, .3)")


AT_EQUALITY = rules.by_tokens(accepts=rules.accepts_at_equality)
UNGUARDED = rules.by_tokens(recovers=rules.recovers_without_a_guard)


def forced(rule: Rule, target: list[float], draft: list[float], token: int, uniform: float) -> list[float]:
    """The row that the next token is drawn from when the uniform is as given; of an accepted token none."""
    drawn: list[list[float]] = []

    def draw(row: verify.Row, node: int) -> int:
        drawn.append(row.tolist())
        return 0

    verdict = rule(
        Draft((token,), probs=np.array([draft])), lambda node: np.array(target), lambda node: uniform, draw
    )
    return [] if verdict.path else drawn[0]


def test_acceptance_of_an_impossible_token_is_caught(caught: Caught) -> None:
    target, draft = [0.0, 1.0], [0.5, 0.5]
    assert forced(AT_EQUALITY, target, draft, token=0, uniform=0.0) == []
    assert forced(verify.rejection, target, draft, token=0, uniform=0.0) == [0, 1]
    assert forced(verify.block, target, draft, token=0, uniform=0.0) == [0, 1]
    caught("u ≤ p/q at u = 0", "forced uniform", "accepts a token of probability 0")


def test_a_residual_without_mass_is_caught(caught: Caught) -> None:
    row = [0.25, 0.75]
    assert np.isnan(forced(UNGUARDED, row, row, token=0, uniform=1.0)).all()
    assert forced(verify.rejection, row, row, token=0, uniform=1.0) == row
    assert forced(verify.block, row, row, token=0, uniform=1.0) == row
    caught("residual without mass (p = q)", "forced uniform", "NaN")


EVEN, TILTED_COIN = fractions("0.5", "0.5"), fractions("0.8", "0.2")
EVEN_LAW = {tokens: Fraction(1, 16) for tokens in product((0, 1), repeat=4)}


def always_three(dropped: tuple[int, ...]) -> int:
    return 3


def by_dropped_tail(dropped: tuple[int, ...]) -> int:
    return 0 if dropped[:1] == (1,) else 3


@pytest.mark.parametrize(
    ("name", "rule", "budget"),
    [
        ("noise by position: block verification", verify.block, always_three),
        ("noise by position: token rule, length by dropped tail", verify.rejection, by_dropped_tail),
    ],
)
def test_reused_noise_is_caught(name: str, rule: Rule, budget: mutants.LengthRule, caught: Caught) -> None:
    distance = total_variation(decoding_law(rule, EVEN, TILTED_COIN, 4, budget, reuse=True), EVEN_LAW)
    assert distance > Fraction(1, 100)
    assert decoding_law(rule, EVEN, TILTED_COIN, 4, budget, reuse=False) == EVEN_LAW
    caught(name, "enumeration", f"TV {float(distance):.4f}")


def test_reused_noise_hides_behind_the_token_rule_with_a_fixed_length() -> None:
    assert decoding_law(verify.rejection, EVEN, TILTED_COIN, 4, always_three, reuse=True) == EVEN_LAW


def chi_square_of_block(runs: int) -> float:
    """Of the joint law of 4 tokens, 15 degrees of freedom."""
    target, draft = probability_table({(): [0.5, 0.5]}), probability_table({(): [0.8, 0.2]})
    params = [SamplingParams(max_tokens=7, temperature=1.0, top_p=1.0, seed=seed) for seed in range(runs)]
    counts = Counter(tuple(speculative_decode(target, draft, [0], 3, p, mode="block")[:4]) for p in params)
    return float(stats.chisquare([counts[tokens] for tokens in EVEN_LAW]).statistic)


def test_the_decoder_with_reused_noise_fails_the_statistics(
    monkeypatch: pytest.MonkeyPatch, caught: Caught
) -> None:
    runs = 2_000
    limit = float(stats.chi2.ppf(1 - 1e-6, 15))
    assert chi_square_of_block(runs) < float(stats.chi2.ppf(1 - 1e-2, 15))

    def by_position(seed: int, choice: int, start: int, node: int, stream: noise.Stream) -> noise.Key:
        return noise.round_key(seed, choice, 0, start + node, stream)

    monkeypatch.setattr(oracle, "round_key", by_position)
    biased = chi_square_of_block(runs)
    assert biased > limit
    caught("noise by position: block verification", f"χ²(15), {runs} runs", f"{biased:.0f}")


def test_stale_keys_after_a_rollback_are_caught(caught: Caught) -> None:
    table, vocab_size = random_table(16, order=3, seed=4), 16
    other = random_table(16, order=1, seed=5)

    def guess(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row: NDArray[np.float32] = np.asarray(table(prefix)) + np.asarray(other(prefix))
        return row

    params = SamplingParams(max_tokens=60, seed=3)
    plain = tuple(plain_decode(table, [1, 2, 3], params))
    texts = [
        Engine(model, ModelDrafter(ToyModel(guess, vocab_size)), draft_tokens=4).generate([[1, 2, 3]], params)
        for model in (ToyModel(table, vocab_size), Stale(ToyModel(table, vocab_size)))
    ]
    right, wrong = (text[0].token_ids for text in texts)
    assert right == plain
    assert wrong != plain
    off = sum(a != b for a, b in zip(wrong, plain, strict=True))
    caught("stale keys after a rollback", "engine", f"{off} of {len(plain)} tokens differ")
