"""How much of an audit's budget is spent, on a terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.audit.budget import Budget

if TYPE_CHECKING:
    from rich.console import RenderableType

SECONDS = 60.0
REFRESHES = 4  # a second


@contextmanager
def within_budget(args: argparse.Namespace) -> Iterator[Budget]:
    """The budget that the flags give, which begins now; its progress is a line on standard error while the
    block runs, nothing where that is no terminal."""
    from rich.console import Console
    from rich.live import Live

    budget = Budget(seconds=getattr(args, "budget", SECONDS))
    console = Console(stderr=True)
    if not console.is_terminal:
        yield budget
        return
    line = _Line(budget)
    with Live(line, console=console, refresh_per_second=REFRESHES, transient=True, redirect_stdout=False):
        yield budget


@contextmanager
def without_budget(title: str) -> Iterator[None]:
    """Tells a terminal that something goes on, for as long as the block runs."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(title):
        yield


@dataclass(frozen=True, slots=True)
class _Line:
    """Rendered anew at every refresh."""

    budget: Budget

    def __rich__(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=1, completed=min(self.budget.used, 1), width=40)
        line.add_row(Text("auditing"), bar, Text(f"{self.budget.elapsed:.0f} s"))
        return line
