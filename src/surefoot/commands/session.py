"""What commands share: an engine from flags, text as it comes, the line at its end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.engine import Engine
    from surefoot.loading import LoadedModel
    from surefoot.results import Chunk, Result

LOADING = ("precision", "threads")
RUNNING = ("draft", "draft_tokens", "share_drafts", "verify", "trace")


@contextmanager
def open_engine(args: argparse.Namespace) -> Iterator[tuple[Engine, LoadedModel]]:
    """The engine that the flags describe, and its target. A terminal is told that it loads; that the promise
    doesn't hold on this machine is said in any case."""
    say_loading(args.model)
    from surefoot.engine import Engine, lookahead
    from surefoot.loading import load_model
    from surefoot.pairing import check_sharing, names_a_model

    lookahead(args.draft, getattr(args, "draft_tokens", None))  # before the model, which takes seconds
    check_sharing(args.draft, getattr(args, "share_drafts", False))
    loading = given(args, LOADING)
    loaded = load_model(args.model, **loading)
    say_inexact(loaded)
    of_draft = loading if names_a_model(args.draft) else {}
    with Engine(loaded, **of_draft, **given(args, RUNNING)) as engine:
        yield engine, loaded


def say_loading(name: str) -> None:
    if sys.stderr.isatty():
        print(f"loading {name}", file=sys.stderr)


def say_inexact(loaded: LoadedModel) -> None:
    if loaded.inexact:
        print(
            f"surefoot: speculation may change the tokens on this machine: {loaded.inexact}", file=sys.stderr
        )


def given(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Those of the arguments that the command line has."""
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def write(chunks: Iterable[Chunk]) -> tuple[str, Result | None]:
    """Writes the text of a request of one choice to standard output as it comes, and ends the line.

    Returns the text, and the result unless the chunks ended before it.
    """
    text, result = "", None
    try:
        for chunk in chunks:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            text += chunk.text
            result = chunk.result
    finally:
        if text and not text.endswith("\n"):
            print()
    return text, result


def summarize(result: Result | None, loaded: LoadedModel) -> None:
    """Tells a terminal how fast it went, how much was guessed right, and how to have it again."""
    if result is None or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    stats = result.stats
    print(
        f"{result.usage.completion_tokens} tokens · {stats.tokens_per_second:.1f} tokens/s · "
        f"mean acceptance length {stats.mean_acceptance_length:.2f} · "
        f"{loaded.precision} by {loaded.kernels} · seed {result.seed}",
        file=sys.stderr,
    )
