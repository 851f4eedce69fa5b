"""Arrays kept on the disk and mapped back: one folder for all that was computed from one model."""

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

import numpy as np
from numpy.typing import NDArray

from surefoot.native.arrays import LINE

Arrays = Mapping[str, NDArray[np.generic]]

Entry = tuple[int, str, tuple[int, ...]]  # of an array in the file: its first byte, type and shape

_WEIGHTS, _INDEX = "weights.bin", "index.json"
"""One file for all, since each mapped file counts as an open one; and where each array lies in it."""

_PARTIAL = ".partial"
_ABANDONED = 3600  # seconds after which nobody goes on writing what isn't whole

log = logging.getLogger("surefoot")


def kept(path: Path) -> Arrays | None:
    """What was kept there. None where there is nothing, or something damaged, which is logged and removed."""
    try:
        return _read(path) if path.exists() else None
    except (OSError, ValueError) as error:
        log.warning("%s: %s; made anew", path, error)
        shutil.rmtree(path, ignore_errors=True)
        return None


def _read(path: Path) -> Arrays:
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


def keep(arrays: Iterator[tuple[str, NDArray[np.generic]]], path: Path) -> None:
    """Puts a folder in place that is whole, so that processes may write it at once: the first one's stays.
    Raises OSError where it can't be written."""
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
