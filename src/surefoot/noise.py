"""Randomness without state: every number is a hash of what it is for.

Coupled verification needs the noise of a position to be the same in every run (`token_key`); rejection and
block verification need it never to be used twice (`round_key`). Both name a row of numbers, one per token.
"""

from __future__ import annotations

import struct
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64 - 1
_SPREAD = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio, odd: neighbouring ids start far apart
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finalizer (Steele, Lea & Flood 2014, variant 13)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 8192  # tokens raced at a time: their words stay in a core's own cache
_ONE = np.uint64(0x3FF0000000000000)  # the bits of 1.0
_HALF_STEP = 1.0 - 2.0**-53
_SLACK = 1.0 + 1e-12  # computed logarithms are a few ulp from the true ones, for which the bound holds


class Key(NamedTuple):
    """Names a row of noise: 128 bits, two words in [0, 2⁶⁴)."""

    high: int
    low: int


class Stream(Enum):
    """What the fresh noise of a round is used for; no two uses may share it."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def token_key(seed: int, choice: int, position: int) -> Key:
    """The noise of one position of one request, whatever the round, drafter or batch.

    seed: in [0, 2⁶⁴). choice: which of the request's n. position: index of the token being chosen, within
    prompt and output together.
    """
    return _hash(struct.pack("<BQQQ", 0, seed, choice, position))


def round_key(seed: int, choice: int, round_position: int, node: int, stream: Stream) -> Key:
    """Noise that no other round shares.

    round_position: committed tokens when the round began. node: index of the draft node it is for, -1 for
    the last committed token.
    """
    return _hash(struct.pack("<BQQQq", stream.value, seed, choice, round_position, node))


def _hash(packed: bytes) -> Key:
    return Key(*struct.unpack("<QQ", blake2b(packed, digest_size=16, person=b"surefoot noise").digest()))


def bits(key: Key, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits per token id, [len(ids)]: a key word, splitmix64's finalizer, and both again."""
    words = ids.astype(np.uint64)
    scratch = np.empty_like(words)
    words *= np.uint64(_SPREAD)
    words += np.uint64(key.high)
    _finalize(words, scratch)
    words ^= np.uint64(key.low)
    _finalize(words, scratch)
    return words


def _finalize(words: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        np.right_shift(words, np.uint64(shift), out=scratch)
        words ^= scratch
        words *= factor
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch


def to_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """u = (k + ½)·2⁻⁵² with k the top 52 bits: every value is a float64 exactly, none is 0 or 1.

    With 53 bits the largest k + ½ would round to 2⁵³, so u to 1 and its exponential to zero.
    """
    mantissas = words >> np.uint64(12)
    mantissas |= _ONE
    uniforms = mantissas.view(np.float64)  # 1 + k·2⁻⁵²
    uniforms -= _HALF_STEP
    return uniforms


def to_exponentials(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """E = −log u: within [2⁻⁵³, 36.8), so never zero and never infinite."""
    return -np.log(uniforms)


def exponentials(key: Key, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """One standard exponential per token id, [len(ids)]."""
    return to_exponentials(to_uniforms(bits(key, ids)))


def uniform(key: Key) -> float:
    """One number in (0, 1)."""
    return float(to_uniforms(bits(key, np.zeros(1, np.int64)))[0])


def race(key: Key, ids: NDArray[np.int64], probs: NDArray[np.float64]) -> int:
    """The token that comes first when each runs at the rate of its probability: an exact sample.

    argmin of E[v] / probs[v] over probs[v] > 0, ties to the lowest id (the exponential race, which is
    Gumbel-max: argmax of log p + G). Two distributions raced under one key agree with probability at least
    (1 − TV) / (1 + TV) (Daliri et al. 2408.07978).

    ids: [m] int64, ascending. probs: [m] float64, need not sum to 1. Raises ValueError when none is
    positive.
    """
    if len(ids) == 1 and probs[0] > 0:
        return int(ids[0])
    winner, best = -1, np.inf
    for start in range(0, len(ids), _BLOCK):
        runners, rates = ids[start : start + _BLOCK], probs[start : start + _BLOCK]
        running = rates > 0
        if not running.all():
            runners, rates = runners[running], rates[running]
        if not len(runners):
            continue
        index, time = _first(to_uniforms(bits(key, runners)), rates)
        if time < best or winner < 0:
            winner, best = int(runners[index]), time
    if winner < 0:
        raise ValueError("no token has a positive probability")
    return winner


def _first(uniforms: NDArray[np.float64], rates: NDArray[np.float64]) -> tuple[int, float]:
    """Index and value of the least −log(u) / rate, the first on ties, with few logarithms.

    −log u ≥ 1 − u, so whoever's bound lies behind the leader's time needs none.
    """
    with np.errstate(over="ignore"):  # a rate below 1e-307 may give infinity, which only never wins
        bounds = 1.0 - uniforms
        bounds /= rates
        leader = int(bounds.argmin())
        limit = to_exponentials(uniforms[leader : leader + 1])[0] / rates[leader]
        contenders = np.flatnonzero(bounds <= limit * _SLACK)
        times = to_exponentials(uniforms[contenders]) / rates[contenders]
    index = int(times.argmin())
    return int(contenders[index]), float(times[index])
