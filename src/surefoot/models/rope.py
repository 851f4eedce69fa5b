"""Rotary frequencies under the scalings that are supported."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.models.config import Rope
from surefoot.models.fields import shown
from surefoot.types import SurefootError

SCALINGS = ("default", "linear", "llama3")
MAX_HEAD_DIM = 4096


def plain_rope(head_dim: int, base: float) -> Rope:
    """base^(-2i / head_dim) for i < head_dim / 2, rounded to float32 as models are trained with
    (Su et al., RoFormer, section 3.2.2)."""
    return _rounded([base ** (-2 * i / head_dim) for i in range(head_dim // 2)])


def divided_rope(rope: Rope, factors: Sequence[float]) -> Rope:
    """Each frequency divided by its own factor: how GGUF stores the llama3 scaling."""
    return _rounded([f / factor for f, factor in zip(rope.frequencies, factors, strict=True)])


def scaled_rope(head_dim: int, base: float, scaling: Mapping[str, object], where: str) -> Rope:
    """Frequencies under a `rope_scaling` of a config.json.

    linear: all divided by `factor`. llama3: wavelengths above original context / low_freq_factor divided
    by `factor`, those below original context / high_freq_factor kept, a linear blend between (Llama 3.1).
    Raises SurefootError for any other kind, and for a missing or impossible number; `where` names the file.
    """
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in SCALINGS:
        raise SurefootError(
            f"{where}: rope scaling {shown(kind)} is not supported; {', '.join(SCALINGS)} are"
        )
    if _number(scaling, "partial_rotary_factor", where, default=1.0) != 1.0:
        raise SurefootError(f"{where}: partial_rotary_factor {scaling['partial_rotary_factor']} is not 1")
    plain = plain_rope(head_dim, base)
    if kind == "default":
        return plain
    factor = _number(scaling, "factor", where)
    if kind == "linear":
        return divided_rope(plain, [factor] * len(plain.frequencies))
    low, high = _number(scaling, "low_freq_factor", where), _number(scaling, "high_freq_factor", where)
    original = _number(scaling, "original_max_position_embeddings", where)
    if high <= low:
        raise SurefootError(f"{where}: rope high_freq_factor {high} is not above low_freq_factor {low}")
    return _rounded([_llama3(f, factor, low, high, original) for f in plain.frequencies])


def _llama3(frequency: float, factor: float, low: float, high: float, original: float) -> float:
    turns = original * frequency / (2 * math.pi)  # within the original context
    keep = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (keep + (1 - keep) / factor)


def _number(scaling: Mapping[str, object], key: str, where: str, default: float | None = None) -> float:
    value = scaling.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SurefootError(f"{where}: rope {key} is {shown(value)}, not a number above 0")
    return float(value)


def _rounded(frequencies: Sequence[float]) -> Rope:
    return Rope(tuple(float(np.float32(f)) for f in frequencies))


class RotationTable:
    """cos and sin of every angle of a rotary embedding, by position.

    Computed in float64, in blocks of positions that are always the same: a vectorized cos may give its last
    elements other bits, so what a position gets must not depend on which were asked for with it.
    """

    BLOCK = 512

    def __init__(self, rope: Rope) -> None:
        self._frequencies = np.array(rope.frequencies)
        self._cos = self._sin = np.zeros((0, len(rope.frequencies)), np.float32)

    def at(self, positions: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin at each position, [positions, head_dim / 2] each."""
        while max(positions, default=-1) >= len(self._cos):
            block = np.arange(len(self._cos), len(self._cos) + self.BLOCK, dtype=np.float64)
            angles = np.outer(block, self._frequencies)
            self._cos = np.concatenate((self._cos, np.cos(angles).astype(np.float32)))
            self._sin = np.concatenate((self._sin, np.sin(angles).astype(np.float32)))
        return self._cos[positions], self._sin[positions]
