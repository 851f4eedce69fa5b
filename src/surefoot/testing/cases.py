"""What samplers are tried on: pairs of target and draft, from small to large, and how to make one smaller."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from surefoot.exact import parse_probs
from surefoot.types import SurefootError

Probs = tuple[Fraction, ...]
Context = tuple[int, ...]
Table = Mapping[Context, Probs]


@dataclass(frozen=True)
class Case:
    """A target and a drafter whose probabilities are known exactly, for drafts of one length.

        Case(2, target={(): "3/5,3/10,1/10", (0,): "1/2,1/2,0"}, draft={(): "1/3,1/3,1/3"})

    draft_length: tokens in the draft, at least 1. target, draft: the tokens before, the draft's own, → the
    probabilities of the next one, decimals or fractions; of the contexts that the tokens before end with, the
    longest counts, so `()` is the one of last resort. Raises ValueError for a row that is no distribution, or
    not over as many tokens as the others, and when there is no `()`.
    """

    draft_length: int
    target: Mapping[Context, str]
    draft: Mapping[Context, str]
    _rows: dict[str, Table] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.draft_length, int) or self.draft_length < 1:
            raise ValueError(f"draft_length: {self.draft_length!r} is no whole number of 1 or more")
        for name, table in (("target", self.target), ("draft", self.draft)):
            if () not in table:
                raise ValueError(f"{name}: it has no context (), for what no other fits")
            self._rows[name] = {context: _parsed(name, context, row) for context, row in table.items()}
        for name, rows in self._rows.items():
            for context, row in rows.items():
                if len(row) != self.vocab_size:
                    raise ValueError(f"{name} after {context}: {len(row)} tokens, not {self.vocab_size}")

    @property
    def vocab_size(self) -> int:
        return len(self._rows["target"][()])

    def target_row(self, before: Context) -> Probs:
        return _fitting(self._rows["target"], before)

    def draft_row(self, before: Context) -> Probs:
        return _fitting(self._rows["draft"], before)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """What is compared to tell the smaller of two cases."""
        rows = [row for table in self._rows.values() for row in table.values()]
        width = sum(prob.denominator for row in rows for prob in row)
        return self.draft_length, self.vocab_size, len(rows), width

    def smaller(self, least_length: int, least_vocab: int) -> Iterator[Case]:
        """Cases that are smaller by a step, the largest steps first."""
        target, draft = self._rows["target"], self._rows["draft"]
        if self.draft_length > least_length:
            yield _case(self.draft_length - 1, target, draft)
        if self.vocab_size > least_vocab:
            for token in range(self.vocab_size):
                fewer = _without(target, token), _without(draft, token)
                if () in fewer[0] and () in fewer[1]:
                    yield _case(self.draft_length, *fewer)
        for change in _simpler(target):
            yield _case(self.draft_length, change, draft)
        for change in _simpler(draft):
            yield _case(self.draft_length, target, change)


def _parsed(name: str, context: Context, row: str) -> Probs:
    try:
        probs = parse_probs(f"{name} after {context}", row)
    except SurefootError as error:
        raise ValueError(str(error)) from None
    if min(probs) < 0 or sum(probs) != 1:
        raise ValueError(f"{name} after {context}: {row} is no distribution, it sums to {sum(probs)}")
    return probs


def _fitting(rows: Mapping[Context, Probs], before: Context) -> Probs:
    return next(rows[before[i:]] for i in range(len(before) + 1) if before[i:] in rows)


def _case(length: int, target: Table, draft: Table) -> Case:
    """A case with the contexts that a draft of that length has."""

    def written(table: Table, longest: int) -> dict[Context, str]:
        return {context: ",".join(map(str, row)) for context, row in table.items() if len(context) <= longest}

    return Case(length, written(target, length), written(draft, length - 1))


def _without(table: Table, token: int) -> Table:
    """A token less in the vocabulary; a row that has nothing else is left out."""
    rows: dict[Context, Probs] = {}
    for context, row in table.items():
        rest = 1 - row[token]
        if rest and token not in context:
            renamed = tuple(other - (other > token) for other in context)
            rows[renamed] = tuple(prob / rest for other, prob in enumerate(row) if other != token)
    return rows


def _simpler(table: Table) -> Iterator[Table]:
    """One row for everything, a context less, or a rounder row."""
    if len(table) > 1:
        for row in set(table.values()):
            yield {(): row}
        for context in table:
            if context:
                yield {other: row for other, row in table.items() if other != context}
    for context, row in table.items():
        for denominator in range(1, max(prob.denominator for prob in row)):
            yield {**table, context: _rounded(row, denominator)}


def _rounded(row: Probs, denominator: int) -> Probs:
    """The row in steps of 1 / denominator, what is left over given to the largest remainders."""
    parts = [math.floor(prob * denominator) for prob in row]
    by_remainder = sorted(range(len(row)), key=lambda token: parts[token] - row[token] * denominator)
    for token in by_remainder[: denominator - sum(parts)]:
        parts[token] += 1
    return tuple(Fraction(part, denominator) for part in parts)


def bank(vocab_sizes: Sequence[int], draft_lengths: Sequence[int], seed: int) -> list[Case]:
    """The cases that every sampler meets, from small to large.

    For one draft token the corners: equal rows, disjoint ones, zeros on either side, point masses on either.
    For longer drafts, rows at random after every context, zeros and point masses among them.
    """
    chance = random.Random(seed)
    cases: list[Case] = []
    for length, vocab_size in product(sorted(draft_lengths), sorted(vocab_sizes)):
        if length == 1:
            cases += [_single(*pair, chance) for pair in _corners(vocab_size)]
        equal = _random_rows(vocab_size, length, chance)
        cases.append(_case(length, equal, equal))
        for _ in range(_RANDOM_CASES):
            target, draft = (_random_rows(vocab_size, n, chance) for n in (length, length - 1))
            cases.append(_case(length, target, draft))
    return cases


_RANDOM_CASES = 4  # per vocabulary size and draft length


def _corners(vocab_size: int) -> list[tuple[Probs, Probs]]:
    """Pairs of a target's and a draft's row over at least two tokens."""
    rising = _normalised(range(1, vocab_size + 1))
    falling = rising[::-1]
    first = _normalised([1] + [0] * (vocab_size - 1))
    others = _normalised([0, *range(1, vocab_size)])
    return [
        (rising, rising),
        (rising, falling),
        (falling, rising),
        (others, first),
        (first, others),
        (others, rising),
        (rising, others),
        (rising, first),
        (first, falling),
    ]


def _single(target: Probs, draft: Probs, chance: random.Random) -> Case:
    """One draft token; what the target says after it is left to chance."""
    rows: dict[Context, Probs] = {(): target}
    rows |= {(token,): _random_row(len(target), chance) for token in range(len(target))}
    return _case(1, rows, {(): draft})


def _random_rows(vocab_size: int, longest: int, chance: random.Random) -> dict[Context, Probs]:
    contexts = (c for length in range(longest + 1) for c in product(range(vocab_size), repeat=length))
    return {context: _random_row(vocab_size, chance) for context in contexts}


def _random_row(vocab_size: int, chance: random.Random) -> Probs:
    weights = [chance.choice((0, 1, 2, 3, 5)) for _ in range(vocab_size)]
    weights[chance.randrange(vocab_size)] += 1  # never nothing at all
    return _normalised(weights)


def _normalised(weights: Sequence[int]) -> Probs:
    return tuple(Fraction(weight, sum(weights)) for weight in weights)
