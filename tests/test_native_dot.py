"""Products of packed weights with activations: what they are, and that they are the same to the bit in every
library, with any number of threads, and for a row in any company."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.native.arrays import Bytes, Floats
from surefoot.native.library import Library, Pool
from surefoot.native.model import BLOCKS, Format, Linear, Matrix
from tests.native import COMPILER, libraries
from tests.test_native_formats import HALVES, quantized, same_bits

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

SEEDS = st.integers(0, 2**32 - 1)
PASS_ROWS = 256  # linear.c's


@cache
def pool(library: Library, threads: int) -> Pool:
    return library.pool(threads)


def forward(library: Library, linear: Linear, x: Floats, threads: int = 1) -> Floats:
    return library.linear_forward(pool(library, threads), linear, x)


def random_matrix(format: Format, outputs: int, inputs: int, rng: np.random.Generator) -> Matrix:
    library = libraries()[0]
    if format not in BLOCKS:
        data = library.pack_int8(format, rng.standard_normal((outputs, inputs), np.float32))
        return library.matrix(format, outputs, inputs, data)
    weights, num_bytes = BLOCKS[format]
    blocks = rng.integers(0, 256, (outputs * inputs // weights, num_bytes), np.uint8)
    for at in HALVES[format]:
        halves = rng.uniform(0.01, 0.1, (len(blocks), 1)) * rng.choice([-1, 1], (len(blocks), 1))
        blocks[:, at : at + 2] = halves.astype(np.float16).view(np.uint8)
    data = library.pack_blocks(format, outputs, inputs, blocks.reshape(-1))
    return library.matrix(format, outputs, inputs, data)


def random_rows(rows: int, inputs: int, rng: np.random.Generator) -> Floats:
    numbers = rng.standard_normal((rows, inputs)) * 10.0 ** rng.integers(-3, 4, (rows, 1))
    return numbers.astype(np.float32)


@st.composite
def linears(draw: st.DrawFn) -> Linear:
    """One to three matrices, of any formats that their inputs allow, with and without a bias."""
    first = draw(st.sampled_from(Format))
    unit, _ = BLOCKS.get(first, (1, 0))
    inputs = unit * draw(st.integers(1, 700 // unit))
    allowed = [format for format in Format if inputs % BLOCKS.get(format, (1, 0))[0] == 0]
    formats = [first, *draw(st.lists(st.sampled_from(allowed), max_size=2))]
    rng = np.random.default_rng(draw(SEEDS))
    parts = [random_matrix(format, draw(st.integers(1, 100)), inputs, rng) for format in formats]
    outputs = sum(part.outputs for part in parts)
    return Linear(parts, rng.standard_normal(outputs, np.float32) if draw(st.booleans()) else None)


def exact(linear: Linear, x: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The outputs in float64, of rounded activations, and how far the kernels may be from them."""
    q, scale = quantized(x)
    rounded = (q * scale.astype(np.float64)).reshape(len(x), -1)[:, : linear.inputs]
    weights = np.concatenate([libraries()[0].unpack(part) for part in linear.parts]).astype(np.float64)
    bias = np.zeros(linear.outputs) if linear.bias is None else linear.bias.astype(np.float64)
    largest = np.abs(rounded).sum(axis=1, keepdims=True) * np.abs(weights).max(axis=1) + np.abs(bias)
    return rounded @ weights.T + bias, 1e-5 * largest


@settings(max_examples=30)
@given(linear=linears(), rows=st.integers(1, 40), seed=SEEDS)
def test_products_are_those_of_the_rounded_numbers(linear: Linear, rows: int, seed: int) -> None:
    x = random_rows(rows, linear.inputs, np.random.default_rng(seed))
    expected, slack = exact(linear, x)
    assert (np.abs(forward(libraries()[0], linear, x) - expected) <= slack).all()


@settings(max_examples=30)
@given(linear=linears(), rows=st.integers(1, 40), seed=SEEDS)
def test_every_library_gives_the_same_bits(linear: Linear, rows: int, seed: int) -> None:
    x = random_rows(rows, linear.inputs, np.random.default_rng(seed))
    y = forward(libraries()[0], linear, x)
    for library in libraries()[1:]:
        assert same_bits(forward(library, linear, x), y), library.isa.name


@settings(max_examples=30)
@given(linear=linears(), others=st.integers(1, 40), seed=SEEDS)
def test_no_company_changes_a_bit_of_a_row(linear: Linear, others: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = random_rows(others + 1, linear.inputs, rng)
    row = int(rng.integers(len(x)))
    for library in libraries():
        alone, among = forward(library, linear, x[row : row + 1]), forward(library, linear, x)
        assert same_bits(alone, among[row : row + 1]), library.isa.name


@pytest.mark.parametrize("format", Format, ids=lambda format: format.name)
def test_a_row_keeps_its_bits_where_a_long_pass_is_cut(format: Format) -> None:
    rng = np.random.default_rng(0)
    linear = Linear([random_matrix(format, 33, 256, rng)])
    x = random_rows(PASS_ROWS + 18, 256, rng)
    for library in libraries():
        y = forward(library, linear, x)
        for row in (0, PASS_ROWS - 1, PASS_ROWS, PASS_ROWS + 16, PASS_ROWS + 17):
            alone = forward(library, linear, x[row : row + 1])
            assert same_bits(alone, y[row : row + 1]), (library.isa.name, row)


@pytest.mark.parametrize("threads", [2, 3, 5])
@settings(max_examples=30)
@given(linear=linears(), rows=st.integers(1, 20), seed=SEEDS)
def test_any_number_of_threads_gives_the_same_bits(
    threads: int, linear: Linear, rows: int, seed: int
) -> None:
    x = random_rows(rows, linear.inputs, np.random.default_rng(seed))
    for library in libraries():
        assert same_bits(forward(library, linear, x, threads), forward(library, linear, x)), library.isa.name


def q8_0_blocks(q: NDArray[np.int64]) -> Bytes:
    """Blocks of scale 1, of q [outputs, inputs]."""
    blocks = np.empty((q.size // 32, 34), np.uint8)
    blocks[:, :2] = np.ones(1, np.float16).view(np.uint8)
    blocks[:, 2:] = q.astype(np.int8).reshape(-1, 32).view(np.uint8)
    return blocks.reshape(-1)


@pytest.mark.parametrize(
    ("weight", "sign"),
    [
        (lambda signs: np.full_like(signs, -128), 1),
        (lambda signs: np.full_like(signs, 127), -1),
        (lambda signs: np.where(signs > 0, 127, -128), 1),
        (lambda signs: np.where(signs > 0, -128, 127), 1),
    ],
    ids=["least", "largest", "with the signs", "against the signs"],
)
def test_the_largest_sums_do_not_overflow(
    weight: Callable[[NDArray[np.int64]], NDArray[np.int64]], sign: int
) -> None:
    inputs, outputs = 512, 33
    signs = np.where(np.arange(inputs) % 3, 1, -1)
    q = np.tile(weight(signs), (outputs, 1))
    x = np.stack([signs, np.full(inputs, sign)]).astype(np.float32)
    expected = x.astype(np.float64) @ q.T
    for library in libraries():
        data = library.pack_blocks(Format.Q8_0, outputs, inputs, q8_0_blocks(q))
        y = forward(library, Linear([library.matrix(Format.Q8_0, outputs, inputs, data)]), x)
        assert np.allclose(y, expected, rtol=1e-6, atol=0), library.isa.name


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_nibbles_do_not_overflow(sign: int) -> None:
    inputs, outputs = 128, 33
    block = np.full(18, 0xFF, np.uint8)  # sixteen bytes of weights 15 − 8
    block[:2] = np.ones(1, np.float16).view(np.uint8)
    x = np.full((7, inputs), sign * 2047.0, np.float32)  # rounded to itself: the largest of both bytes
    expected = 7 * x.sum(axis=1, dtype=np.float64)
    for library in libraries():
        data = library.pack_blocks(Format.Q4_0, outputs, inputs, np.tile(block, outputs * inputs // 32))
        linear = Linear([library.matrix(Format.Q4_0, outputs, inputs, data)])
        for rows in (1, 2, 3, 7):
            y = forward(library, linear, x[:rows])
            assert np.allclose(y, expected[:rows, None], rtol=1e-6, atol=0), (library.isa.name, rows)
