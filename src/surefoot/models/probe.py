"""Which shapes agree to the bit on this machine: measured at load, not assumed (docs/design.md §1a).

No library promises that a row of a matrix product has the same bits in a call of 16 rows and in one of
32, so every kernel is asked. Its probe rows cancel: each weight meets its own negative somewhere else
in the sum, the exact result is zero, and what is left is nothing but the order of summation, in the
leading digits, where even a result rounded to bf16 shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from surefoot.models import attention
from surefoot.models.activation import Activation, activate
from surefoot.models.linear import Linear, split_planes

Kernel = Callable[[torch.Tensor], torch.Tensor]

REFERENCE = 16  # rows; every other count is held against it
CANDIDATES = (*range(1, 13), 14, 16, 20, 24, 28, 32, 48, 64, 96, 128)


def cancelling(rows: int, outs: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Probe activations [rows, width] and weights [outs, width], float32 holding bf16 values, whose
    products sum to zero in exact arithmetic: column j is column π(j) again, with x negated."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randperm(width - width % 2, generator=generator).view(2, -1)
    x = torch.randn(rows, width, generator=generator).bfloat16().float()
    w = torch.randn(outs, width, generator=generator).bfloat16().float()
    x[:, half[1]] = -x[:, half[0]]
    w[:, half[1]] = w[:, half[0]]
    return x, w


def agreeing(kernel: Kernel, rows: torch.Tensor, candidates: Sequence[int]) -> tuple[int, ...]:
    """The row counts at which `kernel` gives each row the bits that it has in a call of 16.

    rows: [at least max(candidates), width]. A row must also have the same bits wherever it stands in a
    call; where even calls of 16 don't hold to that, nothing does, and the answer is empty.
    """
    expected = _in_calls_of(REFERENCE, kernel, rows)
    # 5 is coprime to every tile height in use, so each row meets other places and other neighbours.
    moved = _in_calls_of(REFERENCE, kernel, rows.roll(5, 0)).roll(-5, 0)
    if not torch.equal(expected, moved):
        return ()
    return tuple(size for size in candidates if _holds(kernel, rows, expected, size))


def _holds(kernel: Kernel, rows: torch.Tensor, expected: torch.Tensor, size: int) -> bool:
    used = max(size, 2 * REFERENCE // size * size)
    for shift in (0, 5):
        if not torch.equal(
            _in_calls_of(size, kernel, rows.roll(shift, 0)[:used]), expected.roll(shift, 0)[:used]
        ):
            return False
    return True


def _in_calls_of(size: int, kernel: Kernel, rows: torch.Tensor) -> torch.Tensor:
    short = -len(rows) % size
    padded = torch.cat((rows, rows[:short]))
    return torch.cat([kernel(part.contiguous()) for part in padded.split(size)])[: len(rows)]


def linear_sizes(
    build: Callable[[torch.Tensor], Linear], outs: int, width: int, candidates: Sequence[int]
) -> tuple[int, ...]:
    """The row counts at which a layer of this shape, packed by `build` from its weight, agrees."""
    x, w = cancelling(max(candidates), min(outs, 512), width)
    weight = w.repeat(-(-outs // len(w)), 1)[:outs]
    return agreeing(build(weight), x, candidates)


def integer_product_is_exact(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], width: int
) -> bool:
    """Whether uint8 × int8 products are the exact integers: at the values that saturate first, and at those
    whose sums, 128s included, first need more than the 24 bits of a float32.

    product: (planes [rows, width] uint8, weight [outs, width] int8) → (planes − 128) Wᵀ in float32, as
    `Int8Linear.product` with scale 1. Raises nothing: a kernel that this machine lacks is not exact.
    """
    generator = torch.Generator().manual_seed(0)
    planes = torch.randint(0, 256, (24, width), generator=generator).to(torch.uint8)
    weight = torch.randint(-127, 128, (64, width), generator=generator).to(torch.int8)
    planes[:4], planes[4:8] = 255, 0
    weight[:16], weight[16:32] = 127, -127
    planes[8:12] = planes[8:12] % 6 + 250
    weight[32:40], weight[40:48] = 127 - weight[32:40].abs() % 8, weight[40:48].abs() % 8 - 127
    expected = ((planes.double() - 128) @ weight.double().T).float()
    try:
        return all(torch.equal(product(planes[:rows], weight), expected[:rows]) for rows in (1, 2, 16, 24))
    except RuntimeError:
        return False


def glue_sizes(
    hidden: int, intermediate: int, head_dim: int, kind: Activation, candidates: Sequence[int]
) -> tuple[int, ...]:
    """The row counts at which what stands between the products agrees: norm, activation, quantization.

    Vectorized loops finish their last elements with scalar code, which may round otherwise: where such a
    tail falls depends on the number of elements and threads. `activate` leaves none, or so it should.
    """
    generator = torch.Generator().manual_seed(1)
    narrow = torch.randn(max(candidates), hidden, generator=generator) * 3
    wide = torch.randn(max(candidates), intermediate, generator=generator) * 3
    scale, head_scale = torch.rand(hidden, generator=generator), torch.rand(head_dim, generator=generator)
    heads = torch.randn(max(candidates), 4 * head_dim, generator=generator) * 3

    def planes(x: torch.Tensor) -> torch.Tensor:
        halves, step = split_planes(x)
        return torch.cat((*halves.float().split(len(x)), step), 1)

    kernels: list[tuple[Kernel, torch.Tensor]] = [
        (lambda x: F.rms_norm(x, (hidden,), scale, 1e-6), narrow),
        (lambda x: F.rms_norm(x.view(len(x), 4, head_dim), (head_dim,), head_scale, 1e-6), heads),
        (lambda x: activate(kind, x), wide),
        (planes, narrow),
    ]
    return intersection([agreeing(kernel, rows, candidates) for kernel, rows in kernels])


def attention_is_canonical(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether a row's attention has the same bits alone and among others, and under larger buckets."""
    generator = torch.Generator().manual_seed(2)
    length, group = 700, heads // kv_heads
    queries = torch.randn(length, heads, head_dim, generator=generator).to(dtype)
    keys, values = (
        torch.randn(4 * attention.KEY_BUCKET, kv_heads, head_dim, generator=generator).to(dtype) for _ in "kv"
    )

    def rows(first: int, count: int, num_keys: int) -> torch.Tensor:
        span = attention.make_span(
            range(count),
            range(first, first + count),
            range(num_keys),
            len(keys),
            group,
            frozenset({None}),
            dtype,
        )
        mask = span.masks[None]
        chosen = slice(first, first + count)
        return attention.attend(queries[chosen], keys[span.keys], values[span.keys], mask, head_dim**-0.5)

    probes = (3, 17, 255, 300, 511, 512, 600)
    alone = {row: rows(row, 1, row + 1)[0] for row in probes}
    if any(not torch.equal(rows(row, 1, 3 * attention.KEY_BUCKET)[0], alone[row]) for row in probes):
        return False
    for count in (2, 5, 16, 17, 33, 48, 80, 300, 600):
        for first in (0, 2, 200, 496):
            chunk = rows(first, min(count, length - first), length)
            inside = [row for row in probes if first <= row < first + len(chunk)]
            if any(not torch.equal(chunk[row - first], alone[row]) for row in inside):
                return False
    return True


def intersection(sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    common = set(sizes[0]).intersection(*sizes[1:])
    return tuple(sorted(common))
