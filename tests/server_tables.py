"""The tables of docs/server.md, read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "server.md"
SHARED, COMPLETIONS, CHAT = "### Both endpoints", "### /v1/completions", "### /v1/chat/completions"


@dataclass(frozen=True)
class Row:
    """A field of a request. default: as JSON where the table has it so, else None."""

    section: str
    field: str
    allowed: str
    default: str | None

    def __str__(self) -> str:
        return f"{self.section.split()[-1].split('/')[-1]}-{self.field}"

    @property
    def default_value(self) -> Any:
        return json.loads(self.default or "null")


def table(heading: str, first: str) -> list[list[str]]:
    """The cells of the table below a heading, whose first column has this title; without its head."""
    text = f"\n{DOCUMENT.read_text()}".partition(f"\n{heading}\n")[2]
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def rows(section: str) -> list[Row]:
    return [
        Row(section, field.strip("`"), allowed, _code(default))
        for field, allowed, default, _, _ in table(section, "field")
    ]


def named(cell: str) -> list[str]:
    """What a cell holds in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def _code(cell: str) -> str | None:
    found = named(cell)
    try:
        json.loads(found[0] if found else "")
    except ValueError:
        return None
    return str(found[0])
