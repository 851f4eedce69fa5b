"""Attention of the native core: what it computes, and that a row's bits depend on its own keys alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.native.arrays import Floats, aligned, pointer
from surefoot.native.library import Library, Pool
from surefoot.native.passes import key_stride
from surefoot.native.structs import SfModel, SfPass
from tests.native import COMPILER, libraries

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

EDGES = (1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 575, 577, 1023, 1024, 1025, 1600)
"""Lengths around the ends of blocks (64 keys) and stripes (512)."""


class SfAttention(Structure):
    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("keys", c_void_p),
        ("values", c_void_p),
    )


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


Path = tuple[int, ...]
"""The tokens whose keys a row reads, in position order, each a number that its key and value hang on."""


@dataclass(frozen=True)
class Work:
    """Rows, each the path that it ends, and what lies in them."""

    shape: Shape
    rows: Sequence[Path]
    queries: Floats  # [rows, heads · head_dim]
    keys: Floats  # [tokens, kv_heads, head_dim], as are the values: halves, widened
    values: Floats

    def some(self, rows: Sequence[int]) -> Work:
        chosen = [self.rows[row] for row in rows]
        return Work(self.shape, chosen, self.queries[list(rows)].copy(), self.keys, self.values)


def make_work(shape: Shape, rows: Sequence[Path], seed: int = 0, spread: float = 1.0) -> Work:
    draw, tokens = np.random.default_rng(seed), 1 + max(map(max, rows))
    queries = draw.standard_normal((len(rows), shape.heads * shape.head_dim), np.float32) * np.float32(spread)
    keys, values = draw.standard_normal((2, tokens, shape.kv_heads, shape.head_dim), np.float32)
    half = np.float16
    return Work(
        shape, rows, queries, keys.astype(half).astype(np.float32), values.astype(half).astype(np.float32)
    )


def chain(length: int, rows: int, first: int = 0) -> list[Path]:
    """The last rows of a sequence whose tokens are numbered from `first` on."""
    tokens = tuple(range(first, first + length))
    return [tokens[: length - rows + 1 + row] for row in range(rows)]


def expected(work: Work) -> NDArray[np.float64]:
    shape, group = work.shape, work.shape.heads // work.shape.kv_heads
    out = np.zeros((len(work.rows), shape.heads, shape.head_dim))
    for row, path in enumerate(work.rows):
        seen = list(path[-shape.window :] if shape.window else path)
        queries = work.queries[row].astype(np.float64).reshape(shape.kv_heads, group, -1)
        keys, values = (x[seen].astype(np.float64).swapaxes(0, 1) for x in (work.keys, work.values))
        scores = queries @ keys.swapaxes(1, 2) * np.float64(np.float32(shape.scale))
        weights = np.exp(scores - scores.max(2, keepdims=True))
        out[row] = (weights / weights.sum(2, keepdims=True) @ values).reshape(shape.heads, -1)
    return out.reshape(len(work.rows), -1)


def attend(library: Library, pool: Pool, work: Work, seed: int | None = None) -> Floats:
    """Runs the kernel. Tokens lie in their own slots, or in random ones where there is a seed."""
    shape, tokens, stride = work.shape, len(work.keys), key_stride(work.shape.head_dim)
    places = np.arange(tokens) if seed is None else np.random.default_rng(seed).permutation(tokens)
    keys, values = np.zeros((2, tokens, shape.kv_heads, stride), np.float16)
    keys[places, :, : shape.head_dim], values[places, :, : shape.head_dim] = work.keys, work.values

    # Rows that go on from the row before share its list.
    lists: list[Path] = []
    first_keys: list[int] = []
    for path in work.rows:
        if lists and path[:-1] == lists[-1]:
            lists[-1] = path
            first_keys.append(first_keys[-1])
        else:
            first_keys.append(sum(map(len, lists)))
            lists.append(path)
    slots = places[np.concatenate([np.array(path) for path in lists])].astype(np.int32)
    first_key, num_keys = np.array(first_keys, np.int64), np.array([len(p) for p in work.rows], np.int32)

    queries = np.full((len(work.rows), work.queries.shape[1] + 3), np.nan, np.float32)
    queries[:, :-3] = work.queries
    out = np.full_like(work.queries, np.nan)
    model = SfModel(heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    pass_ = SfPass(
        rows=len(work.rows),
        slots=pointer(slots),
        first_key=pointer(first_key),
        num_keys=pointer(num_keys),
        num_slots=tokens,
        key_stride=stride,
    )
    layer = SfAttention(
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.window,
        shape.scale,
        pointer(keys),
        pointer(values),
    )
    size, run = library.functions.sf_attention_bytes, library.functions.sf_attend
    size.restype, size.argtypes = c_int64, (c_void_p, POINTER(SfModel), POINTER(SfPass))
    run.restype = None
    run.argtypes = (c_void_p, POINTER(SfAttention), POINTER(SfPass), c_void_p, c_int64, c_void_p, c_void_p)
    with pool.held() as handle:
        scratch = aligned(size(handle, byref(model), byref(pass_)))
        scratch[:] = 255  # every float in it no number
        run(
            handle,
            byref(layer),
            byref(pass_),
            pointer(queries),
            queries.shape[1],
            pointer(out),
            pointer(scratch),
        )
    return out


def bits(x: Floats) -> list[int]:
    found: list[int] = x.view(np.uint32).ravel().tolist()
    return found


@pytest.fixture(scope="module")
def pools() -> list[tuple[Library, Pool]]:
    """Every library with one thread, two and three."""
    return [(library, library.pool(threads)) for library in libraries() for threads in (1, 2, 3)]


SHAPES = (
    Shape(3, 1, 64),
    Shape(12, 2, 128),
    Shape(4, 4, 16),
    Shape(2, 1, 80, window=70),
    Shape(40, 1, 6),
    Shape(4, 2, 32, window=1),
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", EDGES)
def test_it_is_softmax_attention(shape: Shape, length: int, pools: list[tuple[Library, Pool]]) -> None:
    work = make_work(shape, chain(length, min(length, 7)), seed=length)
    found = attend(*pools[1], work)
    np.testing.assert_allclose(found, expected(work), rtol=0, atol=3e-6)


def test_scores_that_lie_far_apart(pools: list[tuple[Library, Pool]]) -> None:
    work = make_work(Shape(4, 2, 64), chain(700, 40), spread=60.0)
    np.testing.assert_allclose(attend(*pools[1], work), expected(work), rtol=0, atol=2e-4)


def test_equal_keys_give_the_mean(pools: list[tuple[Library, Pool]]) -> None:
    work = make_work(Shape(2, 1, 16), chain(600, 1))
    work.keys[:] = 0
    mean = work.values.astype(np.float64).mean(0)[0]
    np.testing.assert_allclose(attend(*pools[0], work)[0], np.tile(mean, 2), rtol=0, atol=1e-6)


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Some sequences, each with a chain or a tree of new rows behind tokens of before."""
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 7), (2, 3), (3, 3), (1, 33)]))
    window = draw(st.sampled_from([0, 0, 1, 5, 64, 512, 600]))
    shape = Shape(kv_heads * group, kv_heads, draw(st.sampled_from([2, 16, 24, 64])), window)
    rows: list[Path] = []
    tokens = 0
    for _ in range(draw(st.integers(1, 3))):
        before = draw(st.sampled_from(EDGES)) - 1
        new: list[Path] = []
        stem = tuple(range(tokens, tokens + before))
        tokens += before
        for _ in range(draw(st.integers(1, 12))):
            parent = draw(st.sampled_from([stem, *new[-1:], *new[-1:], *new]))
            new.append((*parent, tokens))
            tokens += 1
        rows += new
    return make_work(shape, rows, draw(st.integers(0, 99)), draw(st.sampled_from([0.1, 1.0, 30.0])))


@settings(max_examples=25, deadline=None)
@given(work=works(), seed=st.integers(0, 99), data=st.data())
def test_a_rows_bits_are_its_own(
    work: Work, seed: int, data: st.DataObject, pools: list[tuple[Library, Pool]]
) -> None:
    """Whatever rows come with it, wherever its keys lie, on any number of threads and instruction set."""
    together = attend(*pools[0], work)
    assert np.isfinite(together).all()
    for library, pool in pools[1:]:
        assert bits(attend(library, pool, work, seed)) == bits(together), (library.isa.name, pool.threads)
    some = data.draw(st.lists(st.integers(0, len(work.rows) - 1), min_size=1, unique=True))
    library, pool = data.draw(st.sampled_from(pools), "pool")
    assert bits(attend(library, pool, work.some(some))) == bits(together[some])
    alone = data.draw(st.integers(0, len(work.rows) - 1))
    assert bits(attend(library, pool, work.some([alone]))) == bits(together[[alone]])


def test_a_long_chain_has_the_bits_of_its_rows(pools: list[tuple[Library, Pool]]) -> None:
    """Blocks of rows of every size, and pairs enough that threads do whole ones."""
    work = make_work(Shape(6, 2, 32), chain(700, 200))
    together = attend(*pools[0], work)
    for library, pool in pools:
        for row in (0, 1, 63, 64, 198, 199):
            assert bits(attend(library, pool, work.some([row]))) == bits(together[[row]])
        assert bits(attend(library, pool, work)) == bits(together)


def test_a_hidden_key_adds_nothing(pools: list[tuple[Library, Pool]]) -> None:
    """Keys before the window and behind the row may hold anything finite, of any sign."""
    work = make_work(Shape(2, 1, 16, window=100), chain(300, 20))
    before = attend(*pools[0], work)
    work.keys[:181], work.values[:181] = 65504, -65504  # the first row sees 181 … 280
    assert bits(attend(*pools[0], work)) == bits(before)
    work.keys[281:], work.values[281:] = -65504, 65504  # the later rows do see these
    changed = attend(*pools[0], work)
    assert bits(changed[:1]) == bits(before[:1])
    assert bits(changed[1:]) != bits(before[1:])
    assert math.isfinite(changed.sum())
