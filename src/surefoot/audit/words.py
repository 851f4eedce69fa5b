"""The words and numbers that the terminal and the page have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping

from surefoot.audit.report import Curve, Report, Table, Verdict

NAMES: Mapping[Verdict, str] = {
    "pass": "pass",
    "undecided": "undecided",
    "settings": "different settings",
    "loss": "LOSS",
}
MARKS: Mapping[Verdict, str] = {"pass": "✓", "undecided": "?", "settings": "≠", "loss": "✗"}
MEANINGS: Mapping[Verdict, str] = {
    "pass": "nothing was found, and what was asked for could have been seen",
    "undecided": "nothing was found, but there was too little evidence to see what was asked for",
    "settings": "the two sides weren't asked for the same thing, so comparing them says nothing",
    "loss": "speculation changed the output",
}
SHORT: Mapping[Verdict, str] = {
    "pass": "nothing found",
    "undecided": "not enough evidence",
    "settings": "different settings",
    "loss": "loss found",
}


def meaning(report: Report) -> str:
    """The verdict of the whole in a sentence, without its name."""
    return report.conclusion or MEANINGS[report.verdict]


def conclusion(report: Report) -> str:
    """The same with the exit code, and what the code says."""
    short = "" if report.conclusion else f": {SHORT[report.verdict]}"
    return f"{meaning(report)} (exit code {report.exit_code}{short})"


def effort(report: Report) -> str:
    """What it took: checks, tokens and seconds."""
    tokens = sum(check.tokens for check in report.checks)
    return f"{counted(len(report.checks), 'check')}, {counted(tokens, 'token')}, {report.seconds:.1f} s"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def cell(value: str | float) -> str:
    """A value of a table as text: whole numbers whole, others with four digits."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value + 0.0:.4g}"  # -0.0 is 0


def is_numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers, words such as "none" among them or not."""
    return any(not isinstance(row[column], str) for row in table.rows)


def shares(table: Table) -> list[float | None]:
    """How long each row's bar is, as a share of the longest: in [0, 1], infinite beyond every length, None
    where the row has no number or a negative one; nothing at all for a table without bars."""
    if table.bar is None:
        return []
    column = table.columns.index(table.bar)
    values = [_length(row[column]) for row in table.rows]
    longest = max((value for value in values if value is not None and math.isfinite(value)), default=0.0)
    return [
        value if value is None or math.isinf(value) else value / longest if longest else 0.0
        for value in values
    ]


def _length(value: str | float) -> float | None:
    return None if isinstance(value, str) or not value >= 0 else float(value)


def reached(curve: Curve) -> str:
    """How far the evidence came, in a sentence."""
    tokens, highest = max(curve.points, key=lambda point: point[1], default=(0, 0.0))
    return (
        f"an e-value of at most {power_of_ten(highest)}, after {counted(tokens, 'token')}; "
        f"{power_of_ten(curve.limit)} shows a loss"
    )


def power_of_ten(exponent: float) -> str:
    """An e-value, from its logarithm to base 10."""
    if not -4 < exponent < 6:
        return f"10^{exponent:.1f}"
    return f"{10**exponent:,.0f}" if exponent > 2 else f"{10**exponent:.3g}"


def visible(text: str) -> str:
    """The text with what can't be seen spelled out: a model's or a server's may hold anything, sequences
    that steer a terminal or turn the direction of writing included. Ends of line stay."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
