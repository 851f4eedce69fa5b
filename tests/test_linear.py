"""Linear layers against float64, and the cutting of passes into tiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.models.linear import (
    BFloat16Linear,
    Float16Linear,
    Float32Linear,
    Int8Linear,
    Linear,
    Tiles,
    quantize_weight,
    split_planes,
)
from tests.precisions import NEEDS_BF16, NEEDS_INT8

torch.manual_seed(0)
X, W, BIAS = torch.randn(7, 192) * 5, torch.randn(64, 192) * 0.1, torch.randn(64)
EXACT = X.double() @ W.double().T


def relative_error(y: torch.Tensor) -> float:
    return float(((y.double() - EXACT).norm() / EXACT.norm()).item())


@pytest.mark.parametrize(
    ("build", "limit"),
    [
        (lambda: Float32Linear(W), 1e-6),
        pytest.param(lambda: BFloat16Linear(W), 5e-3, marks=NEEDS_BF16),
        pytest.param(lambda: Int8Linear(*quantize_weight(W)), 1e-2, marks=NEEDS_INT8),
    ],
)
def test_each_precision_is_as_near_as_its_format_allows(build: Callable[[], Linear], limit: float) -> None:
    linear = build()
    assert relative_error(linear(X)) < limit
    assert linear(X).dtype == torch.float32


@pytest.mark.skipif("fbgemm" not in torch.backends.quantized.supported_engines, reason="no fbgemm here")
def test_the_fp16_head_is_nearer_than_bf16() -> None:
    assert relative_error(Float16Linear(W)(X)) < 5e-4


@NEEDS_INT8
@NEEDS_BF16
def test_the_bias_is_added() -> None:
    for linear, plain in (
        (Float32Linear(W, BIAS), Float32Linear(W)),
        (BFloat16Linear(W, BIAS), BFloat16Linear(W)),
        (Int8Linear(*quantize_weight(W), BIAS), Int8Linear(*quantize_weight(W))),
    ):
        torch.testing.assert_close(linear(X), plain(X) + BIAS)


@NEEDS_INT8
def test_int8_loses_to_its_weights_alone() -> None:
    """Two planes make the activations 16-bit: against the very weights it has, the error is tiny."""
    quantized, scale = quantize_weight(W)
    exact = X.double() @ (quantized.double() * scale.double()[:, None]).T
    y = Int8Linear(quantized, scale)(X)
    assert float((y - exact).norm() / exact.norm()) < 1e-4


@given(
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=40), st.floats(2.0**-90, 2.0**20)
)
def test_planes_hold_a_row_to_16_bits(values: list[float], scale: float) -> None:
    x = torch.tensor([values]) * scale
    planes, step = split_planes(x)
    whole = (planes[0].double() - 128) * 256 + (planes[1].double() - 128)
    error = (whole * step.double() - x.double()).abs().max()
    assert error <= float(x.abs().max()) / 32639 * 0.51 + 1e-24


@NEEDS_INT8
def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(Int8Linear(*quantize_weight(W))(torch.zeros(3, 192)), torch.zeros(3, 64))


@given(st.integers(1, 3000), st.sets(st.sampled_from((1, 2, 3, 4, 8, 12, 16, 20, 32, 64, 512)), min_size=1))
def test_tiles_cover_every_row_with_sizes_that_agree(rows: int, sizes: set[int]) -> None:
    cuts = Tiles(tuple(sizes)).cut(rows)
    assert set(cuts) <= sizes
    assert sum(cuts[:-1]) < rows <= sum(cuts)


@given(st.integers(1, 70))
def test_a_tiled_function_sees_tiles_alone_and_returns_every_row(rows: int) -> None:
    seen: list[int] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x * 2

    x = torch.randn(rows, 3)
    assert torch.equal(Tiles((4, 16)).apply(double, x), x * 2)
    assert set(seen) <= {4, 16}
