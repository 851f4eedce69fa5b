"""Wrong versions of the rules, each with one fault that some engine has had or that is easily made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from surefoot import verify
from surefoot.exact import Chances, Drafting, RowOf, Rule, ScriptedUniform, outcomes
from surefoot.models.toy import LogitsOf, ToyCache, ToyModel
from surefoot.tree import ROOT, children, parents_of
from surefoot.types import Draft, Verdict
from surefoot.verify import DrawFrom, Row, TargetProbs, Uniform, exclude


def rows_of(rows: Iterable[Row]) -> Any:
    return np.array(list(rows), dtype=object)


# Rules


def recursive(ratio_by_eldest: bool = False, residual_by_eldest: bool = False, residual: bool = True) -> Rule:
    """Recursive rejection again, with the row of the eldest sibling (the original q) in the wrong places."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        assert draft.probs is not None
        below = children(parents_of(draft.parents, len(draft.tokens)))
        path: list[int] = []
        node = ROOT
        while True:
            target, siblings = target_probs(node), below[node]
            for child in siblings:
                token = draft.tokens[child]
                tested = draft.probs[siblings[0] if ratio_by_eldest else child]
                if uniform(child) * tested[token] < target[token]:
                    node = child
                    path.append(child)
                    break
                if residual:
                    excess = np.maximum(target - draft.probs[siblings[0] if residual_by_eldest else child], 0)
                    target = excess / excess.sum() if excess.sum() > 0 else target
            else:
                return Verdict(tuple(path), draw(target, node), bonus=not siblings, tested=0)

    return rule


def bonus_from(raw_target: RowOf) -> Rule:
    """The bonus comes from the target's row before the sampling transforms."""

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
    return verify.rejection(draft, target_probs, lambda node: uniform(node) if node else Fraction(0), draw)


def block_with(early_break: bool = False, token_residual: bool = False) -> Rule:
    """Block verification again, that stops at the first prefix that fails, or recovers as by tokens."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        assert draft.probs is not None
        size = len(draft.tokens)
        rows = [target_probs(node) for node in range(-1, size)]
        reaches: list[Any] = [Fraction(1)]
        for node, token in enumerate(draft.tokens):
            ratio = rows[node][token] / draft.probs[node][token]
            reaches.append(min(Fraction(1), reaches[-1] * ratio))
        excesses = [np.maximum(r * p - q, 0) for r, p, q in zip(reaches, rows, draft.probs, strict=False)]
        kept = 0
        for count in range(1, size + 1):
            threshold = reaches[count]
            if count < size:
                mass = excesses[count].sum()
                whole = mass + 1 - reaches[count]
                threshold = mass / whole if whole > 0 else Fraction(1)
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


def accepting_at_equality(
    draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom
) -> Verdict:
    """u ≤ p / q instead of u·q < p, on one token."""
    assert draft.probs is not None
    token = draft.tokens[0]
    if uniform(0) <= target_probs(ROOT)[token] / draft.probs[0][token]:
        return Verdict((0,), draw(target_probs(0), 0), True, 1)
    return Verdict((), draw(target_probs(ROOT), ROOT), False, 1)


def residual_without_a_guard(
    draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom
) -> Verdict:
    """norm((p − q)+) whatever its mass, on one token."""
    assert draft.probs is not None
    token, target = draft.tokens[0], target_probs(ROOT)
    if uniform(0) * draft.probs[0][token] < target[token]:
        return Verdict((0,), draw(target_probs(0), 0), True, 1)
    excess = np.maximum(target - draft.probs[0], 0)
    with np.errstate(invalid="ignore"):
        return Verdict((), draw(excess / excess.sum(), ROOT), False, 1)


# Drafts


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


def siblings(draft_probs: RowOf, count: int, change: Callable[[list[int], Row], list[int]]) -> Drafting:
    """Children of the root, drawn without replacement, then changed in a way that looks at them."""

    def drafting(chances: Chances) -> Draft:
        original = row = draft_probs(())
        tokens = [chances.pick(row)]
        while len(tokens) < count:
            row = exclude(row, tokens[-1])
            tokens.append(chances.pick(row))
        tokens = change(tokens, original)
        rows = [original]
        for token in tokens[:-1]:
            rows.append(exclude(rows[-1], token))
        return Draft(tuple(tokens), (ROOT,) * len(tokens), rows_of(rows[: len(tokens)]))

    return drafting


def likeliest_first(tokens: list[int], row: Row) -> list[int]:
    return sorted(tokens, key=lambda token: -row[token])


def without_unlikely(tokens: list[int], row: Row) -> list[int]:
    return [token for token in tokens if row[token] >= Fraction(3, 10)]


def top_k_as_samples(draft_probs: RowOf) -> Drafting:
    row = draft_probs(())
    best = int(np.argmax(row))
    rest = exclude(row, best)
    return lambda chances: Draft((best, int(np.argmax(rest))), (ROOT, ROOT), rows_of([row, rest]))


def trimmed(drafting: Drafting, length_of: Callable[[list[Fraction]], int]) -> Drafting:
    """Cuts a drawn chain to the length found from the drawn tokens' own probabilities."""

    def peeking(chances: Chances) -> Draft:
        draft = drafting(chances)
        assert draft.probs is not None
        length = length_of([draft.probs[i][token] for i, token in enumerate(draft.tokens)])
        return Draft(draft.tokens[:length], probs=draft.probs[:length])

    return peeking


UNLIKELY = Fraction(2, 5)


def up_to_an_unlikely_token(probs: list[Fraction], keep: bool) -> int:
    for index, prob in enumerate(probs):
        if prob < UNLIKELY:
            return index + keep
    return len(probs)


def best_prefix(probs: list[Fraction]) -> int:
    """Up to the token that the draft was surest of."""
    return probs.index(max(probs)) + 1


def best_rate(probs: list[Fraction]) -> int:
    """The length of most expected tokens per cost, the cost of a token being a third of a pass."""

    def rate(length: int) -> Fraction:
        chances = [Fraction(1)]
        for prob in probs[:length]:
            chances.append(chances[-1] * prob)
        return sum(chances, Fraction(0)) / (1 + Fraction(length, 3))

    return max(range(len(probs) + 1), key=rate)


# Rounds


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


class StaleCache(ToyCache):
    """Rolls back to the right length, but leaves the last rejected row in place of the last kept one."""

    def truncate(self, seq: int, length: int) -> None:
        before = self._rows[seq][:]
        super().truncate(seq, length)
        self._leave(seq, before)

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        before = self._rows[seq][:]
        super().keep(seq, base, rows)
        self._leave(seq, before)

    def _leave(self, seq: int, before: list[Any]) -> None:
        rows = self._rows[seq]
        if 0 < len(rows) < len(before):
            rows[-1] = rows[-1]._replace(token=before[-1].token)


class StaleModel(ToyModel):
    def __init__(self, logits_of: LogitsOf, vocab_size: int) -> None:
        super().__init__(logits_of, vocab_size)
        self._cache = StaleCache()
