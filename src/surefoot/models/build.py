"""From a checkpoint to a decoder that keeps the promise: who computes, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from surefoot.models.config import Checkpoint
from surefoot.models.decoder import Decoder
from surefoot.models.native_pass import NativePasses
from surefoot.models.packed import NativePrecision, pack
from surefoot.models.torch_build import build_torch
from surefoot.native.library import Library
from surefoot.types import SurefootError

Precision = Literal["file", "int8", "bf16", "fp32"]
PRECISIONS: tuple[Precision, ...] = ("file", "int8", "bf16", "fp32")
"""file: the quantized blocks of a GGUF file as they are. The first two are the native core's; int8 is also
PyTorch's, where the core is missing."""


@dataclass(frozen=True, slots=True)
class Built:
    """precision: the one in use. kernels: who computes, an instruction set or "pytorch". inexact: why a row
    may differ with its company; None when it can't."""

    decoder: Decoder
    precision: Precision
    kernels: str
    inexact: str | None


def build(
    checkpoint: Checkpoint, precision: Precision | None, folder: Path, library: Library | None = None
) -> Built:
    """precision: None chooses the fastest that is exact here. folder: where prepared weights are kept.
    library: the native core; None leaves everything to PyTorch.

    Raises SurefootError for a precision that this machine or this file doesn't have, or a damaged file.
    """
    blocks = any(checkpoint.blocks(name) for name in checkpoint.names() if name.endswith(".weight"))
    if precision == "file" and not blocks:
        raise SurefootError("precision file: this model has no quantized blocks; use int8, bf16 or fp32")
    if precision == "file" and library is None:
        raise SurefootError("precision file: needs the native kernels; use int8, bf16 or fp32")
    if library is not None and precision in (None, "file", "int8"):
        chosen: NativePrecision = "int8" if precision == "int8" or not blocks else "file"
        threads = torch.get_num_threads()
        packed = pack(checkpoint, chosen, library, folder, threads)
        passes = NativePasses(checkpoint.config, packed, library, threads)
        return Built(Decoder(checkpoint.config, passes), chosen, library.isa.name, None)
    assert precision != "file"
    by_torch, used, inexact = build_torch(checkpoint, precision, folder)
    return Built(Decoder(checkpoint.config, by_torch), used, "pytorch", inexact)
