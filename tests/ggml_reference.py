"""GGUF's block formats read number by number, as ggml defines their layout: slow, and plain to check."""

from __future__ import annotations

import struct
from collections.abc import Callable

Block = Callable[[bytes], list[float]]


def _half(raw: bytes, offset: int) -> float:
    return float(struct.unpack_from("<e", raw, offset)[0])


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _q4_0(raw: bytes) -> list[float]:
    d, q = _half(raw, 0), raw[2:]
    return [d * ((b & 15) - 8) for b in q] + [d * ((b >> 4) - 8) for b in q]


def _q4_1(raw: bytes) -> list[float]:
    d, m, q = _half(raw, 0), _half(raw, 2), raw[4:]
    return [d * (b & 15) + m for b in q] + [d * (b >> 4) + m for b in q]


def _q5_0(raw: bytes) -> list[float]:
    d, high, q = _half(raw, 0), int.from_bytes(raw[2:6], "little"), raw[6:]
    low = [b & 15 for b in q] + [b >> 4 for b in q]
    return [d * ((b | (high >> i & 1) << 4) - 16) for i, b in enumerate(low)]


def _q8_0(raw: bytes) -> list[float]:
    return [_half(raw, 0) * _signed(b) for b in raw[2:]]


def _scale_and_min(scales: bytes, i: int) -> tuple[int, int]:
    """The i-th of eight pairs of 6-bit numbers in 12 bytes."""
    if i < 4:
        return scales[i] & 63, scales[i + 4] & 63
    scale = scales[i + 4] & 15 | (scales[i - 4] >> 6) << 4
    return scale, scales[i + 4] >> 4 | (scales[i] >> 6) << 4


def _q4_k(raw: bytes) -> list[float]:
    d, least, scales, q = _half(raw, 0), _half(raw, 2), raw[4:16], raw[16:]
    values: list[float] = []
    for group in range(8):
        scale, low = _scale_and_min(scales, group)
        nibbles = [b >> 4 * (group % 2) & 15 for b in q[group // 2 * 32 :][:32]]
        values += [d * scale * n - least * low for n in nibbles]
    return values


def _q5_k(raw: bytes) -> list[float]:
    d, least, scales, high, q = _half(raw, 0), _half(raw, 2), raw[4:16], raw[16:48], raw[48:]
    values: list[float] = []
    for group in range(8):
        scale, low = _scale_and_min(scales, group)
        nibbles = [b >> 4 * (group % 2) & 15 for b in q[group // 2 * 32 :][:32]]
        fifth = [(h >> group & 1) << 4 for h in high]
        values += [d * scale * (n | f) - least * low for n, f in zip(nibbles, fifth, strict=True)]
    return values


def _q6_k(raw: bytes) -> list[float]:
    low, high, scales, d = raw[:128], raw[128:192], raw[192:208], _half(raw, 208)
    values: list[float] = []
    for i in range(256):
        half, quarter, place = i // 128, i % 128 // 32, i % 32
        nibble = low[64 * half + 32 * (quarter % 2) + place] >> 4 * (quarter // 2) & 15
        upper = high[32 * half + place] >> 2 * quarter & 3
        values.append(d * _signed(scales[i // 16]) * ((nibble | upper << 4) - 32))
    return values


BLOCKS: dict[str, tuple[int, int, Block]] = {
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q8_0": (32, 34, _q8_0),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
}
"""Values per block, bytes per block, and how to read one."""

SCALES = {kind: (0, 2) if kind in ("Q4_1", "Q4_K", "Q5_K") else (0,) for kind in BLOCKS} | {"Q6_K": (208,)}
"""Where a block's half-precision numbers lie; everything else in it may be any bits."""


def read_blocks(kind: str, raw: bytes) -> list[float]:
    """All numbers of some whole blocks."""
    _, size, read = BLOCKS[kind]
    return [value for start in range(0, len(raw), size) for value in read(raw[start : start + size])]
