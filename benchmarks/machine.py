"""What the numbers were measured on, and the memory bandwidth that bounds them."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as `load_model` does, before torch is there

import torch

FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def describe() -> dict[str, object]:
    """The processor, what of it matters here, and the versions."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
    }


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_bandwidth(num_bytes: int = 1 << 30, repetitions: int = 9) -> float:
    """Bytes a second at which memory is read: the best of several sums over more than any cache holds."""
    block = torch.ones(num_bytes // 4)
    best = min(_seconds_of_sum(block) for _ in range(repetitions))
    return num_bytes / best


def _seconds_of_sum(block: torch.Tensor) -> float:
    began = time.perf_counter()
    block.sum()
    return time.perf_counter() - began
