"""Tools in chat templates: what a model is told of them, and what a template that knows none refuses."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.chat import ChatTemplate
from surefoot.text import load_tokenizer
from surefoot.types import SurefootError
from tests.models_fixture import smollm2_path

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city — now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER = {"role": "user", "content": "Weather in Köln?"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Köln", "days": 2}'},
}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
QWEN_LIKE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}"
    "{% if c.function is defined %}{% set c = c.function %}{% endif %}"
    "<{{ c.name }} {{ c.arguments | tojson }}>{% endfor %};{% endfor %}"
)
WITHOUT = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    return ChatTemplate(QWEN_LIKE, "", "").render(messages, False, tools)


def call_with(arguments: object) -> dict[str, Any]:
    return {**CALLED, "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": arguments}}]}


def test_a_template_sees_tools_calls_and_what_they_gave() -> None:
    first, rest = render([USER, CALLED, ANSWER], [WEATHER]).split("\n")
    assert first.startswith('{"type": "function", "function": {"name": "get_weather", "description": "The')
    assert "city — now" in first
    assert rest == 'user:Weather in Köln?;assistant:<get_weather {"city": "Köln", "days": 2}>;tool:rain;'


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{}", "{}"),
        ({"city": "x"}, '{"city": "x"}'),  # a caller from Python may have the object
        ('{"b": 1, "a": 2.0}', '{"b": 1, "a": 2.0}'),
        ("[1]", '"[1]"'),  # no object: as it was written
        ("{city", '"{city"'),
        ('{"a":' * 100_000, None),
    ],
)
def test_arguments_become_an_object_where_they_are_one(arguments: object, shown: str | None) -> None:
    text = render([call_with(arguments)])
    if shown is not None:
        assert text == f"assistant:<get_weather {shown}>;"


def test_what_was_given_stays_as_it_was() -> None:
    messages = [USER, call_with('{"city": "x"}')]
    render(messages)
    assert messages == [USER, call_with('{"city": "x"}')]


def test_no_tools_are_none() -> None:
    assert render([USER], []) == render([USER], None) == render([USER])
    assert ChatTemplate("{{ tools is none }}", "", "").render([USER], False, []) == "True"


@pytest.mark.parametrize(
    ("source", "knows"),
    [
        (QWEN_LIKE, True),
        (WITHOUT, False),
        ("{% if tools is defined and tools %}x{% endif %}", True),
        ("{# tools #}tools {{ 'tools' }}{% for m in messages %}{{ m.tools }}{% endfor %}", False),
        ("{% set tools = [] %}{{ tools }}", False),
    ],
)
def test_whether_a_template_knows_tools(source: str, knows: bool) -> None:
    assert ChatTemplate(source, "", "").knows_tools is knows


@pytest.mark.parametrize(
    ("messages", "tools", "says"),
    [
        ([USER], [WEATHER], "^tools: 1 given, but the model's chat template knows no tools"),
        ([USER, CALLED], None, r"^messages\[1\]\.tool_calls: given, but"),
        ([USER, ANSWER], None, r"^messages\[1\]\.role: 'tool' given, but"),
    ],
)
def test_a_template_without_tools_refuses_them(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, says: str
) -> None:
    with pytest.raises(SurefootError, match=says):
        ChatTemplate(WITHOUT, "", "", "my.gguf").render(messages, True, tools)


def test_a_message_that_is_none_is_one_line() -> None:
    with pytest.raises(SurefootError, match=r"^messages: the chat template refuses them: "):
        render([{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}])


def test_smollm2_knows_no_tools() -> None:
    tokenizer = load_tokenizer(smollm2_path())
    assert not tokenizer.knows_tools
    with pytest.raises(SurefootError, match=r"^tools: 1 given"):
        tokenizer.apply_chat([USER], tools=[WEATHER])
