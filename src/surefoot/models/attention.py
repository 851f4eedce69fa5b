"""Attention of rows over their own keys, in shapes whose bits don't depend on the company.

The canonical shape (docs/design.md §1a): the queries of one key head, padded to a multiple of 16 rows;
keys in position order along the row's own path, padded to a multiple of 512, the block in which the
kernel sums; one kernel, called by name, never picked by shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

QUERY_TILE = 16
KEY_BUCKET = 512

Index = slice | torch.Tensor


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def as_index(places: Sequence[int] | NDArray[np.int32]) -> Index:
    """A slice where the places follow each other (read in place), else a tensor (gathered)."""
    array = np.asarray(places)
    first = int(array[0])
    if (np.diff(array) == 1).all():
        return slice(first, first + len(array))
    return torch.from_numpy(array.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of a pass that read one list of keys: a chain, or one root-to-leaf path of a tree.

    rows: which rows of the pass. keys: their slots in position order, padded to a key bucket.
    masks: per attention window (None = all) an additive mask [1, 1, queries, keys].
    """

    rows: Index
    keys: Index
    masks: dict[int | None, torch.Tensor]


def make_span(
    rows: Sequence[int],
    positions: Sequence[int],
    slots: Sequence[int] | NDArray[np.int32],
    num_slots: int,
    group: int,
    windows: frozenset[int | None],
    dtype: torch.dtype,
) -> Span:
    """The span of `rows` at `positions` over the keys at `slots` (position i's key is slots[i]).

    group: query heads per key head. Keys are padded with whatever lies behind the last slot, or with
    slot 0: finite and masked, so it adds exactly zero.
    """
    padded = round_up(len(slots), KEY_BUCKET)
    keys = as_index(slots)
    if isinstance(keys, slice) and keys.start + padded <= num_slots:
        keys = slice(keys.start, keys.start + padded)
    else:
        keys = torch.zeros(padded, dtype=torch.long)
        keys[: len(slots)] = torch.as_tensor(np.asarray(slots))
    masks = {window: _mask(positions, padded, group, window, dtype) for window in windows}
    return Span(as_index(rows), keys, masks)


def _mask(
    positions: Sequence[int], num_keys: int, group: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    query = torch.tensor(positions).unsqueeze(1)
    key = torch.arange(num_keys)
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    rows = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    mask = rows.new_zeros(round_up(len(positions) * group, QUERY_TILE), num_keys)
    mask[: len(positions) * group] = rows.repeat_interleave(group, 0)
    return mask[None, None]


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention, [rows, heads, head_dim] over [keys, kv heads, head_dim] of one dtype.

    mask: as in `Span`. Returns [rows, heads, head_dim].
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    used, padded = num_rows * group, mask.shape[2]
    # Heads that share keys become rows of one product: [kv heads, rows · group, head_dim].
    grouped = queries.view(num_rows, num_kv_heads, group, head_dim).transpose(0, 1)
    tile = queries.new_zeros(1, num_kv_heads, padded, head_dim)
    tile[0, :, :used].view(num_kv_heads, num_rows, group, head_dim).copy_(grouped)
    out = flash(tile, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], mask, scale)
    ungrouped = out[0, :, :used].view(num_kv_heads, num_rows, group, head_dim)
    return ungrouped.transpose(0, 1).reshape(num_rows, num_heads, head_dim)


def flash(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """PyTorch's CPU kernel, by name: its dispatcher would choose another one for other shapes."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out: torch.Tensor = kernel(queries, keys, values, 0.0, False, attn_mask=mask, scale=scale)[0]
    return out
