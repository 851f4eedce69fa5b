"""What the native core computes from: a checkpoint's weights, packed once, then mapped from the disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.config import Checkpoint
from surefoot.models.store import Arrays, keep, kept
from surefoot.native.library import Library
from surefoot.native.model import BLOCKS, Format

LAYOUT = 1  # of the names and bytes below; raise it when either changes

NativePrecision = Literal["file", "int8"]

Packed = Arrays
"""Norms and biases float32 under the checkpoint's own names; each matrix (layers.N.{q,k,v,o,gate,up,down},
head, embed) as NAME.FORMAT, uint8, as `native.library` packs it. The embedding is absent where it is the
head, and `embed.bf16`, uint16, where it is kept in bf16."""

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

log = logging.getLogger("surefoot")


def pack(
    checkpoint: Checkpoint, precision: NativePrecision, library: Library, folder: Path, threads: int
) -> Packed:
    """The packed arrays of a checkpoint, from `folder` where they have been before.

    precision: "file" keeps the quantized blocks of the file, and rounds what is float in it to 8 bits;
    "int8" rounds everything. A folder that can't be written to costs the time again next time, and is logged.
    """
    path = folder / f"{checkpoint.fingerprint}-{precision}-packed-{LAYOUT}"
    found = kept(path)
    if found is None:
        try:
            keep(_derive(checkpoint, precision, library, threads), path)
        except OSError as error:
            log.warning("%s: could not be kept for the next start: %s", path, error)
        else:
            found = kept(path)
    return dict(_derive(checkpoint, precision, library, threads)) if found is None else found


def _derive(
    checkpoint: Checkpoint, precision: NativePrecision, library: Library, threads: int
) -> Iterator[tuple[str, NDArray[np.generic]]]:
    def matrix(name: str, rounded: Format) -> tuple[str, NDArray[np.uint8]]:
        blocks = checkpoint.blocks(f"{name}.weight") if precision == "file" else None
        if blocks is None:
            weight = checkpoint.tensor(f"{name}.weight").numpy()
            return f"{name}.{rounded.name}", library.pack_int8(rounded, np.ascontiguousarray(weight), threads)
        form = Format[blocks.kind]
        size, num_bytes = BLOCKS[form]
        outputs, row = blocks.rows.shape
        source = np.ascontiguousarray(blocks.rows).reshape(-1)
        return f"{name}.{form.name}", library.pack_blocks(
            form, outputs, row // num_bytes * size, source, threads
        )

    config, names = checkpoint.config, checkpoint.names()
    has_blocks = precision == "file" and checkpoint.blocks("embed.weight") is not None
    if not has_blocks:
        table = checkpoint.tensor("embed.weight").bfloat16().view(torch.uint16)
        yield "embed.bf16", table.numpy()
    elif not config.tied_head:
        yield matrix("embed", Format.INT8_32)
    # A head's rounding shows in the top token; groups of 32 halve it for 3% of its bytes.
    if config.tied_head:
        name, head = matrix("embed", Format.INT8_32)
        yield name.replace("embed", "head"), head
    else:
        yield matrix("head", Format.INT8_32)
    for layer in range(config.num_layers):
        for part in MATRICES:
            yield matrix(f"layers.{layer}.{part}", Format.INT8_64)
    for name in names:
        if "norm" in name or name.endswith(".bias"):
            yield name, checkpoint.tensor(name).numpy()
