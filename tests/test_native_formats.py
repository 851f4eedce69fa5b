"""What packed weights and quantized activations are, to the bit, in every library."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.native.arrays import Bytes, Floats
from surefoot.native.library import PANEL, Library
from surefoot.native.model import BLOCKS, Format, Linear, Matrix
from tests.native import COMPILER, libraries

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

HALVES = {
    Format.Q4_0: [0],
    Format.Q4_1: [0, 2],
    Format.Q5_0: [0],
    Format.Q8_0: [0],
    Format.Q4_K: [0, 2],
    Format.Q5_K: [0, 2],
    Format.Q6_K: [208],
}
"""Where in a block its 16-bit floats are."""
GROUPS = {Format.INT8_64: 64, Format.INT8_32: 32}
SMALLEST = np.float32(1e-30)

SEEDS = st.integers(0, 2**32 - 1)
OUTPUTS = st.integers(1, 70)
each_block_format = pytest.mark.parametrize("format", BLOCKS, ids=lambda format: format.name)
each_rounded_format = pytest.mark.parametrize("format", GROUPS, ids=lambda format: format.name)


def same_bits(one: Floats, other: Floats) -> bool:
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


# ---- blocks of GGUF files ----


def any_blocks(format: Format, outputs: int, inputs: int, seed: int) -> Bytes:
    """Random bytes, and any float16 that is finite: denormals, negatives and both zeros too."""
    rng = np.random.default_rng(seed)
    weights, num_bytes = BLOCKS[format]
    blocks = rng.integers(0, 256, (outputs * inputs // weights, num_bytes), np.uint8)
    for at in HALVES[format]:
        half = rng.integers(0, 1 << 16, (len(blocks), 1), np.uint16)
        half[half & 0x7C00 == 0x7C00] &= 0x83FF
        blocks[:, at : at + 2] = half.view(np.uint8)
    return blocks.reshape(-1)


def packed_by_all(format: Format, outputs: int, inputs: int, source: Bytes | Floats) -> Matrix:
    """The matrix, after a look at whether all libraries pack the same bytes."""
    each = [
        library.pack_int8(format, source.view(np.float32).reshape(outputs, inputs))
        if format in GROUPS
        else library.pack_blocks(format, outputs, inputs, source.view(np.uint8))
        for library in libraries()
    ]
    assert all(np.array_equal(data, each[0]) for data in each)
    return libraries()[0].matrix(format, outputs, inputs, each[0])


@each_block_format
@given(outputs=OUTPUTS, blocks=st.integers(1, 34), seed=SEEDS)
def test_blocks_are_repacked_not_rounded(format: Format, outputs: int, blocks: int, seed: int) -> None:
    unit, _ = BLOCKS[format]
    inputs = unit * min(blocks, 1100 // unit)
    source = any_blocks(format, outputs, inputs, seed)
    rows: Floats = dequantize(source.reshape(outputs, -1), GGMLQuantizationType[format.name])
    matrix = packed_by_all(format, outputs, inputs, source)
    for library in libraries():
        assert same_bits(library.unpack(matrix), rows), library.isa.name


@each_block_format
def test_the_outputs_that_fill_a_panel_are_zeros(format: Format) -> None:
    source = any_blocks(format, 33, 256, seed=0)
    for library in libraries():
        data = library.pack_blocks(format, 33, 256, source)
        panels = library.unpack(library.matrix(format, 2 * PANEL, 256, data))
        assert panels[:33].any(axis=1).all()
        assert not panels[33:].any()


@pytest.mark.parametrize(
    ("format", "bits"),
    [
        (Format.INT8_64, 8.25),
        (Format.INT8_32, 8.5),
        (Format.Q4_0, 4.5),
        (Format.Q4_1, 5),
        (Format.Q5_0, 5.5),
        (Format.Q8_0, 8.5),
        (Format.Q4_K, 4.625),
        (Format.Q5_K, 5.625),
        (Format.Q6_K, 6.625),
    ],
    ids=lambda value: value.name if isinstance(value, Format) else "",
)
def test_bits_of_a_weight(format: Format, bits: float) -> None:
    for library in libraries():
        assert library.matrix_bytes(format, 64, 512) * 8 == bits * 64 * 512
        assert library.matrix_bytes(format, 33, 512) == library.matrix_bytes(format, 64, 512)


# ---- rounding to 8 bits ----


def grouped(x: Floats, group: int) -> Floats:
    """[rows, groups, group], the last group filled up with zeros."""
    rows, inputs = x.shape
    return np.pad(x, ((0, 0), (0, -inputs % group))).reshape(rows, -1, group)


def any_numbers(rows: int, inputs: int, seed: int) -> Floats:
    """Groups of all magnitudes, some all zeros or too small to count."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((rows, inputs))
    exponents = rng.choice([-40, -32, -29, -3, 0, 0, 0, 8, 30], (rows, -(-inputs // 32)))
    numbers *= 10.0 ** exponents.repeat(32, axis=1)[:, :inputs]
    numbers[rng.random(numbers.shape) < 0.05] = 0
    return numbers.astype(np.float32)


def least_bf16_from(x: Floats) -> Floats:
    """The least bf16 not below x, which is not negative."""
    bits = x.view(np.uint32)
    return np.where(bits & 0xFFFF, (bits | 0xFFFF) + 1, bits).astype(np.uint32).view(np.float32)


def rounded_weights(weights: Floats, group: int) -> tuple[Floats, Floats]:
    """The weights that are kept, and each one's scale."""
    groups = grouped(weights, group)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    largest[largest < SMALLEST] = 0
    scale = least_bf16_from(largest / np.float32(127))
    kept = scale * np.rint(groups / np.where(scale, scale, np.inf))
    shape, inputs = (len(weights), -1), weights.shape[1]
    return kept.reshape(shape)[:, :inputs], scale.repeat(group, axis=2).reshape(shape)[:, :inputs]


@each_rounded_format
@given(outputs=OUTPUTS, inputs=st.integers(1, 1100), seed=SEEDS)
def test_weights_are_rounded_to_the_nearest_step(
    format: Format, outputs: int, inputs: int, seed: int
) -> None:
    weights = any_numbers(outputs, inputs, seed)
    kept, scale = rounded_weights(weights, GROUPS[format])
    error = np.abs(kept.astype(np.float64) - weights)
    assert (error <= np.maximum(scale / 2 * (1 + 2**-20), SMALLEST)).all()  # what the reference is held to
    matrix = packed_by_all(format, outputs, inputs, weights)
    for library in libraries():
        assert np.array_equal(library.unpack(matrix), kept), library.isa.name


@each_rounded_format
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 63, 64, 99])
def test_a_weight_that_is_no_number_shows_in_its_group_alone(format: Format, bad: float, at: int) -> None:
    group = GROUPS[format]
    weights = np.random.default_rng(0).standard_normal((3, 100), np.float32)
    kept, _ = rounded_weights(weights, group)
    weights[1, at] = bad
    kept[1, at // group * group : (at // group + 1) * group] = np.nan
    matrix = packed_by_all(format, 3, 100, weights)
    for library in libraries():
        assert np.array_equal(library.unpack(matrix), kept, equal_nan=True)


# ---- activations, seen through products that leave them as they are ----

STEPS = np.float32(127 * 16 + 15)


def quantized(x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """q [rows, groups, 64] and scales [rows, groups, 1]."""
    groups = grouped(x, 64)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    counts = largest >= SMALLEST
    steps = np.where(counts, STEPS / np.where(counts, largest, 1), 0).astype(np.float32)
    return np.rint(groups * steps).astype(np.int64), np.where(counts, largest / STEPS, 0).astype(np.float32)


def product(library: Library, matrix: Matrix, x: Floats) -> Floats:
    return library.linear_forward(library.pool(1), Linear([matrix]), x)


@given(rows=st.integers(1, 20), inputs=st.integers(1, 300), seed=SEEDS)
def test_activations_are_rounded_to_twelve_bits(rows: int, inputs: int, seed: int) -> None:
    x = any_numbers(rows, inputs, seed)
    q, scale = quantized(x)
    assert np.abs(q).max() <= STEPS
    error = np.abs(q * scale.astype(np.float64) - grouped(x, 64))
    assert (error <= np.maximum(scale * 0.51, SMALLEST)).all()
    one = least_bf16_from(np.ones(1, np.float32) / np.float32(127))
    matrix = packed_by_all(Format.INT8_32, inputs, inputs, np.eye(inputs, dtype=np.float32))
    expected = q * np.rint(1 / one).astype(np.int64) * (scale * one).astype(np.float64)
    for library in libraries():
        y = product(library, matrix, x)
        assert np.array_equal(y, expected.astype(np.float32).reshape(rows, -1)[:, :inputs]), library.isa.name


@given(rows=st.integers(1, 20), blocks=st.integers(1, 12), seed=SEEDS)
def test_a_min_is_multiplied_by_the_sum_of_its_group(rows: int, blocks: int, seed: int) -> None:
    x = any_numbers(rows, 32 * blocks, seed)
    ones = np.zeros((blocks, 20), np.uint8)
    ones[:, 2:4] = np.ones(1, np.float16).view(np.uint8)  # scale 0, min 1, every q 0
    matrix = packed_by_all(Format.Q4_1, 1, 32 * blocks, ones.reshape(-1))
    q, scale = quantized(x)
    sums = q.reshape(rows, -1, 32).sum(axis=2)[:, :blocks].astype(np.float32)
    y = np.zeros(rows, np.float32)
    for each, scales in zip(sums.T, scale.reshape(rows, -1).repeat(2, axis=1).T, strict=False):
        y += scales * each
    for library in libraries():
        assert np.array_equal(product(library, matrix, x)[:, 0], y), library.isa.name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 63, 64, 69])
def test_an_activation_that_is_no_number_shows_in_its_row_alone(bad: float, at: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 70), np.float32)
    matrix = packed_by_all(Format.INT8_64, 70, 70, np.eye(70, dtype=np.float32))
    for library in libraries():
        y = product(library, matrix, x)
        x_bad = x.copy()
        x_bad[1, at] = bad
        y[1] = np.nan
        assert np.array_equal(product(library, matrix, x_bad), y, equal_nan=True), library.isa.name
