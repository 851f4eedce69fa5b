"""The `surefoot` program: parses, dispatches, and says a mistake in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from io import TextIOWrapper

from surefoot.commands import audit, chat, check_rule, generate, models, serve
from surefoot.commands.options import Parser
from surefoot.types import SurefootError

MISTAKE = 2
INTERRUPTED = 130  # as a shell reports a program that SIGINT ended
PIPE_CLOSED = 141  # likewise SIGPIPE


def parser() -> Parser:
    """The parser of the whole command line; what it parses carries `run`, the command's function."""
    top = Parser(
        prog="surefoot",
        description="Speculative decoding for language models: the same seed gives the same tokens, "
        "with speculation or without it.",
    )
    top.add_argument("--version", action="version", version=f"surefoot {version('surefoot')}")
    commands = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for module in (generate, chat, serve, models, check_rule, audit):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (`sys.argv` when None) and returns the exit code."""

    def run() -> int | None:
        args, unknown = parser().parse_known_args(argv)
        if unknown:  # argparse would point to the help of the whole program, which has none of the flags
            raise SurefootError(
                f"unrecognized arguments: {' '.join(unknown)} (see surefoot {args.command} --help)"
            )
        code: int | None = args.run(args)
        return code

    return guarded(run)


def guarded(run: Callable[[], int | None]) -> int:
    """Runs a program and returns its exit code, 0 where `run` returns None; what a user can mend or did is
    no traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 still gets its text
    try:
        code = run()
        sys.stdout.flush()
    except SurefootError as error:
        _say(str(error))
        return MISTAKE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as error:
        name = "standard output" if _output_fails() else error.filename
        _say(f"{name}: {error.strerror}" if name else str(error))
        return MISTAKE
    return code or 0


def _say(message: str) -> None:
    print(f"surefoot: {' '.join(message.split())}", file=sys.stderr)


def _output_fails() -> bool:
    """Whether what was printed can't be written, which stands in the buffer still."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        return True
    return False


def _drop_output() -> None:
    """Lets the interpreter flush its output at exit, without a reader."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
