"""A pass, laid out: which rows there are, where they stand, and which keys each reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.models.kv import PagedCache
from surefoot.tree import depths, paths


@dataclass(frozen=True, slots=True)
class Chain:
    """Rows of a pass that read one list of keys: a chain, or what is new on one path of a tree.

    rows: their places in the pass. positions: of each in its sequence, ascending. slots: int32, where the
    keys of a whole path lie, in position order; the row at position p reads slots[: p + 1], and its own
    key and value belong into slots[p].
    """

    rows: Sequence[int]
    positions: Sequence[int]
    slots: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Plan:
    """tokens, positions: one per row of the pass. chains: every row is in one of them. wanted: the rows
    whose logits are asked for."""

    tokens: list[int]
    positions: list[int]
    chains: list[Chain]
    wanted: list[int]


def lay_out(batch: Sequence[Segment], cache: PagedCache) -> Plan:
    """The plan of a batch, whose rows have room in the cache from now on."""
    plan = Plan([], [], [], [])
    for segment in batch:
        start, first = cache.length(segment.seq), len(plan.tokens)
        cache.append(segment.seq, len(segment.tokens))
        own = cache.slots(segment.seq)
        positions = [start + depth for depth in depths_of(segment)]
        plan.tokens.extend(segment.tokens)
        plan.positions.extend(positions)
        plan.wanted.extend(range(len(plan.tokens) - segment.num_wanted, len(plan.tokens)))
        for path, new in _paths(segment):
            slots = np.concatenate((own[:start], own[start:][path])) if segment.parents else own
            plan.chains.append(Chain([first + row for row in new], [positions[row] for row in new], slots))
    return plan


def depths_of(segment: Segment) -> Sequence[int]:
    """How far past the cache each row's position lies, from 0."""
    if segment.parents is None:
        return range(len(segment.tokens))
    return [depth - 1 for depth in depths(segment.parents)]


def _paths(segment: Segment) -> list[tuple[list[int], Sequence[int]]]:
    """(path, rows first met on it) for every root-to-leaf path: siblings between a path's keys would
    change the order of summation, so each path reads its keys alone."""
    if not segment.tokens:
        return []
    if segment.parents is None:
        return [([], range(len(segment.tokens)))]
    met: set[int] = set()
    found: list[tuple[list[int], Sequence[int]]] = []
    for path in paths(segment.parents):
        new = [row for row in path if row not in met]
        met.update(new)
        found.append((list(path), new))
    return found
