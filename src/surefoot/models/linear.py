"""Linear layers in each precision: float32 rows in, float32 rows out, the weight packed once.

A kernel may only be called with row counts that the probe (models/probe.py) found to agree to the bit;
`Tiles` cuts a pass into such calls. Integer products are exact in any shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

TorchPrecision = Literal["fp32", "bf16", "int8"]
TORCH_PRECISIONS: tuple[TorchPrecision, ...] = ("fp32", "bf16", "int8")


class Linear(Protocol):
    """y = x Wᵀ + b, x [rows, in] float32 → y [rows, out] float32."""

    @property
    def num_bytes(self) -> int:
        """Bytes of weight that one call reads."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Float32Linear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight.float().contiguous(), bias
        self.num_bytes = 4 * weight.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)


class BFloat16Linear:
    """bf16 weight and activations, sums in float32, result rounded to bf16."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16(), 16)
        self._bias = bias
        self.num_bytes = 2 * weight.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x.bfloat16(), self._packed, None, "none", [], ""
        ).float()
        return y if self._bias is None else y.add_(self._bias)


class Float16Linear:
    """fp16 weight, float32 activations, sums and result: the head of a bf16 model, and of an int8 one whose
    head loses too much in eight bits.

    Two bytes a weight like bf16, but its logits are not rounded to bf16, in which the two largest are
    equal at 5% of positions. bf16 weights fit into fp16 but for those under 6e-5, which lose digits.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
        self.num_bytes = 2 * weight.numel()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y


def quantize_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] → int8 [out, in] and float32 scales [out], one a row: W ≈ q · scale."""
    scale = weight.float().abs().amax(1).clamp_min(1e-20) / 127
    return (weight.float() / scale[:, None]).round().to(torch.int8), scale


_HALF_RANGE = 32639.0  # the largest 16-bit activation whose two bytes, offset by 128 each, stay in a byte
_OFFSET = 128 * 256 + 128


Planes = Literal["unsigned", "signed"]
"""The bytes of an int8 product's activations: uint8, 128 standing for zero, or int8. With VNNI the unsigned
product is exact, and the signed one far too slow to use; with AMX only the signed one is exact, since oneDNN
there converts unsigned sums to float32 before it takes the 128s out, and sums beyond 2²⁴ are rounded."""


class Int8Linear:
    """int8 weight times 16-bit activations, as two exact integer products (docs/design.md §5).

    An activation row is scaled to 16 bits and cut into its high and low byte, both offset by 128. The planes
    are stacked as rows of one product; integer sums don't depend on its shape, and the rest is elementwise.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None = None,
        planes: Planes = "unsigned",
    ) -> None:
        """weight: int8 [out, in]; scale: float32 [out]; bias: float32 [out]."""
        self._packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self._scale, self._bias, self._planes = scale, bias, planes
        self._zero = torch.zeros(len(scale), dtype=torch.long)
        self.num_bytes = weight.numel()

    def product(self, planes: torch.Tensor) -> torch.Tensor:
        """(planes − 128) Wᵀ, uint8 [rows, in] → float32 [rows, out]: the integer, rounded once, times
        the weight's scale."""
        zero_point = 128
        if self._planes == "signed":
            planes, zero_point = (planes ^ 128).view(torch.int8), 0  # flips the top bit: minus 128
        y: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            planes,
            1.0,
            zero_point,
            self._packed,
            self._scale,
            self._zero,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return y

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        planes, step = split_planes(x)
        y = self.product(planes)
        rows = len(x)
        y = torch.add(y[rows:], y[:rows], alpha=256.0).mul_(step)
        return y if self._bias is None else y.add_(self._bias)


def split_planes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, n] float32 → uint8 [2 · rows, n], high bytes then low ones, and steps [rows, 1]:
    x ≈ (256 · (high − 128) + (low − 128)) · step."""
    largest = x.abs().amax(1, keepdim=True).clamp_min_(1e-20)
    whole = (x * (_HALF_RANGE / largest)).add_(_OFFSET + 0.5).to(torch.int32)  # truncation after + ½ rounds
    high = (whole >> 8).to(torch.uint8)
    return torch.cat((high, whole.to(torch.uint8))), largest / _HALF_RANGE


class Tiles:
    """The row counts that agree to the bit, and how to cut a pass into them."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = tuple(sorted(sizes))

    def cut(self, rows: int) -> list[int]:
        """Tile sizes whose sum is at least `rows`; only the last tile may hold padding."""
        cuts = []
        while rows > 0:
            fitting = [size for size in self.sizes if size <= rows]
            rounded = next((size for size in self.sizes if size >= rows), self.sizes[-1])
            # One padded tile beats two calls unless it would be half empty.
            size = rounded if not fitting or (rounded >= rows and rounded < 2 * fitting[-1]) else fitting[-1]
            cuts.append(size)
            rows -= size
        return cuts

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """A row-wise function over x, in calls of tiles; zeros are added and cut off where rows are short."""
        cuts = self.cut(len(x))
        if cuts == [len(x)]:
            return function(x)
        rows = len(x)
        if sum(cuts) > rows:
            x = torch.cat((x, x.new_zeros(sum(cuts) - rows, x.shape[1])))
        return torch.cat([function(part) for part in x.split(cuts)])[:rows]
