"""Calls of tools as models write them: from a text to names and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_SPACE = re.compile(r"[ \t\r\n]*")
_FENCE = re.compile(r"```(?:json)?")


@dataclass(frozen=True, slots=True)
class Call:
    """arguments: a JSON object, to the letter as the model wrote it."""

    name: str
    arguments: str


def read_calls(text: str, names: Collection[str]) -> list[Call]:
    """The calls that a text consists of: objects of "name" and "arguments", lists of such objects, or several
    of either one after another, with nothing but white space around them.

    Empty when it is anything else, or calls a tool that isn't among `names`. "arguments" may be missing.
    """
    try:
        calls, end = _series(text, 0)
    except (ValueError, RecursionError):
        return []
    return calls if end == len(text) and all(call.name in names for call in calls) else []


def read_message(text: str, names: Collection[str]) -> list[Call]:
    """The calls that a message consists of where it has no tags: as with `read_calls`, each with or without
    a fence of Markdown around it."""
    try:
        calls = list(_fenced_or_bare(text))
    except (ValueError, RecursionError):
        return []
    return calls if all(call.name in names for call in calls) else []


def may_be_calls(beginning: str, names: Collection[str]) -> bool | None:
    """Whether a message with this beginning may be one that `read_message` takes; None while that is open.

    White space counts for nothing here: what only differs by it is let pass, and judged at its end.
    """
    letters = "".join(beginning.split())
    opened = False
    for fence in ("", "```", "```json"):
        for bracket in ("", "["):
            for name in names:
                start = f'{fence}{bracket}{{"name":"{name}"'
                if letters.startswith(start):
                    return True
                opened = opened or start.startswith(letters)
    return None if opened else False


def _fenced_or_bare(text: str) -> Iterator[Call]:
    at = _skip(text, 0)
    while at < len(text):
        fence = _FENCE.match(text, at)
        calls, at = _series(text, fence.end() if fence else at)
        yield from calls
        if fence:
            at = _skip(text, _expect("```", text, at))


def _series(text: str, at: int) -> tuple[list[Call], int]:
    """One object or list after another, and where what comes next begins."""
    at = _skip(text, at)
    calls: list[Call] = []
    while text[at : at + 1] in ("{", "["):
        more, at = _list(text, at) if text[at] == "[" else _single(text, at)
        calls += more
        at = _skip(text, at)
    if not calls:
        raise ValueError("there are no calls")
    return calls, at


def _list(text: str, at: int) -> tuple[list[Call], int]:
    calls: list[Call] = []
    while not calls or text[at : at + 1] == ",":
        more, at = _single(text, _skip(text, at + 1))
        calls += more
        at = _skip(text, at)
    return calls, _expect("]", text, at)


def _single(text: str, at: int) -> tuple[list[Call], int]:
    parts, end = _members(text, at)
    name = json.loads(parts.pop("name", "null"))
    arguments = parts.pop("arguments", "{}")
    if parts or not isinstance(name, str) or not arguments.startswith("{"):
        raise ValueError("this is another object")
    return [Call(name, arguments)], end


def _members(text: str, at: int) -> tuple[dict[str, str], int]:
    """The members of the JSON object that begins here, each value as it is written, and where it ends."""
    at = _skip(text, _expect("{", text, at))
    members: dict[str, str] = {}
    while not members or text[at : at + 1] == ",":
        if members:
            at = _skip(text, at + 1)
        key, at = _JSON.raw_decode(text, at)
        at = _skip(text, _expect(":", text, _skip(text, at)))
        _, end = _JSON.raw_decode(text, at)
        if not isinstance(key, str) or key in members:
            raise ValueError("a member is no member, or there twice")
        members[key] = text[at:end]
        at = _skip(text, end)
    return members, _expect("}", text, at)


def _expect(mark: str, text: str, at: int) -> int:
    if not text.startswith(mark, at):
        raise ValueError(f"no {mark} at {at}")
    return at + len(mark)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_JSON = json.JSONDecoder(parse_constant=_no_number)
