"""What the numbers were measured on, and the memory bandwidth that bounds them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
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
    """The processor, what of it matters here, what else it did in the last minute, and the versions."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
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


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """At what rate memory is read, and what read it."""

    bytes_per_second: float
    by: str


READERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "matrix-vector product": lambda block: torch.mv(block.view(-1, 4096), block[:4096]),
}


def read_bandwidth() -> Bandwidth:
    """The best of several reads of a GiB, more than any cache holds, by as many threads as torch has. Which
    reader is the faster differs between machines."""
    block = torch.ones(1 << 28)
    seconds = {name: min(_seconds(read, block) for _ in range(9)) for name, read in READERS.items()}
    by = min(seconds, key=lambda name: seconds[name])
    return Bandwidth(block.nbytes / seconds[by], by)


def _seconds(read: Callable[[torch.Tensor], torch.Tensor], block: torch.Tensor) -> float:
    began = time.perf_counter()
    read(block)
    return time.perf_counter() - began
