"""Proofs: every branch of verify.py, weighed as fractions, adds up to the target's own law."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import exact, verify
from surefoot.exact import (
    Chances,
    Drafting,
    RowOf,
    chain,
    check_rule,
    fractions,
    outcomes,
    parse_probs,
    round_law,
    target_law,
    tree,
)
from surefoot.tree import ROOT, path_to
from surefoot.types import Draft, SurefootError, Verdict
from surefoot.verify import Row, Rule

RULES = {"rejection": verify.rejection, "block": verify.block}


def table(seed: int, vocab_size: int, zeros: float = 0.2) -> RowOf:
    """A random distribution of small denominators after every prefix, some entries zero."""
    rows: dict[tuple[int, ...], Row] = {}

    def row_of(prefix: tuple[int, ...]) -> Row:
        if prefix not in rows:
            source = random.Random(f"{seed} {prefix}")
            weights = [0 if source.random() < zeros else source.randint(1, 6) for _ in range(vocab_size)]
            weights[source.randrange(vocab_size)] += 1
            rows[prefix] = fractions(*(Fraction(weight, sum(weights)) for weight in weights))
        return rows[prefix]

    return row_of


def halves(lower: bool) -> RowOf:
    """On the first or the last two of four tokens: disjoint from the other."""
    row = fractions("1/3", "2/3", 0, 0) if lower else fractions(0, 0, "1/4", "3/4")
    return lambda prefix: row


PAIRS: dict[str, tuple[RowOf, RowOf]] = {
    "two tokens": (table(1, 2), table(2, 2)),
    "three tokens": (table(3, 3), table(4, 3)),
    "three tokens, no zeros": (table(5, 3, 0), table(6, 3, 0)),
    "three tokens, many zeros": (table(7, 3, 0.6), table(8, 3, 0.3)),
    "four tokens": (table(9, 4, 0.4), table(10, 4, 0.4)),
    "the same": (table(11, 3), table(11, 3)),
    "disjoint": (halves(True), halves(False)),
    "certain": (lambda prefix: fractions(0, 1, 0), table(12, 3, 0)),
    "certain draft": (table(13, 3, 0), lambda prefix: fractions(0, 1, 0)),
}


def prove(rule: Rule, drafting: Drafting, target: RowOf, length: int) -> None:
    law = round_law(rule, drafting, target, length)
    assert sum(law.values()) == 1
    assert law == target_law(target, length)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_sampled_chains_are_lossless(rule: str, length: int, pair: str) -> None:
    target, draft = PAIRS[pair]
    prove(RULES[rule], chain(draft, length), target, length + 1)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rule", RULES)
def test_chains_that_were_not_drawn_are_lossless(rule: str, pair: str) -> None:
    target, _ = PAIRS[pair]
    for tokens in ((0,), (1, 1), (1, 0, 1)):
        prove(RULES[rule], exact.given(tokens), target, len(tokens) + 1)


STOPS: dict[str, Callable[[tuple[int, ...]], bool]] = {
    "at a token that is kept": lambda tokens: tokens[-1:] == (1,),
    "before the first": lambda tokens: True,
    "by the length": lambda tokens: len(tokens) == 2,
    "by the sum so far": lambda tokens: sum(tokens) >= 2,
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("pair", ["two tokens", "three tokens", "three tokens, many zeros"])
@pytest.mark.parametrize("rule", RULES)
def test_drafts_that_stop_early_are_lossless(rule: str, pair: str, stop: str) -> None:
    target, draft = PAIRS[pair]
    prove(RULES[rule], chain(draft, 3, STOPS[stop]), target, 4)


SHAPES = [(1, 1), (2,), (3,), (2, 1), (1, 2), (2, 2), (3, 1), (1, 1, 2)]


@pytest.mark.parametrize("widths", SHAPES, ids=str)
@pytest.mark.parametrize("pair", ["two tokens", "three tokens", "three tokens, many zeros", "the same"])
def test_trees_drawn_without_replacement_are_lossless(pair: str, widths: tuple[int, ...]) -> None:
    target, draft = PAIRS[pair]
    prove(verify.rejection, tree(draft, widths), target, len(widths) + 1)


def independent_siblings(draft_probs: RowOf, count: int) -> Drafting:
    def drafting(chances: Chances) -> Draft:
        rows = [draft_probs(())] * count
        tokens = tuple(chances.pick(row) for row in rows)
        return Draft(tokens, (ROOT,) * count, np.array(rows, dtype=object))

    return drafting


@pytest.mark.parametrize("pair", ["three tokens", "three tokens, no zeros", "the same", "disjoint"])
def test_siblings_drawn_with_replacement_are_lossless(pair: str) -> None:
    target, draft = PAIRS[pair]
    for count in (2, 3):
        prove(verify.rejection, independent_siblings(draft, count), target, 2)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((0, 1), (-1, -1)), ((1, 1, 0), (-1, -1, -1)), ((0, 1, 1, 0), (-1, -1, 0, 0)), ((1, 0, 1), (-1, 0, 0))],
)
def test_f6_top_k_trees_are_lossless_as_point_masses(
    pair: str, tokens: tuple[int, ...], parents: tuple[int, ...]
) -> None:
    target, _ = PAIRS[pair]
    prove(verify.rejection, exact.given(tokens, parents), target, 3)


@pytest.mark.parametrize("pair", PAIRS)
def test_coupled_verification_is_lossless_for_any_draft(pair: str) -> None:
    """The choices are the target's own draws, so only the bookkeeping can be wrong."""
    target, _ = PAIRS[pair]

    def rule(draft: Draft, target_probs: verify.TargetProbs, uniform: object, draw: object) -> Verdict:
        return verify.coupled(draft, lambda node: chances[0].pick(target_probs(node)))

    chances: list[Chances] = []

    def drafting(own: Chances) -> Draft:
        chances[:] = [own]
        return Draft((0, 1, 1, 0), (-1, -1, 0, 1))

    prove(rule, drafting, target, 3)


def expected_accepted(rule: Rule, drafting: Drafting, target: RowOf) -> Fraction:
    def play(chances: Chances) -> int:
        draft = drafting(chances)
        return len(exact.run(rule, draft, target, chances).path)

    return sum((weight * accepted for accepted, weight in outcomes(play)), Fraction(0))


@pytest.mark.parametrize("pair", PAIRS)
def test_block_never_accepts_less(pair: str) -> None:
    target, draft = PAIRS[pair]
    by_token, by_block = (expected_accepted(rule, chain(draft, 3), target) for rule in RULES.values())
    assert by_block >= by_token
    if pair in ("three tokens", "three tokens, no zeros"):
        assert by_block > by_token


@pytest.mark.parametrize("pair", PAIRS)
def test_block_gains_nothing_on_point_masses(pair: str) -> None:
    target, _ = PAIRS[pair]
    by_token, by_block = (expected_accepted(rule, exact.given((0, 1, 1)), target) for rule in RULES.values())
    assert by_block == by_token


def test_the_enumeration_weighs_every_branch() -> None:
    def play(chances: Chances) -> tuple[int, int]:
        first = chances.pick(fractions("1/2", 0, "1/2"))
        return first, chances.pick(fractions("1/3", "2/3")) if first else -1

    assert dict(outcomes(play)) == {
        (0, -1): Fraction(1, 2),
        (2, 0): Fraction(1, 6),
        (2, 1): Fraction(1, 3),
    }


def test_a_uniform_remembers_what_it_was_compared_with() -> None:
    def rule(draft: Draft, target_probs: object, uniform: verify.Uniform, draw: object) -> Verdict:
        first, second = uniform(0) < Fraction(1, 2), uniform(0) * 2 < Fraction(1, 2)
        return Verdict((), 2 * first + second, False, 1)

    law = round_law(rule, exact.given((0,)), halves(True), 1)
    assert law == {(3,): Fraction(1, 4), (2,): Fraction(1, 4), (0,): Fraction(1, 2)}


def test_total_variation() -> None:
    half = Fraction(1, 2)
    assert exact.total_variation({(0,): half, (1,): half}, {(1,): half, (2,): half}) == half
    assert exact.total_variation({(0,): Fraction(1)}, {(0,): Fraction(1)}) == 0


def check(target: str, draft: str) -> exact.RuleCheck:
    return check_rule(parse_probs("target", target), parse_probs("draft", draft))


def f(*values: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(value) for value in values)


@pytest.mark.parametrize("draft", ["0.2,0.5,0.3", "1/5, 1/2, 3/10", ".2,+.5,.30"])
def test_the_three_token_example(draft: str) -> None:
    result = check("0.6,0.3,0.1", draft)
    assert result.accepted == f("0.2", "0.3", "0.1")
    assert result.rejected == Fraction(2, 5)
    assert result.output == result.target_probs == f("0.6", "0.3", "0.1")
    assert result.rejection_acceptance == Fraction(3, 5)
    assert result.coupled_acceptance == Fraction(26, 45)


def test_equal_distributions_are_never_rejected() -> None:
    result = check("0.6,0.3,0.1", "0.6,0.3,0.1")
    assert result.accepted == result.output == result.target_probs
    assert [result.rejected, result.rejection_acceptance, result.coupled_acceptance] == [0, 1, 1]


def test_disjoint_distributions_are_always_rejected() -> None:
    result = check("0,1/3,2/3", "1,0,0")
    assert list(result.accepted) == [0, 0, 0]
    assert result.output == result.target_probs
    assert [result.rejected, result.rejection_acceptance, result.coupled_acceptance] == [1, 0, 0]


distributions = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any)


@given(distributions, distributions)
def test_coupled_acceptance_lies_between_its_bounds(target: list[int], draft: list[int]) -> None:
    result = check_rule(*(f(*(f"{w}/{sum(weights)}" for w in weights)) for weights in (target, draft)))
    distance = 1 - sum(map(min, result.target_probs, result.draft_probs))
    assert result.output == result.target_probs
    assert result.rejection_acceptance == 1 - distance
    assert (1 - distance) / (1 + distance) <= result.coupled_acceptance <= 1 - distance


@pytest.mark.parametrize(
    ("target", "draft", "complaint"),
    [
        ("0.6,0.3,0.2", "1,0,0", "target: the probabilities sum to 11/10; they must sum to 1"),
        ("0.5,0.5", "0.3,0.6", "draft: the probabilities sum to 9/10; they must sum to 1"),
        ("0.5,0.5", "0.2,0.3,0.5", "draft: 3 probabilities for the target's 2; both need as many"),
        ("1.5,-0.5", "1,0", "target: -1/2 is negative; a probability is at least 0"),
        ("0.5,half", "1,0", "target: 'half' is not a probability; write decimals or fractions"),
        ("", "1", "target: '' is not a probability"),
        ("0.5,0.5,", "1,0", "target: '' is not a probability"),
        ("1/0", "1", "target: '1/0' is not a probability"),
        ("1e999999999", "1", "target: '1e999999999' is not a probability"),
        ("nan", "1", "target: 'nan' is not a probability"),
    ],
)
def test_bad_probabilities_are_named(target: str, draft: str, complaint: str) -> None:
    with pytest.raises(SurefootError) as error:
        check(target, draft)
    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)


def test_the_table_says_it_all() -> None:
    text = exact.format_check(check("0.6,0.3,0.1", "0.2,0.5,0.3"))
    assert "    0     3/5    1/5       1/5     3/5" in text.splitlines()
    for part in ("2/5 = 0.4000", "equals the target", "3/5 = 0.6000", "26/45 = 0.5778", "single step only"):
        assert part in text


def test_a_law_that_differs_is_said_to_differ() -> None:
    right = check("1/2,1/2", "1/2,1/2")
    wrong = exact.RuleCheck(
        right.target_probs,
        right.draft_probs,
        right.accepted,
        Fraction(0),
        f("1", "0"),
        Fraction(1),
        Fraction(1),
    )
    assert "DIFFERS" in exact.format_check(wrong)


def test_a_drawn_tree_has_no_equal_siblings() -> None:
    for draft, _ in outcomes(tree(table(5, 3, 0), (2, 2))):
        assert draft.parents is not None
        assert len({(draft.parents[n], draft.tokens[n]) for n in range(6)}) == 6
        assert [len(path_to(draft.parents, n)) for n in range(6)] == [1, 1, 2, 2, 2, 2]
