"""Faults of `surefoot.audit.broken` where they can be enumerated: in one round, or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from surefoot.audit.broken import drafts
from surefoot.audit.broken.drafts import LengthOf, Rearranges, resubmitted
from surefoot.exact import Chances, Drafting, RowOf, ScriptedUniform, outcomes
from surefoot.types import Draft
from surefoot.verify import Row, Rule, exclude


def rows_of(rows: Iterable[Row]) -> Any:
    return np.array(list(rows), dtype=object)


def recorded_as(drafting: Drafting, told: RowOf) -> Drafting:
    """The draft says it was drawn from `told`, and it wasn't."""

    def lying(chances: Chances) -> Draft:
        draft = drafting(chances)
        return Draft(
            draft.tokens, draft.parents, rows_of(told(draft.tokens[:i]) for i in range(len(draft.tokens)))
        )

    return lying


def argmax_with_full_probs(draft_probs: RowOf, length: int) -> Drafting:
    def drafting(chances: Chances) -> Draft:
        tokens: tuple[int, ...] = ()
        for _ in range(length):
            tokens = (*tokens, int(np.argmax(draft_probs(tokens))))
        return Draft(tokens, probs=rows_of(draft_probs(tokens[:i]) for i in range(length)))

    return drafting


def siblings(draft_probs: RowOf, count: int, change: Rearranges) -> Drafting:
    """Children of the root, drawn without replacement, then changed in a way that looks at them."""

    def drafting(chances: Chances) -> Draft:
        original = row = draft_probs(())
        tokens = [chances.pick(row)]
        while len(tokens) < count:
            row = exclude(row, tokens[-1])
            tokens.append(chances.pick(row))
        return resubmitted(change(tokens, original), original)

    return drafting


def trimmed(drafting: Drafting, length_of: LengthOf) -> Drafting:
    """Cuts a drawn chain to the length found from the drawn tokens' own probabilities."""
    cut = drafts.trimmed(length_of)
    return lambda chances: cut([], [drafting(chances)])[0]


LengthRule = Callable[[tuple[int, ...]], int]
"""The draft tokens that the last round dropped → how many to draft now."""


def decoding_law(
    rule: Rule, target: Row, draft_probs: Row, length: int, budget: LengthRule, reuse: bool
) -> dict[tuple[int, ...], Fraction]:
    """The law of `length` tokens over as many rounds as it takes, both models looking at nothing.

    reuse: a position's drafting and accepting noise is the same in every round, as if keyed by position.
    """

    def play(chances: Chances) -> tuple[int, ...]:
        output: tuple[int, ...] = ()
        dropped: tuple[int, ...] = ()
        drawn: dict[int, int] = {}
        uniforms: dict[int, ScriptedUniform] = {}
        while len(output) < length:
            start = len(output)
            if not reuse:
                drawn, uniforms = {}, {}
            positions = range(start, start + budget(dropped))
            for position in positions:
                if position not in drawn:
                    drawn[position] = chances.pick(draft_probs)
                    uniforms[position] = ScriptedUniform(chances)
            tokens = tuple(drawn[position] for position in positions)
            verdict = rule(
                Draft(tokens, probs=rows_of([draft_probs] * len(tokens))),
                lambda node: target,
                [uniforms[position] for position in positions].__getitem__,
                lambda row, node: chances.pick(row),
            )
            output = (*output, *(tokens[node] for node in verdict.path), verdict.next_token)
            dropped = tokens[len(verdict.path) + 1 :]
        return output[:length]

    law: dict[tuple[int, ...], Fraction] = {}
    for tokens, weight in outcomes(play):
        law[tokens] = law.get(tokens, Fraction(0)) + weight
    return law
