"""`surefoot audit`: whether speculation changes anything, in our engine, between servers, in transformers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from surefoot.commands import audit_servers
from surefoot.commands.audit_flags import add_audit_flags, form_of
from surefoot.commands.audit_forms import FORMS
from surefoot.types import SurefootError


def add(commands: Any) -> None:
    command = commands.add_parser(
        "audit",
        help="show whether speculation changes the output",
        description="Compares speculated output with plain output, and says how small a change it would "
        "have seen. Exit code 0: nothing found; 1: a loss; 3: too little evidence; 2: bad usage, or two "
        "sides that weren't asked for the same thing.",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    command.add_argument("--html", metavar="FILE", help="write the report to FILE as a page, too")
    add_audit_flags(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    form = form_of(args)
    if form == "servers" and audit_servers.only_records(args):
        return audit_servers.record(args)
    with _appearing(Path(args.html)) if args.html is not None else nullcontext() as file:
        from surefoot.audit.as_json import as_json
        from surefoot.audit.html import page
        from surefoot.audit.terminal import render

        report = FORMS[form](args)
        if file is not None:
            file.write(page(report))
    if args.json:
        print(as_json(report))
    else:
        render(report)
    return report.exit_code


@contextmanager
def _appearing(path: Path) -> Iterator[IO[str]]:
    """A file that is there, whole, once the block ends, and that never was if it fails.

    Raises SurefootError before the block when it couldn't be written.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            raise SurefootError(f"--html: {path} is there already, and is no file")
        part = path.with_name(f".{path.name}.{os.getpid()}")
        file = part.open("x", encoding="utf-8")
    except OSError as error:
        raise SurefootError(f"--html: {path} can't be written: {error.strerror}") from None
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
