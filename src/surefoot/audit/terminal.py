"""A report on a terminal, or as plain text where standard output is none."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from surefoot.audit.report import Check, Report, Table, Verdict
from surefoot.audit.words import (
    MARKS,
    NAMES,
    cell,
    conclusion,
    effort,
    is_numeric,
    reached,
    shares,
    visible,
)

STYLES: Mapping[Verdict, str] = {
    "pass": "green",
    "undecided": "yellow",
    "settings": "magenta",
    "loss": "bold red",
}
UNBROKEN = "\xa0"  # `visible` text holds none of its own
INDENT = 2
WIDEST = 10_000  # letters of the widest table
READABLE = 16  # letters that a column of text has at least, if it needs them
BAR = 12  # letters of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉"
BEYOND = "░" * BAR  # longer than any bar


def render(report: Report) -> None:
    """Prints the report to standard output: as wide as COLUMNS says where that is no terminal, and without
    colours there. Numbers are never cut: a table that is too wide goes on past the edge."""
    console = _console()
    console.print(Text(f"Audit of {visible(report.subject)}", style="bold"), soft_wrap=True)
    if report.settings:
        console.print(_indented(console, _settings(report.settings), style="dim"))
    for check in report.checks:
        console.print()
        _render_check(console, check)
    console.print()
    last = Text.assemble(_verdict(report.verdict), f": {conclusion(report)}; {effort(report)}")
    console.print(last, soft_wrap=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # on to the program, which has a code for it; rich would end it with 1, a loss


def _console(width: int | None = None) -> Console:
    return _Console(width=width, highlight=False, markup=False, emoji=False)


def _render_check(console: Console, check: Check) -> None:
    console.print(Text.assemble(_verdict(check.verdict), f"  {visible(check.name)}"), soft_wrap=True)
    console.print(_indented(console, visible(check.summary)))
    for detail in check.details:
        for line in visible(detail).splitlines():
            console.print(Text(" " * 2 * INDENT + line), soft_wrap=True)
    for curve in check.curves:
        console.print(_indented(console, f"{visible(curve.title)}: {reached(curve)}", style="dim"))
    for table in check.tables:
        console.print()
        console.print(_indented(console, visible(table.title), style="dim"))
        _render_table(console, table)


def _verdict(verdict: Verdict) -> tuple[str, str]:
    return f"{MARKS[verdict]} {NAMES[verdict]}", STYLES[verdict]


def _settings(settings: Mapping[str, str]) -> str:
    """All in one paragraph, which breaks between them only."""
    each = [visible(f"{name} {value}").replace(" ", UNBROKEN) for name, value in settings.items()]
    return f"{UNBROKEN}· ".join(each)


def _indented(console: Console, text: str, style: str = "") -> Text:
    """Paragraphs whose every line is indented; no word is cut."""
    lines = [
        line
        for paragraph in text.splitlines()
        for line in textwrap.wrap(
            paragraph, max(console.width - INDENT, 1), break_long_words=False, break_on_hyphens=False
        )
    ]
    text = "\n".join(" " * INDENT + line for line in lines)
    return Text(text.replace(UNBROKEN, " "), style=style, no_wrap=True, overflow="ignore")


def _render_table(console: Console, table: Table) -> None:
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    bars = [_bar(share) for share in shares(table)]
    barred = table.columns.index(table.bar) if table.bar is not None else None
    for column, name in enumerate(table.columns):
        numeric = is_numeric(table, column)
        longest = max((cell_len(cell(row[column])) for row in table.rows), default=0)
        grid.add_column(
            Text(visible(name)),
            justify="right" if numeric else "left",
            no_wrap=numeric,
            min_width=max(cell_len(name), longest if numeric else min(longest, READABLE)),
            overflow="fold",
        )
        if column == barred:
            grid.add_column(no_wrap=True, min_width=max(map(cell_len, bars), default=0))
    for number, row in enumerate(table.rows):
        cells = [cell(value) for value in row]
        if barred is not None:
            cells.insert(barred + 1, bars[number])
        grid.add_row(*map(Text, cells))
    needed = Measurement.get(console, console.options.update(width=WIDEST), grid).minimum + INDENT
    wide = console if needed <= console.width else _console(needed)
    wide.print(Padding(grid, (0, 0, 0, INDENT), expand=False))


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    if math.isinf(share):
        return BEYOND
    eighths = math.ceil(share * BAR * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
