"""What an audit found: plain values, which the terminal, JSON and the page show alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "undecided", "settings", "loss"]
"""pass: nothing found, and what was asked for
could have been seen. undecided: nothing found, but with too little evidence for that. settings: the two sides
weren't asked for the same thing, so no comparison says anything. loss: speculation changed the output."""

GRAVITY: tuple[Verdict, ...] = ("pass", "undecided", "settings", "loss")
EXIT_CODES: Mapping[Verdict, int] = {"pass": 0, "loss": 1, "settings": 2, "undecided": 3}


@dataclass(frozen=True, slots=True)
class Curve:
    """Evidence as it grew: (tokens so far, log10 of the e-value), and the log10 at which it shows a loss."""

    title: str
    points: tuple[tuple[int, float], ...]
    limit: float


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers or text under `columns`. bar: the column that a page draws as bars, if any."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    bar: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One question that was asked, and its answer.

    name: of the question, as in "same tokens at temperature 0.8". summary: the answer in a sentence, with the
    sample size. details: further lines, such as where a loss is and what it looks like. tokens: compared or
    scored. facts: for JSON alone, numbers under stable names.
    """

    name: str
    verdict: Verdict
    summary: str
    tokens: int
    details: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """An audit. subject: what was audited, in a line. settings: how, name → value. seconds: it took.
    conclusion: what its verdict means, where that isn't the usual."""

    subject: str
    settings: Mapping[str, str]
    checks: tuple[Check, ...]
    seconds: float
    conclusion: str = ""

    @property
    def verdict(self) -> Verdict:
        """The gravest of the checks'; `undecided` without any."""
        return max((check.verdict for check in self.checks), key=GRAVITY.index, default="undecided")

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]
