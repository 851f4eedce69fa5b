"""What the native core computes from: a checkpoint's weights, packed once, then mapped from the disk."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.config import Checkpoint
from surefoot.native.arrays import LINE
from surefoot.native.library import Library
from surefoot.native.model import BLOCKS, Format

LAYOUT = 1  # of the names and bytes below; raise it when either changes

NativePrecision = Literal["file", "int8"]

Packed = Mapping[str, NDArray[np.generic]]
"""Norms and biases float32 under the checkpoint's own names; each matrix (layers.N.{q,k,v,o,gate,up,down},
head, embed) as NAME.FORMAT, uint8, as `native.library` packs it. The embedding is absent where it is the
head, and `embed.bf16`, uint16, where it is kept in bf16."""

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

Entry = tuple[int, str, tuple[int, ...]]  # of an array in the file: its first byte, type and shape

_WEIGHTS, _INDEX = "weights.bin", "index.json"
"""One file for all, since each mapped file would count as an open one; and where each array lies in it."""

_PARTIAL = ".partial"
_ABANDONED = 3600  # seconds after which nobody goes on writing what isn't whole

log = logging.getLogger("surefoot")


def pack(
    checkpoint: Checkpoint, precision: NativePrecision, library: Library, folder: Path, threads: int
) -> Packed:
    """The packed arrays of a checkpoint, from `folder` where they have been before.

    precision: "file" keeps the quantized blocks of the file, and rounds what is float in it to 8 bits;
    "int8" rounds everything. A folder that can't be written to costs the time again next time, and is logged.
    """
    path = folder / f"{checkpoint.fingerprint}-{precision}-packed-{LAYOUT}"
    kept = _kept(path)
    if kept is None:
        try:
            _write(_derive(checkpoint, precision, library, threads), path)
        except OSError as error:
            log.warning("%s: could not be kept for the next start: %s", path, error)
        else:
            kept = _kept(path)
    return dict(_derive(checkpoint, precision, library, threads)) if kept is None else kept


def _kept(path: Path) -> Packed | None:
    """What was packed before. None where there is nothing, and where it is damaged, which is removed."""
    try:
        return _read(path) if path.exists() else None
    except (OSError, ValueError) as error:
        log.warning("%s: %s; made anew", path, error)
        shutil.rmtree(path, ignore_errors=True)
        return None


def _read(path: Path) -> Packed:
    """Mapped: nothing is read before it is used, and every process shares one copy. Raises ValueError for an
    index that isn't the one written here, and for weights that end before it says."""
    index = json.loads((path / _INDEX).read_text())
    match index:
        case {"arrays": dict(arrays), "digest": digest} if digest == _digest(path, arrays):
            weights = np.memmap(path / _WEIGHTS, np.uint8, "r")
            return {name: _view(weights, *entry) for name, entry in arrays.items()}
    raise ValueError(f"{_INDEX} is not what was written there")


def _view(weights: NDArray[np.uint8], start: int, dtype: str, shape: Sequence[int]) -> NDArray[np.generic]:
    end = start + math.prod(shape) * np.dtype(dtype).itemsize
    if end > len(weights):
        raise ValueError(f"{_WEIGHTS} has {len(weights)} bytes, not {end}")
    return weights[start:end].view(dtype).reshape(shape)


def _digest(path: Path, arrays: Mapping[str, Entry]) -> str:
    """Says that these arrays were written for this place: it is named by model and precision."""
    return hashlib.sha256(f"{path.name}\0{json.dumps(arrays)}".encode()).hexdigest()


def _write(arrays: Iterator[tuple[str, NDArray[np.generic]]], path: Path) -> None:
    """Puts a folder in place that is whole, so that processes may pack at once: the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(_PARTIAL, f"{path.name}.", path.parent) as room:
        fresh = Path(room) / path.name
        fresh.mkdir()
        _fill(fresh, arrays)
        try:
            fresh.rename(path)
        except OSError:
            if not path.is_dir():
                raise


def _fill(folder: Path, arrays: Iterator[tuple[str, NDArray[np.generic]]]) -> None:
    entries: dict[str, Entry] = {}
    with (folder / _WEIGHTS).open("wb") as file:
        for name, array in arrays:
            file.write(bytes(-file.tell() % LINE))
            entries[name] = (file.tell(), array.dtype.str, array.shape)
            file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())  # or a machine that loses power may keep the name and not the bytes
    index = {"arrays": entries, "digest": _digest(folder, entries)}
    (folder / _INDEX).write_text(json.dumps(index))


def _remove_abandoned(folder: Path) -> None:
    """A process that was killed while it packed leaves gigabytes behind."""
    for partial in folder.glob(f"*{_PARTIAL}"):
        with suppress(OSError):
            if time.time() - _last_written(partial) > _ABANDONED:
                shutil.rmtree(partial)


def _last_written(partial: Path) -> float:
    return max(path.stat().st_mtime for path in (partial, *partial.rglob("*")))


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
