"""Every answered call, one line of JSON each, so that a run that broke off goes on where it was."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from surefoot.types import SurefootError

_FORMAT = "surefoot server journal 1"


class Journal:
    """Answers by key. Without a path they are kept in memory alone.

    settings: what the answers depend on. Raises SurefootError naming the file, the setting and both values
    when the file was written with other ones, or is no journal. A last line that a killed process left
    unfinished is dropped. Threads may share it.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, object]) -> None:
        self._path, self._settings = path, settings
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        lines = _read(path) if path is not None and path.exists() else []
        if path is not None and lines:
            self._check(path, lines[0], settings)
        self._empty = not lines
        self._answers: dict[str, Any] = {line["key"]: line["answer"] for line in lines[1:]}

    @staticmethod
    def _check(path: Path, header: dict[str, Any], settings: Mapping[str, object]) -> None:
        if header.get("format") != _FORMAT:
            raise SurefootError(f"journal {path}: not a journal of this program; delete it or name another")
        written = header["settings"]
        for name, value in settings.items():
            if written.get(name) != value:
                raise SurefootError(
                    f"journal {path}: recorded with {name} {written.get(name)!r}, this run has {value!r}"
                )

    def get(self, key: str) -> Any:
        """The answer, or None."""
        return self._answers.get(key)

    def add(self, key: str, answer: Any) -> None:
        with self._lock:
            self._answers[key] = answer
            if self._path is not None:
                self._write(self._path, {"key": key, "answer": answer})

    def _write(self, path: Path, line: dict[str, Any]) -> None:
        if self._file is None:
            self._file = _appendable(path)
            if self._empty:
                self._file.write(json.dumps({"format": _FORMAT, "settings": dict(self._settings)}) + "\n")
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last line end is unfinished
    except OSError as error:
        raise SurefootError(f"journal {path}: {error.strerror or error}") from None
    try:
        return [json.loads(line) for line in lines]
    except ValueError:
        raise SurefootError(f"journal {path}: a line is not JSON; delete it or name another") from None


def _appendable(path: Path) -> TextIO:
    """The file, cut back to its last whole line, so that nothing is written behind half of one."""
    try:
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise SurefootError(f"journal {path}: {error.strerror or error}") from None
