"""The load-time probe, held against kernels that lie about some shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.models import attention, probe, torch_build
from surefoot.models import build as build_module
from surefoot.models.linear import Float32Linear, Int8Linear
from surefoot.models.torch_pass import TorchPasses
from tests.random_checkpoint import RandomCheckpoint, small_config

SIZES = (1, 2, 4, 8, 16, 32, 64)


def summing(weight: torch.Tensor, order: Callable[[int, int], torch.Tensor]) -> probe.Kernel:
    """A product that sums each row one term after another, in an order that may depend on the call:
    order(rows in the call, row) is a permutation of the inner dimension."""

    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(x), len(weight))
        for row in range(len(x)):
            for column in order(len(x), row).tolist():
                out[row] += x[row, column] * weight[:, column]
        return out

    return kernel


FORWARD, BACKWARD = torch.arange(24), torch.arange(23, -1, -1)


def rows_and_weight() -> tuple[torch.Tensor, torch.Tensor]:
    return probe.cancelling(64, 8, 24)


def test_an_honest_kernel_agrees_at_every_size() -> None:
    rows, weight = rows_and_weight()
    assert probe.agreeing(summing(weight, lambda count, row: FORWARD), rows, SIZES) == SIZES


def test_a_kernel_that_changes_with_the_row_count_is_kept_to_the_counts_that_agree() -> None:
    rows, weight = rows_and_weight()
    lying = summing(weight, lambda count, row: BACKWARD if count in (1, 2, 64) else FORWARD)
    assert probe.agreeing(lying, rows, SIZES) == (4, 8, 16, 32)


def test_a_kernel_whose_last_row_differs_is_found_out() -> None:
    rows, weight = rows_and_weight()
    lying = summing(weight, lambda count, row: BACKWARD if row == count - 1 and count == 32 else FORWARD)
    assert probe.agreeing(lying, rows, SIZES) == (1, 2, 4, 8, 16, 64)


def test_a_kernel_that_changes_with_the_place_of_a_row_agrees_nowhere() -> None:
    rows, weight = rows_and_weight()
    lying = summing(weight, lambda count, row: BACKWARD if row % 16 < 6 else FORWARD)
    assert probe.agreeing(lying, rows, SIZES) == ()


def test_a_kernel_that_changes_with_the_neighbours_agrees_nowhere() -> None:
    rows, weight = rows_and_weight()
    honest = summing(weight, lambda count, row: FORWARD)

    def lying(x: torch.Tensor) -> torch.Tensor:
        return honest(x) + x.abs().mean() * 1e-6

    assert probe.agreeing(lying, rows, SIZES) == ()


def test_the_probe_rows_cancel_so_that_even_a_bf16_result_shows_the_order() -> None:
    rows, weight = probe.cancelling(16, 64, 512)
    assert (rows.double() @ weight.double().T).abs().max() < 1e-9
    forward, backward = rows @ weight.T, rows.flip(1).contiguous() @ weight.flip(1).contiguous().T
    assert (forward.bfloat16() != backward.bfloat16()).float().mean() > 0.5


def test_a_product_that_saturates_or_rounds_is_not_exact() -> None:
    def saturating(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        pairs = (planes.double()[:, None] * weight.double()).view(len(planes), len(weight), -1, 2).sum(3)
        return (pairs.clamp(-32768, 32767).sum(2) - 128 * weight.double().sum(1)).float()

    def exact(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((planes.double() - 128) @ weight.double().T).float()

    def rounding(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # as oneDNN with AMX
        sums = (planes.double() @ weight.double().T).float()
        return sums - 128 * weight.float().sum(1)

    def missing(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    assert probe.integer_product_is_exact(exact, 64)
    for width in (576, 1536, 8960):  # 519 · 255 · 127 is the first sum that a float32 may not hold
        assert probe.integer_product_is_exact(exact, width)
        assert not probe.integer_product_is_exact(rounding, width)
    assert not probe.integer_product_is_exact(saturating, 64)
    assert not probe.integer_product_is_exact(missing, 64)


def test_attention_that_looks_at_its_company_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.attention_is_canonical(6, 2, 32, torch.float32)
    honest = attention.flash

    def lying(q: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = honest(q, *rest)
        return out * (1 + 1e-6) if q.shape[2] >= 48 else out

    monkeypatch.setattr(attention, "flash", lying)
    assert not probe.attention_is_canonical(6, 2, 32, torch.float32)


def test_a_model_is_kept_to_the_shapes_that_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A linear layer that lies at 64 rows: the decoder never calls it so, and the promise holds."""
    honest = Float32Linear.__call__

    def lying(self: Float32Linear, x: torch.Tensor) -> torch.Tensor:
        out = honest(self, x)
        return out * (1 + 1e-6) if len(x) == 64 else out

    monkeypatch.setattr(Float32Linear, "__call__", lying)
    built = build_module.build(RandomCheckpoint(small_config()), "fp32", tmp_path)
    assert built.inexact is None
    assert isinstance(built.decoder.passes, TorchPasses)
    assert 64 not in built.decoder.passes.tiles.sizes
    assert 32 in built.decoder.passes.tiles.sizes


def test_a_model_that_cannot_be_exact_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = Float32Linear.__call__

    def lying(self: Float32Linear, x: torch.Tensor) -> torch.Tensor:
        return honest(self, x) + x.abs().mean() * 1e-3

    monkeypatch.setattr(Float32Linear, "__call__", lying)
    built = build_module.build(RandomCheckpoint(small_config()), "fp32", tmp_path)
    assert built.inexact is not None


def test_int8_is_not_chosen_where_its_product_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Int8Linear, "product", lambda self, planes: torch.zeros(len(planes), 64))
    assert torch_build.best_precision(small_config()) != "int8"


@pytest.mark.parametrize("exact", ["unsigned", "signed"])
def test_int8_takes_the_form_that_is_exact(exact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(self: Int8Linear, planes: torch.Tensor) -> torch.Tensor:
        rounded = self._planes != exact
        return (planes.double() - 128) @ probed[0].double().T * (0.999 if rounded else 1)

    probed: list[torch.Tensor] = []

    def packed(self: Int8Linear, weight: torch.Tensor, scale: torch.Tensor, planes: str) -> None:
        self._planes = planes  # type: ignore[assignment]
        probed[:] = [weight]

    monkeypatch.setattr(Int8Linear, "product", product)
    monkeypatch.setattr(Int8Linear, "__init__", packed)
    assert torch_build.exact_planes(small_config()) == exact
