"""A report as JSON: its fields under their own names, and the verdict of the whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from surefoot.audit.report import Report
from surefoot.audit.words import meaning


def as_json(report: Report) -> str:
    """One object, in one line. Numbers that JSON can't write, infinities above all, become null."""
    judged = {"verdict": report.verdict, "exit_code": report.exit_code}
    whole = {**judged, **_plain(report), "conclusion": meaning(report)}
    return json.dumps(whole, allow_nan=False)


def _plain(value: Any) -> Any:
    """The same value of JSON's own types; numpy's numbers are turned into Python's."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(item) for item in value]
    raise TypeError(f"a report holds {type(value).__name__}, which is no plain value")
