"""The shape of a draft: parents → children, depths, ancestors, paths.

`parents[i]` is the index of node i's parent, -1 for a child of the last committed token, and less than i.
A chain has `parents[i] == i - 1`; `None` stands for it everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROOT = -1  # the last committed token, as a node


def parents_of(parents: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """The parents of a draft of `size` nodes, checked; a chain's are written out.

    Raises ValueError when there are not `size` of them, or one is not in [-1, its own index).
    """
    if parents is None:
        return tuple(range(-1, size - 1))
    if len(parents) != size:
        raise ValueError(f"a draft of {size} tokens has {len(parents)} parents")
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"parent of node {node} is {parent}; allowed is [-1, {node - 1}]")
    return tuple(parents)


def children(parents: Sequence[int]) -> dict[int, list[int]]:
    """The children of every node and of ROOT, in draft order."""
    result: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        result[parent].append(node)
    return result


def depths(parents: Sequence[int]) -> list[int]:
    """How far each node's position lies past the last committed token's: 1 for the children of ROOT."""
    result: list[int] = []
    for parent in parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return result


def mask(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[n, n]: row i is true at i and its ancestors, the nodes that i may see."""
    result = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            result[node] |= result[parent]
    return result


def path_to(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """The nodes from below ROOT down to `node`, itself included; empty for ROOT."""
    reversed_path = []
    while node != ROOT:
        reversed_path.append(node)
        node = parents[node]
    return tuple(reversed(reversed_path))


def paths(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Every path from below ROOT to a leaf, in the order of the leaves."""
    inner = set(parents)
    return [path_to(parents, node) for node in range(len(parents)) if node not in inner]
