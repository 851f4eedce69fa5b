"""`surefoot chat`: a conversation, line by line."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surefoot.commands.options import add_engine_flags, add_sampling_flags, sampling_params
from surefoot.commands.session import open_engine, summarize, write
from surefoot.types import SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.engine import Engine
    from surefoot.results import Chunk, Result

END = "/exit"


def add(commands: Any) -> None:
    command = commands.add_parser(
        "chat",
        help="hold a conversation",
        description=f"Answers line after line, and remembers. {END} or the end of input ends the "
        "conversation; Ctrl-C ends an answer, and pressed again the program.",
    )
    add_engine_flags(command)
    add_sampling_flags(command, without=("n", "logprobs", "prompt_logprobs"))
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    params = sampling_params(args)
    if params.seed is None:  # one for the whole conversation, so that all of it can be had again
        params = replace(params, seed=secrets.randbits(63))
    messages: list[dict[str, str]] = []
    with open_engine(args) as (engine, loaded):
        for line in _lines():
            messages.append({"role": "user", "content": line})
            text, result = _answer(engine, messages, params)
            summarize(result, loaded)
            messages.append({"role": "assistant", "content": text})


def _lines() -> Iterator[str]:
    """What the user says, until the end."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # not every Python has it
            import readline  # noqa: F401 - gives `input` its line editing and history
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise SurefootError(
                f"standard input: byte {error.object[error.start]:#04x} is not UTF-8"
            ) from None
        if line == END:
            return
        if line:
            yield line


def _answer(
    engine: Engine, messages: list[dict[str, str]], params: SamplingParams
) -> tuple[str, Result | None]:
    chunks = engine.stream(messages, params)
    with _first_interrupt_noted() as interrupted, closing(chunks):
        return write(_until(interrupted, chunks))


def _until(interrupted: Callable[[], bool], chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        yield chunk
        if interrupted():
            return


@contextmanager
def _first_interrupt_noted() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only makes the function it yields true; the next one interrupts as ever."""
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
