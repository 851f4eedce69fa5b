"""The rules on small drafts whose outcome can be read off; that they are lossless stands in test_exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot import verify
from surefoot.types import Draft, Verdict

Row = NDArray[np.float64]
Rule = Callable[..., Verdict]


def probs(*rows: Sequence[float]) -> Row:
    return np.array(rows, np.float64)


class Target:
    """Choices or rows by node, and a record of what was asked for."""

    def __init__(self, answers: Mapping[int, int | Sequence[float]]) -> None:
        self.answers = answers
        self.asked: list[int] = []

    def choose(self, node: int) -> int:
        self.asked.append(node)
        answer = self.answers[node]
        assert isinstance(answer, int)
        return answer

    def row(self, node: int) -> Row:
        self.asked.append(node)
        return np.array(self.answers[node], np.float64)


def most_likely(weights: Row, node: int) -> int:
    assert weights.sum() == pytest.approx(1)
    return int(weights.argmax())


def decide(rule: Rule, draft: Draft, target: Target, uniforms: Sequence[float] | float) -> Verdict:
    values = [uniforms] * len(draft.tokens) if isinstance(uniforms, float) else uniforms
    return rule(draft, target.row, lambda node: values[node], most_likely)


TREE = Draft((5, 6, 7, 8, 7), parents=(-1, -1, 0, 0, 2))


@pytest.mark.parametrize(
    ("draft", "choices", "expected"),
    [
        (Draft((4, 5, 6)), {-1: 4, 0: 5, 1: 6, 2: 9}, Verdict((0, 1, 2), 9, True, 3)),
        (Draft((4, 5, 6)), {-1: 4, 0: 7}, Verdict((0,), 7, False, 2)),
        (Draft((4, 5, 6)), {-1: 1}, Verdict((), 1, False, 1)),
        (Draft(()), {-1: 3}, Verdict((), 3, True, 0)),
        (TREE, {-1: 5, 0: 7, 2: 7, 4: 1}, Verdict((0, 2, 4), 1, True, 3)),
        (TREE, {-1: 5, 0: 8, 3: 1}, Verdict((0, 3), 1, True, 3)),
        (TREE, {-1: 6, 1: 2}, Verdict((1,), 2, True, 2)),
        (TREE, {-1: 5, 0: 1}, Verdict((0,), 1, False, 3)),
        (TREE, {-1: 1}, Verdict((), 1, False, 2)),
        (Draft((5, 5, 9), parents=(-1, -1, 0)), {-1: 5, 0: 9, 2: 1}, Verdict((0, 2), 1, True, 2)),
    ],
)
def test_coupled_keeps_what_the_target_chooses(
    draft: Draft, choices: dict[int, int], expected: Verdict
) -> None:
    target = Target(choices)
    assert verify.coupled(draft, target.choose) == expected
    assert target.asked == list(choices)  # in order, each once, none past the first mismatch


def test_d3_a_wrong_draft_of_one_token_is_rejected() -> None:
    assert verify.coupled(Draft((4,)), Target({-1: 5}).choose) == Verdict((), 5, False, 1)
    for rule in (verify.rejection, verify.block):
        target = Target({-1: (0, 1), 0: (1, 0)})
        assert decide(rule, Draft((0,), probs=probs((1, 0))), target, 1e-9) == Verdict((), 1, False, 1)
        assert decide(rule, Draft((0,)), target, 1e-9) == Verdict((), 1, False, 1)


HALF = (0.5, 0.25, 0.25)


@pytest.mark.parametrize("rule", [verify.rejection, verify.block])
def test_an_empty_draft_is_plain_decoding(rule: Rule) -> None:
    assert decide(rule, Draft(()), Target({-1: HALF}), 0.5) == Verdict((), 0, True, 0)


@pytest.mark.parametrize(
    ("uniforms", "expected"),
    [
        ((0.49, 0.99, 0.1), Verdict((0, 1, 2), 0, True, 3)),
        ((0.51, 0.0, 0.0), Verdict((), 0, False, 1)),
        ((0.49, 0.99, 0.6), Verdict((0, 1), 1, False, 3)),
    ],
)
def test_rejection_at_its_thresholds(uniforms: Sequence[float], expected: Verdict) -> None:
    drafted = probs((0.25, 0.5, 0.25), (0.25, 0.5, 0.25), (0.5, 0.0, 0.5))  # ratios .5, 2 and .5
    target = Target(dict.fromkeys(range(-1, 3), HALF))
    assert decide(verify.rejection, Draft((1, 0, 2), probs=drafted), target, uniforms) == expected
    assert target.asked == list(range(-1, len(expected.path)))


def test_rejection_goes_on_from_what_the_draft_lacks() -> None:
    seen: list[Row] = []

    def draw(weights: Row, node: int) -> int:
        seen.append(weights)
        return node

    draft = Draft((1,), probs=probs((0.1, 0.6, 0.3)))
    verdict = verify.rejection(draft, lambda node: np.array([0.5, 0.3, 0.2]), lambda node: 0.99, draw)
    assert verdict == Verdict((), -1, False, 1)
    assert [row.tolist() for row in seen] == [pytest.approx([1, 0, 0])]


def test_f1_a_point_mass_is_kept_with_the_targets_probability() -> None:
    for uniform, kept in ((0.29, True), (0.31, False)):
        target = Target({-1: (0.5, 0.3, 0.2), 0: HALF})
        verdict = decide(verify.rejection, Draft((1,)), target, uniform)
        assert verdict == (Verdict((0,), 0, True, 1) if kept else Verdict((), 0, False, 1))


def test_siblings_are_tried_in_draft_order_against_what_is_left() -> None:
    """p = (.5, .3, .2): token 1 stands below .3, then token 0 below .5 / .7, then token 2 is certain."""
    draft = Draft((1, 0, 2), parents=(-1, -1, -1))
    rows = dict.fromkeys(range(-1, 3), HALF)
    for uniforms, path, tested in (
        ((0.29, 0.9, 0.9), (0,), 1),
        ((0.31, 0.71, 0.9), (1,), 2),
        ((0.31, 0.72, 0.999), (2,), 3),
    ):
        target = Target({**rows, -1: (0.5, 0.3, 0.2)})
        assert decide(verify.rejection, draft, target, uniforms) == Verdict(path, 0, True, tested)


def test_a_tree_that_runs_out_of_siblings_recovers_from_the_rest() -> None:
    drafted = probs((0.5, 0.5, 0.0), (0.0, 1.0, 0.0))
    draft = Draft((0, 1), parents=(-1, -1), probs=drafted)
    verdict = decide(verify.rejection, draft, Target({-1: (0.1, 0.1, 0.8)}), 0.99)
    assert verdict == Verdict((), 2, False, 2)


def test_block_looks_past_the_first_prefix_that_fails() -> None:
    """reach: .5, then 1 (p/q = 2); the second token passes whatever became of the first."""
    drafted = probs((0.5, 0.25, 0.25), (0.25, 0.5, 0.25))
    target = Target({-1: (0.25, 0.5, 0.25), 0: HALF, 1: HALF})
    assert decide(verify.block, Draft((0, 0), probs=drafted), target, (0.999, 0.999)) == Verdict(
        (0, 1), 0, True, 2
    )


def test_block_recovers_from_the_prefix_it_kept() -> None:
    drafted = probs((0.5, 0.5, 0.0), (0.9, 0.05, 0.05))
    target = Target({-1: (0.5, 0.5, 0.0), 0: (0.1, 0.8, 0.1), 1: HALF})
    verdict = decide(verify.block, Draft((0, 0), probs=drafted), target, (0.5, 0.99))
    assert verdict == Verdict((0,), 1, False, 2)


def test_block_asks_for_no_rows_once_nothing_can_be_kept() -> None:
    drafted = probs(HALF, HALF, HALF)
    target = Target({-1: (0.0, 1.0, 0.0)})
    assert decide(verify.block, Draft((0, 0, 0), probs=drafted), target, 0.0) == Verdict((), 1, False, 1)
    assert target.asked == [-1]


def test_block_refuses_trees_and_takes_chains_that_are_written_out() -> None:
    with pytest.raises(ValueError, match="chain"):
        decide(verify.block, TREE, Target({}), 0.5)
    draft = Draft((0,), parents=(-1,), probs=probs((1, 0, 0)))
    assert decide(verify.block, draft, Target({-1: HALF, 0: HALF}), 0.4).path == (0,)


@pytest.mark.parametrize("rule", [verify.rejection, verify.block])
@pytest.mark.parametrize("drafted", [True, False])
def test_a_token_of_no_probability_fails_at_every_uniform(rule: Rule, drafted: bool) -> None:
    for uniform in (0.0, 2.0**-53, 0.5, 1.0):
        draft = Draft((0,), probs=probs((0.5, 0.5)) if drafted else None)
        assert decide(rule, draft, Target({-1: (0.0, 1.0)}), uniform).path == ()


@pytest.mark.parametrize("rule", [verify.rejection, verify.block])
def test_equal_distributions_keep_everything_below_one_and_are_finite_at_it(rule: Rule) -> None:
    draft = Draft((0, 1), probs=probs(HALF, HALF))
    rows = dict.fromkeys(range(-1, 2), HALF)
    assert decide(rule, draft, Target(rows), 1 - 2.0**-53).path == (0, 1)
    verdict = decide(rule, draft, Target(rows), 1.0)  # out of range: the residual has no mass
    assert verdict.next_token == 0


@pytest.mark.parametrize("rule", [verify.rejection, verify.block])
def test_disjoint_distributions_keep_nothing(rule: Rule) -> None:
    draft = Draft((0,), probs=probs((1, 0, 0)))
    assert decide(rule, draft, Target({-1: (0, 0.4, 0.6), 0: HALF}), 2.0**-53) == Verdict((), 2, False, 1)


@pytest.mark.parametrize("rule", [verify.rejection, verify.block])
def test_rows_are_left_as_they_were(rule: Rule) -> None:
    drafted, rows = probs(HALF, HALF), {n: np.array([0.2, 0.4, 0.4]) for n in range(-1, 2)}
    for draft in (Draft((0, 1), probs=drafted), Draft((0, 1))):
        rule(draft, rows.__getitem__, lambda node: 0.9, lambda weights, node: 0)
    assert drafted.tolist() == [list(HALF)] * 2
    assert all(row.tolist() == [0.2, 0.4, 0.4] for row in rows.values())


def test_excluding_leaves_the_rest_normalised() -> None:
    row = np.array([0.5, 0.25, 0.25])
    assert verify.exclude(row, 0).tolist() == [0, 0.5, 0.5]
    assert row.tolist() == [0.5, 0.25, 0.25]
    with pytest.raises(ValueError, match="token 1 has all the probability"):
        verify.exclude(np.array([0.0, 1.0]), 1)
