"""Proofs by enumeration: the law of a round's tokens, as fractions, from the code that decodes.

`round_law` runs a rule of `verify.py` through every draft, both sides of every comparison with a uniform
and every token that can be drawn, and adds up what comes out. A uniform is an object that knows what it has
been compared with, so each branch weighs what the code's own threshold says. A rule is lossless for a round
exactly when the result, filled up with the target's own draws to a fixed length, equals `target_law`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from surefoot import verify
from surefoot.tree import ROOT, parents_of, path_to
from surefoot.types import Draft, SurefootError, Verdict
from surefoot.verify import Row, Rule, exclude

T = TypeVar("T")
Law = dict[tuple[int, ...], Fraction]
"""Token sequences → their probabilities."""

RowOf = Callable[[tuple[int, ...]], Row]
"""The tokens of this round so far → the next one's probabilities, [vocabulary] Fractions."""


def fractions(*values: Fraction | int | str) -> Row:
    """A row, [vocabulary], of exact numbers: `fractions("0.6", "3/10", "1/10")`."""
    return np.array([Fraction(value) for value in values], dtype=object)


class Chances:
    """One way through everything that is left to chance."""

    def __init__(self, planned: Sequence[int]) -> None:
        self.weight = Fraction(1)
        self.taken: list[int] = []
        self.missed: list[tuple[int, ...]] = []
        self._planned = planned

    def pick(self, weights: Sequence[Fraction] | Row) -> int:
        """An index of positive weight; the weights sum to 1."""
        open_to = [index for index, weight in enumerate(weights) if weight > 0]
        if len(self.taken) < len(self._planned):
            picked = self._planned[len(self.taken)]
        else:
            picked = open_to[0]
            self.missed += [(*self.taken, other) for other in open_to[1:]]
        self.taken.append(picked)
        self.weight *= weights[picked]
        return picked


def outcomes(play: Callable[[Chances], T]) -> Iterator[tuple[T, Fraction]]:
    """Every result of `play` with its probability; `play` takes all its chances from its argument."""
    plans: list[tuple[int, ...]] = [()]
    while plans:
        chances = Chances(plans.pop())
        result = play(chances)
        plans += chances.missed
        yield result, chances.weight


class ScriptedUniform:
    """A uniform number in (0, 1) of which only the comparisons so far are known."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self._low, self._high = Fraction(0), Fraction(1)

    def __mul__(self, factor: Any) -> _Scaled:
        return _Scaled(self, factor)

    __rmul__ = __mul__

    def __lt__(self, threshold: Any) -> bool:
        """Splits what is left of the interval at the threshold and goes to one of its sides."""
        split = min(max(Fraction(threshold), self._low), self._high)
        below = (split - self._low) / (self._high - self._low)
        is_below = self._chances.pick([1 - below, below]) == 1
        if is_below:
            self._high = split
        else:
            self._low = split
        return is_below


@dataclass(frozen=True)
class _Scaled:
    uniform: ScriptedUniform
    factor: Any

    def __lt__(self, threshold: Any) -> bool:
        return self.uniform < threshold / self.factor if self.factor > 0 else bool(threshold > 0)


Drafting = Callable[[Chances], Draft]
"""Draws a draft."""


def never(tokens: tuple[int, ...]) -> bool:
    """The stopping rule of a fixed length."""
    return False


def chain(draft_probs: RowOf, length: int, stop: Callable[[tuple[int, ...]], bool] = never) -> Drafting:
    """Draws a chain of at most `length` tokens; `stop` is asked before each draw, of the tokens kept."""

    def drafting(chances: Chances) -> Draft:
        tokens: tuple[int, ...] = ()
        rows: list[Row] = []
        while len(tokens) < length and not stop(tokens):
            rows.append(draft_probs(tokens))
            tokens = (*tokens, chances.pick(rows[-1]))
        return Draft(tokens, probs=np.array(rows, dtype=object))

    return drafting


def tree(draft_probs: RowOf, widths: Sequence[int]) -> Drafting:
    """Draws a tree: `widths[d]` children for every node of depth d, without replacement, while any are
    left."""

    def drafting(chances: Chances) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Row] = []
        level = [ROOT]
        for width in widths:
            below = []
            for node in level:
                row = draft_probs(tuple(tokens[i] for i in path_to(parents, node)))
                for left in range(min(width, int(np.count_nonzero(row))), 0, -1):
                    below.append(len(tokens))
                    tokens.append(chances.pick(row))
                    parents.append(node)
                    rows.append(row)
                    row = exclude(row, tokens[-1]) if left > 1 else row
            level = below
        return Draft(tuple(tokens), tuple(parents), np.array(rows, dtype=object))

    return drafting


def given(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Drafting:
    """A draft that was not drawn: an n-gram, an argmax, a top-k tree."""
    return lambda chances: Draft(tuple(tokens), None if parents is None else tuple(parents))


def round_law(rule: Rule, drafting: Drafting, target: RowOf, length: int) -> Law:
    """The law of the first `length` tokens when a round comes first and plain decoding fills up.

    length: at least the tokens a round can emit, its draft's depth plus one.
    """

    def play(chances: Chances) -> tuple[int, ...]:
        draft = drafting(chances)
        verdict = run(rule, draft, target, chances)
        return (*(draft.tokens[node] for node in verdict.path), verdict.next_token)

    law: Law = defaultdict(Fraction)
    for tokens, weight in outcomes(play):
        for rest, chance in target_law(target, length, tokens).items():
            law[rest] += weight * chance
    return dict(law)


def run(rule: Rule, draft: Draft, target: RowOf, chances: Chances) -> Verdict:
    """A rule's verdict, with its uniforms and draws left to `chances`."""
    parents = parents_of(draft.parents, len(draft.tokens))
    uniforms: dict[int, ScriptedUniform] = defaultdict(lambda: ScriptedUniform(chances))
    return rule(
        draft,
        lambda node: target(tuple(draft.tokens[i] for i in path_to(parents, node))),
        uniforms.__getitem__,
        lambda probs, node: chances.pick(probs),
    )


def target_law(target: RowOf, length: int, start: tuple[int, ...] = ()) -> Law:
    """The target's own law of `length` tokens, given that they begin with `start`."""
    if len(start) >= length:
        return {start: Fraction(1)}
    law: Law = {}
    for token, prob in enumerate(target(start)):
        if prob > 0:
            for tokens, weight in target_law(target, length, (*start, token)).items():
                law[tokens] = prob * weight
    return law


def total_variation(one: Law, other: Law) -> Fraction:
    """Half the sum of absolute differences: 0 for equal laws, 1 for disjoint ones."""
    keys = one.keys() | other.keys()
    return sum((abs(one.get(k, Fraction(0)) - other.get(k, Fraction(0))) for k in keys), Fraction(0)) / 2


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What the rules make of one drafted token, exactly.

    accepted: per token, the probability that it is drafted and accepted. rejected: that the drafted token
    is not. output: the law of the token that comes out. rejection_acceptance, coupled_acceptance: how often
    the drafted token stands under `rejection` and under `coupled` with shared noise.
    """

    target_probs: tuple[Fraction, ...]
    draft_probs: tuple[Fraction, ...]
    accepted: tuple[Fraction, ...]
    rejected: Fraction
    output: tuple[Fraction, ...]
    rejection_acceptance: Fraction
    coupled_acceptance: Fraction


def check_rule(target_probs: Sequence[Fraction], draft_probs: Sequence[Fraction]) -> RuleCheck:
    """Runs `verify.rejection` on a draft of one token, on both sides of each of its comparisons.

    Raises SurefootError unless both are distributions over the same number of tokens.
    """
    _check_distribution("target", target_probs)
    _check_distribution("draft", draft_probs)
    if len(target_probs) != len(draft_probs):
        raise SurefootError(
            f"draft: {len(draft_probs)} probabilities for the target's {len(target_probs)}; both need as many"
        )
    target, drafting = fractions(*target_probs), chain(lambda _: fractions(*draft_probs), 1)
    accepted = [Fraction(0) for _ in target_probs]
    output = [Fraction(0) for _ in target_probs]

    def play(chances: Chances) -> tuple[int, bool]:
        draft = drafting(chances)
        verdict = run(verify.rejection, draft, lambda _: target, chances)
        return (draft.tokens[0], True) if verdict.path else (verdict.next_token, False)

    for (token, stands), weight in outcomes(play):
        output[token] += weight
        if stands:
            accepted[token] += weight
    rate = sum(accepted, Fraction(0))
    return RuleCheck(
        tuple(target_probs),
        tuple(draft_probs),
        tuple(accepted),
        1 - rate,
        tuple(output),
        rate,
        coupled_acceptance(target_probs, draft_probs),
    )


def coupled_acceptance(target_probs: Sequence[Fraction], draft_probs: Sequence[Fraction]) -> Fraction:
    """How often two exponential races under one noise have the same winner.

    v wins both when E_w ≥ E_v · max(p_w / p_v, q_w / q_v) for every w, and an exponential beats others of
    rates r with probability 1 / Σr, its own rate of 1 included. Summed over v.
    """
    pairs = list(zip(target_probs, draft_probs, strict=True))
    return sum(
        (
            1 / sum((max(p / p_v, q / q_v) for p, q in pairs), Fraction(0))
            for p_v, q_v in pairs
            if p_v and q_v
        ),
        Fraction(0),
    )


def _check_distribution(name: str, probs: Sequence[Fraction]) -> None:
    for prob in probs:
        if prob < 0:
            raise SurefootError(f"{name}: {prob} is negative; a probability is at least 0")
    if sum(probs) != 1:
        raise SurefootError(f"{name}: the probabilities sum to {sum(probs)}; they must sum to 1")


def parse_probs(name: str, text: str) -> tuple[Fraction, ...]:
    """`"0.6,0.3,0.1"` or `"3/5,3/10,1/10"`, exactly. Raises SurefootError that begins with `name`."""
    return tuple(_parse(name, part.strip()) for part in text.split(","))


def _parse(name: str, text: str) -> Fraction:
    if not re.fullmatch(
        r"[+-]?([0-9]{1,99}/0*[1-9][0-9]{0,99}|[0-9]{1,99}\.?[0-9]{0,99}|\.[0-9]{1,99})", text
    ):
        raise SurefootError(
            f"{name}: {text!r} is not a probability; write decimals or fractions, as in 0.6,2/5"
        )
    return Fraction(text)


def format_check(check: RuleCheck) -> str:
    """A table for people."""
    columns = (check.target_probs, check.draft_probs, check.accepted, check.output)
    lines = [["token", "target", "draft", "accepted", "output"]]
    lines += [[str(token), *map(str, row)] for token, row in enumerate(zip(*columns, strict=True))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    exact = "equals the target" if check.output == check.target_probs else "DIFFERS from the target"
    return "\n".join(
        [
            *table,
            "",
            f"rejected              {_both(check.rejected)}",
            f"output                {exact}",
            f"acceptance, rejection {_both(check.rejection_acceptance)}",
            f"acceptance, coupled   {_both(check.coupled_acceptance)}",
            "",
            "This speaks of a single step only: one token drafted and verified, after one given text.",
        ]
    )


def _both(value: Fraction) -> str:
    return f"{value} = {float(value):.4f}" if value.denominator > 1 else str(value)
