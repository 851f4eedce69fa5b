r"""Grammars of answers with calls: calls and nothing else, or text and calls that follow their schemas.

All that these grammars admit as a call, `ToolParser` reads as one, and the other way round: whatever it would
read as a call of a strict tool follows that tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from surefoot.constraints import WHITESPACE, check_schema
from surefoot.server.tools import CLOSE, OPEN
from surefoot.types import Constraint

Schemas = Mapping[str, Mapping[str, Any] | None]
"""Of the arguments, by the tool's name; None: there are none."""

_NO_ARGUMENTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_ONE_LINE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_FLEXIBLE: Final = {"whitespace_pattern": WHITESPACE}

# What a message that is calls without tags begins with, up to the first one's name, in each way that
# `read_message` knows; and what comes behind that call. %s: white space, as JSON has it.
_BARE: Final = (
    ("", "(ws object)* ws"),
    (r"\[%s", 'ws ("," ws object ws)* "]" ws'),
    ("```(json)?%s", '(ws object)* ws "```" ws'),
    (r"```(json)?%s\[%s", 'ws ("," ws object ws)* "]" ws "```" ws'),
)
_SPACE: Final = r"[ \t\r\n]*"

_TEXT_AND_CALLS: Final = rf"""
free: tagged* TEXT
TEXT: /(.|\n)*/
tag[lazy]: /(.|\n)*{OPEN}/
tagged: tag "\n" call "\n{CLOSE}"
key: "{{" ws "\"name\"" ws ":" ws
given: ws "," ws "\"arguments\"" ws ":" ws
close: ws "}}"
ws: WS?
WS: /{WHITESPACE}/
"""


def required_calls(tools: Schemas, *, parallel: bool = True) -> Constraint:
    """An answer that is calls of some tools and nothing else, one or more of them.

    parallel: False for one call exactly. The JSON is spelled as templates spell it, on one line with a space
    after commas and colons, so that no model loses its way in white space.

    Raises SurefootError for a schema that could not be held to.
    """
    lines = [
        "start: call" + (r' ("\n" call)*' if parallel else ""),
        rf'call: "{OPEN}\n" {_any("call", tools)} "\n{CLOSE}"',
    ]
    for place, (name, schema) in enumerate(tools.items()):
        lines += [
            f'call_{place}: {_head(name)} arguments_{place} "}}"',
            f"arguments_{place}: %json {_schema(name, schema, _ONE_LINE)}",
        ]
    return _lark(lines)


def strict_calls(tools: Schemas, strict: Collection[str]) -> Constraint:
    """Text, calls or both, where the arguments of strict tools follow their schemas, and those of the others
    are any object.

    The opening tag always begins a call. A message that begins as calls without tags do, up to the name of a
    tool, goes on as such calls to its end. Both beginnings are lazy: they end free text where they are
    complete.

    strict: names. Raises SurefootError for a schema of theirs that could not be held to.
    """
    lines = [
        f"start: free | {' | '.join(f'begun_{way} (bare_{way} | free)' for way in range(len(_BARE)))}",
        _TEXT_AND_CALLS,
        *(f"{kind}: {_any(kind, tools)}" for kind in ("call", "object", "named")),
    ]
    for way, (opening, rest) in enumerate(_BARE):
        begun = rf'%s{opening}\{{%s"name"%s:%s"'.replace("%s", _SPACE)
        lines += [f"begun_{way}[lazy]: /{begun}/", f"bare_{way}: named {rest}"]
    for place, (name, schema) in enumerate(tools.items()):
        held = _schema(name, schema, _FLEXIBLE) if name in strict else _ANY_OBJECT
        lines += [
            f'call_{place}: {_head(name)} arguments_{place} "}}"',
            f"object_{place}: key {json.dumps(json.dumps(name))} rest_{place}",
            f"named_{place}: name_{place} rest_{place}",
            f"name_{place}[lazy]: {json.dumps(name + chr(34))}",  # the quote before it has been read
            f"rest_{place}: given arguments_{place} close",
            f"arguments_{place}: %json {held}",
        ]
    return _lark(lines)


def _lark(lines: list[str]) -> Constraint:
    return Constraint("lark", "\n".join(lines) + "\n")


def _any(kind: str, tools: Schemas) -> str:
    return f"({' | '.join(f'{kind}_{place}' for place in range(len(tools)))})"


def _head(name: str) -> str:
    return json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')


def _schema(name: str, schema: Mapping[str, Any] | None, spelling: Mapping[str, Any]) -> str:
    said = dict(_NO_ARGUMENTS if schema is None else schema)
    said.pop("$schema", None)  # all schemas are read as the latest draft's
    check_schema(said, f"the schema of {name}")
    return json.dumps({**said, "x-guidance": spelling})


_ANY_OBJECT: Final = json.dumps({"type": "object", "x-guidance": _FLEXIBLE})
