"""`surefoot pull` and `surefoot models`: getting a model, and which there are."""

from __future__ import annotations

import argparse
from typing import Any

HEADER = ("NAME", "SIZE", "HERE", "LICENSE", "FROM")


def add(commands: Any) -> None:
    pulling = commands.add_parser(
        "pull",
        help="get a model",
        description="Gets a model and prints where it lies. A pull that broke off is taken up again. "
        "$SUREFOOT_HOME is where models are kept (default ~/.cache/surefoot).",
    )
    pulling.add_argument("name", metavar="NAME", help="a name of `surefoot models`, or a hub id (owner/name)")
    pulling.set_defaults(run=run_pull)
    listing = commands.add_parser(
        "models", help="list the models known by name", description="Lists the models known by name."
    )
    listing.set_defaults(run=run_models)


def run_pull(args: argparse.Namespace) -> None:
    from surefoot.models.pull import progress_bar, pull

    with progress_bar(args.name) as progress:
        path = pull(args.name, progress)
    print(path)


def run_models(args: argparse.Namespace) -> None:
    from surefoot.models.catalog import list_models

    rows = [HEADER]
    for entry in list_models():
        size = f"{entry.num_bytes / 1e6:.0f} MB"
        rows.append((entry.name, size, "yes" if entry.present else "no", entry.license, entry.hub))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
