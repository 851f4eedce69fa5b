"""Calls of tools, parsed out of a stream of text.

A call is written as the models of the catalogue are told to by their templates, or were trained to:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

with any text around, with a list of such objects between the tags (SmolLM2), or with several objects. The
closing tag may be missing at the end of a message. Beside that, a message that consists of such objects and
nothing else, bare or in Markdown's fences, is calls too: Qwen2.5-Coder writes them so, and hardly ever with
tags. Everything else is text: objects with other members, broken ones, and calls of tools that the request
didn't give.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from surefoot.server.calls import Call, may_be_calls, read_calls, read_message

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_WHITE: Final = " \t\r\n"
_BEGINNING: Final = re.compile(rf"{OPEN}[{_WHITE}]*")
_OUTSIDE: Final = re.compile(r'[^"<\\]*')  # of the strings of JSON
_INSIDE: Final = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BROKEN: Final = -1


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of an answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A call, whole: it is shown when it is complete. index: which of an answer's calls, from 0 on.
    arguments: a JSON object, to the letter as the model wrote it."""

    index: int
    name: str
    arguments: str


Delta = TextDelta | CallDelta


class ToolParser:
    """Text and calls, out of an answer that comes in pieces.

    However it is cut into pieces, the deltas add up to the same text and the same calls. The text and the
    calls account for every character of the answer; only white space right before or behind a call is part
    of neither. names: of the tools that may be called.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held = ""  # no verdict yet
        self._space = ""  # white space that ends the text so far, and is text only if more comes
        self._deltas: list[Delta] = []
        self._calls = 0
        self._behind_call = False
        self._bare: bool | None = None  # whether the message may be nothing but calls; None: not known yet
        self._at = 0  # what is held begins to count here
        self._scanned, self._quoted = 0, False  # of what may be a call: how far, and whether inside a string

    def push(self, text: str) -> list[Delta]:
        """The next piece of the answer. Returns what it settles."""
        self._held += text
        if self._bare is None:
            self._bare = may_be_calls(self._held, self._names)
        if self._bare is False:
            self._read(final=False)
            self._held, self._scanned = self._held[self._at :], max(0, self._scanned - self._at)
            self._at = 0
        return self._settled()

    def finish(self) -> list[Delta]:
        """The end of the answer. Returns what was held back."""
        calls = read_message(self._held, self._names) if self._bare is not False else []
        if calls:
            self._call(calls)
        else:
            self._read(final=True)
            if not self._behind_call:
                self._show(self._space)
        return self._settled()

    def _settled(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _read(self, final: bool) -> None:
        while (place := self._held.find(OPEN, self._at)) >= 0:
            self._text(place)
            if not self._read_call(final):
                return
        end = len(self._held)
        self._text(end if final else end - _overlap(self._held, OPEN))

    def _read_call(self, final: bool) -> bool:
        """Takes the call that begins here, or what only looks like one; False while its end isn't there."""
        begins = self._at + len(OPEN)
        end = self._end_of_call()
        if end is None and not final:
            return False
        calls = read_calls(self._held[begins:end], self._names) if end != _BROKEN else []
        if calls:
            self._call(calls)
            self._at = len(self._held) if end is None else end + len(CLOSE)
        else:
            self._text(begins)
        self._scanned, self._quoted = 0, False
        return True

    def _end_of_call(self) -> int | None:
        """Where the closing tag stands; None while that may still come, _BROKEN when it can't come any more.

        A tag may stand in a string of JSON. Outside of strings nothing but the closing tag begins with <: so
        of all the opening tags in a text, each but the first in it is broken before the next one.
        """
        if not self._scanned:
            first = _BEGINNING.match(self._held, self._at)
            begins = first.end() if first else len(self._held)
            if self._held[begins : begins + 1] not in ("{", "["):
                return None if begins == len(self._held) else _BROKEN
            self._scanned = begins
        while True:
            found = (_INSIDE if self._quoted else _OUTSIDE).match(self._held, self._scanned)
            self._scanned = found.end() if found else self._scanned
            mark = self._held[self._scanned : self._scanned + len(CLOSE)]
            if mark.startswith('"'):
                self._quoted = not self._quoted
                self._scanned += 1
            elif mark == CLOSE:
                return self._scanned
            else:
                return None if self._quoted or CLOSE.startswith(mark) else _BROKEN

    def _text(self, end: int) -> None:
        """Takes what is held up to here as text."""
        text, self._at = self._space + self._held[self._at : end], end
        shown = text.rstrip(_WHITE)
        self._space = text[len(shown) :]
        if shown:
            self._show(shown.lstrip(_WHITE) if self._behind_call else shown)
            self._behind_call = False

    def _show(self, text: str) -> None:
        if text:
            self._deltas.append(TextDelta(text))

    def _call(self, calls: list[Call]) -> None:
        for call in calls:
            self._deltas.append(CallDelta(self._calls, call.name, call.arguments))
            self._calls += 1
        self._space, self._behind_call = "", True


def _overlap(text: str, tag: str) -> int:
    """How many of the last characters of a text may begin a tag."""
    return next(size for size in range(len(tag) - 1, -1, -1) if text.endswith(tag[:size]))
