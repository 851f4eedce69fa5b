"""Activations whose bits don't depend on how many elements they are given, or on the number of threads.

A vectorized loop finishes its last elements with scalar code, whose exp has other bits, and every thread
runs a loop of its own: on three threads, 16 rows of 8960 leave such elements in the middle. Here each
thread's part is a whole number of vectors.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

Activation = Literal["silu", "gelu_tanh"]

_LANES = 64  # elements that the widest loop takes at once, twice over


def _parts(kind: Activation, elements: int) -> int:
    """Into how many parts of one size PyTorch cuts its loop. Should it come to do otherwise, models/probe.py
    finds out."""
    threads = torch.get_num_threads()
    if kind == "gelu_tanh":
        return threads if elements > 16384 else 1
    return max(1, min(threads, -(-elements // 32768)))


def activate(kind: Activation, x: torch.Tensor) -> torch.Tensor:
    """The activation of every element of x, float32 of any shape and strides, in a new contiguous tensor."""
    used = x.numel()
    step = _parts(kind, used) * _LANES
    even = -(-used // step) * step
    flat = x.new_empty(even)
    flat[:used].view(x.shape).copy_(x)
    flat[used:].zero_()
    y = F.silu(flat) if kind == "silu" else F.gelu(flat, approximate="tanh")
    return y[:used].view(x.shape)
