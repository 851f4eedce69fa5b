"""Reading values that a stranger's file states: each checked for its type and range."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from surefoot.types import SurefootError


def shown(value: object) -> str:
    """A value out of a stranger's file as a message may show it: its repr, 80 characters at most."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def one_line(error: Exception) -> str:
    """What an error of another library says, in one line of 200 characters at most."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


class Fields:
    """The keys of one file, or of one part of it. prefix: stands before each key in messages.

    Every method raises SurefootError naming file, key and value.
    """

    def __init__(self, where: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.where = where
        self._values = values
        self._prefix = prefix

    def get(self, key: str) -> object:
        return self._values.get(key)

    def fail(self, key: str, what: str) -> SurefootError:
        return SurefootError(f"{self.where}: {self._prefix}{key} is {shown(self.get(key))}, {what}")

    def count(self, key: str, default: int | None = None, limit: int = 1 << 31) -> int:
        """A whole number from 1 to `limit`; `default` when the key is absent or null."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.fail(key, f"not a whole number from 1 to {limit}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; `default` when the key is absent or null."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fail(key, "not a number above 0")
        return float(value)

    def mapping(self, key: str) -> dict[str, object]:
        """A JSON object; empty when the key is absent or null."""
        value = self.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail(key, "not a JSON object")
        return value


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file. Raises SurefootError when it is missing, broken or something else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise SurefootError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SurefootError(f"{path}: broken JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise SurefootError(f"{path}: holds a {type(value).__name__}, not a JSON object")
    return value


def read_optional_json(path: Path) -> dict[str, object]:
    """As `read_json`; an absent file counts as an empty object."""
    return read_json(path) if path.exists() else {}
