"""Verification rules with a fault, over floats and Fractions alike: `exact.round_law` says how far off each
is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from surefoot import verify
from surefoot.exact import RowOf
from surefoot.tree import ROOT, children, parents_of
from surefoot.types import Draft, Verdict
from surefoot.verify import DrawFrom, Row, Rule, TargetProbs, Uniform

Accepts = Callable[[Any, Any, Any], bool]
"""(uniform, the target's probability, the draft's) → whether a drafted token stands."""

Recovers = Callable[[Row, Row, Any], Row]
"""(the target's row, the draft's, how far the prefix before it may be kept) → the correction's weights."""


def accepts(uniform: Any, target: Any, drafted: Any) -> bool:
    return bool(uniform * drafted < target)


def recovers(target: Row, drafted: Row, reach: Any) -> Row:
    excess = np.maximum(target - drafted, 0)
    return excess / excess.sum() if excess.sum() > 0 else target


def by_tokens(accepts: Accepts = accepts, recovers: Recovers = recovers) -> Rule:
    """`verify.rejection` for chains again, with its two steps given."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        size = len(draft.tokens)
        reach: Any = 1
        for node, token in enumerate(draft.tokens):
            target = target_probs(node - 1)
            drafted = _row(draft, node, target)
            if not accepts(uniform(node), target[token], drafted[token]):
                row = recovers(target, drafted, reach)
                return Verdict(tuple(range(node)), draw(row, node - 1), bonus=False, tested=node + 1)
            reach = min(1, reach * target[token] / drafted[token])
        return Verdict(tuple(range(size)), draw(target_probs(size - 1), size - 1), bonus=True, tested=size)

    return rule


def _row(draft: Draft, node: int, target: Row) -> Row:
    """What a node was drawn from; for one that was not drawn the point mass."""
    if draft.probs is not None:
        row: Row = draft.probs[node]
        return row
    row = np.zeros_like(target)
    row[draft.tokens[node]] = 1
    return row


def accepts_if_likelier(uniform: Any, target: Any, drafted: Any) -> bool:
    """Without a coin: p ≥ q."""
    return bool(target >= drafted)


def accepts_at_equality(uniform: Any, target: Any, drafted: Any) -> bool:
    """u ≤ p / q, so that u = 0 accepts what has no probability."""
    return bool(uniform * drafted <= target)


def accepts_what_is_typical(uniform: Any, target: Any, drafted: Any) -> bool:
    """Whatever the target finds likely enough (Medusa's typical acceptance, with a fixed threshold)."""
    return bool(target * 10 >= 1)


def recovers_from_target(target: Row, drafted: Row, reach: Any) -> Row:
    """Draws again from p, as if the rejection said nothing."""
    return target


def recovers_without_a_guard(target: Row, drafted: Row, reach: Any) -> Row:
    """norm((p − q)+) whatever its mass (Sequoia ends a generation on the NaN)."""
    excess = np.maximum(target - drafted, 0)
    with np.errstate(invalid="ignore"):
        row: Row = excess / excess.sum()
    return row


def recovers_unnormalised(target: Row, drafted: Row, reach: Any) -> Row:
    """(p − q)+ as it is: only a draw that takes its sum for 1 is led astray."""
    row: Row = np.maximum(target - drafted, 0)
    return row


def recovers_as_by_blocks(target: Row, drafted: Row, reach: Any) -> Row:
    """(reach · p − q)+, which is right for the rule that tests whole blocks."""
    return recovers(reach * target, drafted, 1)


def recursive(ratio_by_eldest: bool = False, residual_by_eldest: bool = False, residual: bool = True) -> Rule:
    """Recursive rejection again, with the row of the eldest sibling (the original q) in the wrong places. For
    drawn tokens; others are verified as they should be."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        if draft.probs is None:
            return verify.rejection(draft, target_probs, uniform, draw)
        below = children(parents_of(draft.parents, len(draft.tokens)))
        path: list[int] = []
        node = ROOT
        while True:
            target, siblings = target_probs(node), below[node]
            for child in siblings:
                token = draft.tokens[child]
                tested = draft.probs[siblings[0] if ratio_by_eldest else child]
                if accepts(uniform(child), target[token], tested[token]):
                    node = child
                    path.append(child)
                    break
                if residual:
                    target = recovers(target, draft.probs[siblings[0] if residual_by_eldest else child], 1)
            else:
                return Verdict(tuple(path), draw(target, node), bonus=not siblings, tested=0)

    return rule


def bonus_from(raw_target: RowOf) -> Rule:
    """The bonus comes from the target's row before the sampling transforms (EAGLE v1)."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        last = len(draft.tokens) - 1
        raw = raw_target(draft.tokens)
        return verify.rejection(
            draft, target_probs, uniform, lambda row, node: draw(raw if node == last else row, node)
        )

    return rule


def first_token_unverified(
    draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom
) -> Verdict:
    """The first draft token stands whenever the target could say it (lattice #243)."""
    return verify.rejection(draft, target_probs, lambda node: uniform(node) if node else 0, draw)


def one_uniform(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
    """One coin for the whole draft."""
    return verify.rejection(draft, target_probs, lambda node: uniform(0), draw)


def block_with(early_break: bool = False, token_residual: bool = False) -> Rule:
    """Block verification again, that stops at the first prefix that fails, or recovers as by tokens.

    For drawn tokens; others are verified as they should be.
    """

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        if draft.probs is None:
            return verify.rejection(draft, target_probs, uniform, draw)
        size = len(draft.tokens)
        rows = [target_probs(node) for node in range(-1, size)]
        reaches: list[Any] = [1]
        for node, token in enumerate(draft.tokens):
            ratio = rows[node][token] / draft.probs[node][token]
            reaches.append(min(1, reaches[-1] * ratio))
        excesses = [np.maximum(r * p - q, 0) for r, p, q in zip(reaches, rows, draft.probs, strict=False)]
        kept = 0
        for count in range(1, size + 1):
            threshold = reaches[count]
            if count < size:
                mass = excesses[count].sum()
                whole = mass + 1 - reaches[count]
                threshold = mass / whole if whole > 0 else 1
            if uniform(count - 1) < threshold:
                kept = count
            elif early_break:
                break
        if kept == size:
            return Verdict(tuple(range(size)), draw(rows[size], size - 1), True, size)
        excess = np.maximum(rows[kept] - draft.probs[kept], 0) if token_residual else excesses[kept]
        mass = excess.sum()
        row = excess / mass if mass > 0 else rows[kept]
        return Verdict(tuple(range(kept)), draw(row, kept - 1), False, size)

    return rule
