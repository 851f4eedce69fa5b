"""One pass over a model: its rows, the keys they read, and where keys and logits go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.native.arrays import Floats, check, check_range, pointer
from surefoot.native.model import Model
from surefoot.native.structs import SfPass

KEY_MULTIPLE = 16  # a key's numbers are padded to a multiple of so many


def key_stride(head_dim: int) -> int:
    """How many numbers a key or value takes in the cache."""
    return -(-head_dim // KEY_MULTIPLE) * KEY_MULTIPLE


@dataclass(frozen=True, eq=False)
class Pass:
    """The rows of a pass and what they work on.

    x: [rows, hidden], the embedded tokens, overwritten. cos, sin: [rotations, rows, head_dim / 2].
    slots, first_key, num_keys: row r reads the keys in slots[first_key[r] : first_key[r] + num_keys[r]], in
    position order, its own the last. keys, values: [layers, num_slots, kv_heads, key_stride], zeros past
    head_dim. wanted_rows: whose logits are written, to `logits`, [wanted, vocabulary]; they ascend.
    """

    x: Floats
    cos: Floats
    sin: Floats
    slots: NDArray[np.int32]
    first_key: NDArray[np.int64]
    num_keys: NDArray[np.int32]
    keys: NDArray[np.float16]
    values: NDArray[np.float16]
    wanted_rows: NDArray[np.int32]
    logits: Floats

    def struct(self, model: Model) -> SfPass:
        """For a pass over this model. Raises ValueError for what doesn't fit it."""
        rows, wanted, slots = len(self.x), len(self.wanted_rows), self.keys.shape[1]
        stride = key_stride(model.head_dim)
        cache = (len(model.layers), slots, model.kv_heads, stride)
        check("x", self.x, "float32", rows, model.hidden)
        check("cos", self.cos, "float32", model.rotations, rows, model.head_dim // 2)
        check("sin", self.sin, "float32", *self.cos.shape)
        check("slots", self.slots, "int32", self.slots.size)
        check("first_key", self.first_key, "int64", rows)
        check("num_keys", self.num_keys, "int32", rows)
        check("keys", self.keys, "float16", *cache)
        check("values", self.values, "float16", *cache)
        check("wanted_rows", self.wanted_rows, "int32", wanted)
        check("logits", self.logits, "float32", wanted, model.vocabulary)
        check_range("slots", self.slots, 0, slots - 1)
        check_range("first_key", self.first_key, 0, self.slots.size - 1)
        check_range("num_keys", self.num_keys, 1, self.slots.size)
        check_range("first_key + num_keys", self.first_key + self.num_keys, 1, self.slots.size)
        check_range("wanted_rows", self.wanted_rows, 0, rows - 1)
        if (np.diff(self.wanted_rows) <= 0).any():
            raise ValueError(f"wanted_rows: {self.wanted_rows.tolist()}; they are to ascend")
        return SfPass(
            rows=rows,
            wanted=wanted,
            x=pointer(self.x),
            cos=pointer(self.cos),
            sin=pointer(self.sin),
            slots=pointer(self.slots),
            first_key=pointer(self.first_key),
            num_keys=pointer(self.num_keys),
            keys=pointer(self.keys),
            values=pointer(self.values),
            num_slots=slots,
            key_stride=stride,
            wanted_rows=pointer(self.wanted_rows),
            logits=pointer(self.logits),
        )
