"""Strict tools where the model may call them: any text is admitted, and no call that breaks a schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.grammar import Grammars
from surefoot.models.tokenizer_parts import TokenizerParts
from surefoot.server.call_grammars import strict_calls
from surefoot.server.tools import CallDelta, TextDelta, ToolParser
from surefoot.text import Tokenizer
from surefoot.types import Constraint, SurefootError
from tests.tiny import IM_END, VOCAB, tiny_tokenizer

TOOLS: dict[str, dict[str, Any] | None] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "</tool_call>", "<tool_call>"]}, "days": {"maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "ping": None,
    "loose": {"type": "object", "properties": {"a": {"type": "integer"}}, "if": {}},
}
STRICT = ("weather", "ping")
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
PARIS = '{"name": "weather", "arguments": {"city": "Paris"}}'
PING = '{"name": "ping", "arguments": {}}'
LOOSE = '{"name": "loose", "arguments": {"a": "x"}}'
SPREAD = json.dumps(json.loads(OSLO), indent=2)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerParts(tiny_tokenizer(), "bytes", eos_ids=(IM_END,)))


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), (IM_END,), VOCAB)


@cache
def form() -> Constraint:
    return strict_calls(TOOLS, STRICT)


def tagged(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def admitted(text: str) -> str:
    """As much of a text, from its beginning, as the grammar takes."""
    ids = tokenizer().encode(text, add_special=False)
    return tokenizer().decode(ids[: grammars().matcher(form()).legal(ids)])


def admits(text: str) -> bool:
    """Whether the grammar takes a text and then its end."""
    ids = [*tokenizer().encode(text, add_special=False), IM_END]
    return grammars().matcher(form()).legal(ids) == len(ids)


def read(text: str) -> tuple[str, list[tuple[str, Any]]]:
    parser = ToolParser(TOOLS)
    deltas = [*parser.push(text), *parser.finish()]
    calls = [(delta.name, json.loads(delta.arguments)) for delta in deltas if isinstance(delta, CallDelta)]
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)), calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello there.\n",
        "What is a < b? <tool",
        "[1, 2]",
        '{"name": "Ada", "age": 36}',
        '{"name": "weathercock"}',
        '[{"name": "Ada"}]',
        "```python\nprint({})\n```",
        f"So: {PARIS}",
        f"So:\n```json\n{PARIS}\n```",
        "</tool_call>",
        '{"arguments": {}, "name": "weather"}',
    ],
)
def test_any_text_is_admitted(text: str) -> None:
    assert admits(text)
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (tagged(OSLO), 1),
        (f"Well. {tagged(OSLO)}\nand {tagged(PING)} so", 2),
        (tagged(LOOSE), 1),
        (f'{{"name": "Ada"}} {tagged(PING)}', 1),
        (OSLO, 1),
        (f" {SPREAD}\n", 1),
        (f"{OSLO}\n{PING}{LOOSE}", 3),
        (f"[{OSLO}, {PING}]", 2),
        (f"```json\n{SPREAD}\n```", 1),
        (f"```\n{OSLO}\n{PING}\n```\n", 2),
        (f"```json\n[{OSLO},\n{PING}]\n```", 2),
    ],
)
def test_calls_are_admitted_and_read(text: str, calls: int) -> None:
    assert admits(text)
    assert len(read(text)[1]) == calls


@pytest.mark.parametrize(
    "wrong",
    [
        PARIS,
        f" {PARIS} ",
        f"[{PARIS}]",
        f"```json\n{PARIS}\n```",
        f"```[{PARIS}]```",
        tagged(PARIS),
        f"{OSLO}\n{PARIS}",
        f"[{OSLO}, {PARIS}]",
        f"```json\n{OSLO}\n{PARIS}\n```",
        f"Well. {tagged(OSLO)}{tagged(PARIS)}",
    ],
)
def test_a_call_that_breaks_its_schema_is_not_admitted(wrong: str) -> None:
    assert ("weather", {"city": "Paris"}) in read(wrong)[1]
    assert "Paris" not in admitted(wrong)


@pytest.mark.parametrize("name", ["weather", "ping"])
def test_the_schema_of_each_strict_tool_holds(name: str) -> None:
    wrong = f'{{"name": "{name}", "arguments": {{"b"'
    assert not admitted(wrong).endswith('"b"')
    assert not admitted(f"<tool_call>\n{wrong}").endswith('"b"')


def test_a_tag_begins_a_call_of_a_tool_there_is() -> None:
    assert admitted("Write <tool_call> now").endswith("<tool_call>")
    assert '"rm"' not in admitted(tagged('{"name": "rm", "arguments": {}}'))


MARKS = (
    "<tool_call>\n",
    "\n</tool_call>",
    "```json\n",
    "\n```",
    "\n",
    " ",
    "[",
    "]",
    ",",
    '{"name": "',
    "a",
    "{",
    "}",
)
CALLS = (
    OSLO,
    PARIS,
    PING,
    LOOSE,
    SPREAD,
    '{"name": "weather", "arguments": {"city": "<tool_call>"}}',
    '{"name": "ping"}',
)
ANSWERS = st.lists(st.sampled_from([*MARKS, *CALLS, *map(tagged, CALLS)]), max_size=7).map("".join)


@given(ANSWERS)
@settings(max_examples=400, deadline=None)
def test_whatever_is_admitted_breaks_no_schema_and_may_be_cut_off_anywhere(answer: str) -> None:
    for name, arguments in read(admitted(answer))[1]:
        if name in STRICT:
            jsonschema.validate(arguments, TOOLS[name] or {"type": "object", "maxProperties": 0})


@given(ANSWERS)
@settings(max_examples=400, deadline=None)
def test_an_answer_without_tags_that_is_no_call_is_admitted(answer: str) -> None:
    if "<tool_call>" not in answer and '"name": "' not in answer:
        assert admits(answer)


def test_a_schema_that_can_not_be_held_to_is_refused() -> None:
    with pytest.raises(
        SurefootError, match=r"^grammar: the schema of loose has the keyword 'if', which is not"
    ):
        strict_calls(TOOLS, ["loose"])
