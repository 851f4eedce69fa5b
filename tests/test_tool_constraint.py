"""Required calls: what the grammar admits is what the parser reads, and follows the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.grammar import Grammars
from surefoot.models.tokenizer_parts import TokenizerParts
from surefoot.server.call_grammars import required_calls
from surefoot.server.tools import CallDelta, ToolParser
from surefoot.text import Tokenizer
from surefoot.types import SurefootError
from tests.tiny import IM_END, VOCAB, tiny_tokenizer

TOOLS: dict[str, dict[str, Any] | None] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "ping": None,
    "paint": {
        "type": "object",
        "properties": {"colours": {"type": "array", "items": {"$ref": "#/$defs/colour"}, "maxItems": 3}},
        "required": ["colours"],
        "additionalProperties": False,
        "$defs": {"colour": {"enum": ['"red"', "dark\\blue", "</tool_call>"]}},
    },
}
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
PING = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), (IM_END,), VOCAB)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerParts(tiny_tokenizer(), "bytes", eos_ids=(IM_END,)))


def admits(text: str, tools: Sequence[str] = tuple(TOOLS), *, parallel: bool = True) -> bool:
    """Whether the grammar takes a text and then its end."""
    matcher = grammars().matcher(required_calls({name: TOOLS[name] for name in tools}, parallel=parallel))
    ids = [*tokenizer().encode(text, add_special=False), IM_END]
    return matcher.legal(ids) == len(ids)


def calls_of(text: str) -> list[tuple[str, Any]]:
    parser = ToolParser(TOOLS)
    deltas = [*parser.push(text), *parser.finish()]
    assert all(isinstance(delta, CallDelta) for delta in deltas), text
    return [(call.name, json.loads(call.arguments)) for call in deltas if isinstance(call, CallDelta)]


@pytest.mark.parametrize("text", [OSLO, PING, f"{OSLO}\n{PING}", f"{PING}\n{PING}\n{OSLO}"])
def test_calls_are_admitted(text: str) -> None:
    assert admits(text)
    assert len(calls_of(text)) == text.count("</tool_call>")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        f"{OSLO}\n",
        f"Well. {OSLO}",
        f"{OSLO}{OSLO}",
        OSLO.replace("Oslo", "a name too long"),
        OSLO.replace('"city"', '"town"'),
        OSLO.replace("get_weather", "get_time"),
        OSLO.replace('{"city": "Oslo"}', "{}"),
        PING.replace("{}", '{"a": 1}'),
        PING.replace("ping", "get_weather"),
    ],
)
def test_nothing_else_is_admitted(text: str) -> None:
    assert not admits(text)


def test_one_tool_alone_and_one_call_alone() -> None:
    assert admits(PING, ["ping"])
    assert not admits(OSLO, ["ping"])
    assert admits(OSLO, parallel=False)
    assert not admits(f"{OSLO}\n{PING}", parallel=False)


def test_one_call_ends_by_itself() -> None:
    matcher = grammars().matcher(required_calls(TOOLS, parallel=False))
    for token in tokenizer().encode(PING, add_special=False):
        assert not matcher.done
        matcher.advance(token)
    assert matcher.done


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "object", "if": {}}, r"^grammar: the schema of f has the keyword 'if', which is not"),
        (
            {"type": "object", "properties": {"a": {"contains": 1}}},
            "the schema of f.properties.a has the key",
        ),
        ({"type": "object", "properties": []}, "^grammar: "),
    ],
)
def test_a_schema_that_can_not_be_held_to_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(SurefootError, match=says):
        grammars().matcher(required_calls({"f": schema}))


def test_the_draft_of_a_schema_is_no_matter() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object", "maxProperties": 0}
    matcher = grammars().matcher(required_calls({"ping": schema}))
    ids = tokenizer().encode(PING, add_special=False)
    assert matcher.legal(ids) == len(ids)


@given(seed=st.integers(0, 2**32), parallel=st.booleans())
@settings(max_examples=60, deadline=None)
def test_whatever_is_admitted_is_read_and_follows_the_schema(seed: int, parallel: bool) -> None:
    random = np.random.default_rng(seed)
    matcher = grammars().matcher(required_calls(TOOLS, parallel=parallel))
    ids: list[int] = []
    while not matcher.done:
        allowed = np.flatnonzero(matcher.allowed(()))
        token = IM_END if IM_END in allowed else int(random.choice(allowed))
        matcher.advance(token)
        ids.append(token)
        assert len(ids) < 500
    calls = calls_of(tokenizer().decode(ids))
    assert calls
    assert parallel or len(calls) == 1
    for name, arguments in calls:
        schema = TOOLS[name] or {"type": "object", "maxProperties": 0}
        jsonschema.validate(arguments, schema)
