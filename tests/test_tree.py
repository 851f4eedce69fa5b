from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot import tree
from surefoot.tree import ROOT

#   root ─┬─ 0 ─┬─ 2 ── 4
#         │     └─ 3
#         └─ 1
PARENTS = (-1, -1, 0, 0, 2)

parent_lists = st.integers(0, 9).flatmap(
    lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
)


def test_a_small_tree() -> None:
    assert tree.children(PARENTS) == {-1: [0, 1], 0: [2, 3], 1: [], 2: [4], 3: [], 4: []}
    assert tree.depths(PARENTS) == [1, 1, 2, 2, 3]
    assert tree.paths(PARENTS) == [(1,), (0, 3), (0, 2, 4)]
    assert tree.path_to(PARENTS, 4) == (0, 2, 4)
    assert tree.path_to(PARENTS, ROOT) == ()
    assert tree.mask(PARENTS).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def test_a_chain_is_written_out() -> None:
    assert tree.parents_of(None, 3) == (-1, 0, 1)
    assert tree.paths(tree.parents_of(None, 3)) == [(0, 1, 2)]
    assert np.array_equal(tree.mask(tree.parents_of(None, 3)), np.tri(3, dtype=bool))


def test_an_empty_tree_has_only_its_root() -> None:
    assert tree.parents_of((), 0) == tree.parents_of(None, 0) == ()
    assert (tree.children(()), tree.paths(()), tree.mask(()).shape) == ({-1: []}, [], (0, 0))


@given(parent_lists)
def test_mask_depths_paths_and_children_tell_the_same(parents: tuple[int, ...]) -> None:
    paths = [tree.path_to(parents, node) for node in range(len(parents))]
    assert tree.depths(parents) == [len(path) for path in paths]
    assert [set(np.flatnonzero(row).tolist()) for row in tree.mask(parents)] == [set(p) for p in paths]
    below = tree.children(parents)
    assert {path[-1] for path in tree.paths(parents)} == {n for n in range(len(parents)) if not below[n]}
    assert sorted(node for siblings in below.values() for node in siblings) == list(range(len(parents)))


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        ((-1, 0), "3 tokens has 2 parents"),
        ((-1, 1, 0), r"parent of node 1 is 1; allowed is \[-1, 0\]"),
        ((-2, 0, 0), "parent of node 0 is -2"),
        ((0, 0, 0), "parent of node 0 is 0"),
    ],
)
def test_what_is_no_tree_is_refused(parents: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        tree.parents_of(parents, 3)
