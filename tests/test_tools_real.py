"""Tools with a model of the catalogue: what it writes as a call arrives as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.test_server_examples import CODER, server

pytestmark = pytest.mark.models

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
FIXED: Any = {"model": CODER, "tools": [WEATHER], "temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with server(CODER, CODER) as url:
        yield OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_conversation_with_a_tool(client: OpenAI, choice: Any) -> None:
    first = client.chat.completions.create(messages=ASKED, tool_choice=choice, **FIXED).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert "Oslo" in json.loads(call.function.arguments)["city"]
    given = {"role": "tool", "tool_call_id": call.id, "content": "snow, -7 degrees"}
    turns: Any = [*ASKED, first.message, given]
    second = client.chat.completions.create(messages=turns, tool_choice="none", **FIXED).choices[0]
    assert "Oslo" in (second.message.content or "")
    assert not second.message.tool_calls


def test_a_call_in_a_stream(client: OpenAI) -> None:
    whole = client.chat.completions.create(messages=ASKED, **FIXED).choices[0]
    stream = client.chat.completions.create(messages=ASKED, stream=True, **FIXED)
    choices = [chunk.choices[0] for chunk in stream]
    [called] = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert called.function
    assert whole.message.tool_calls
    assert called.function.model_dump() == whole.message.tool_calls[0].model_dump()["function"]
    assert "".join(choice.delta.content or "" for choice in choices) == ""
    assert choices[-1].finish_reason == whole.finish_reason == "tool_calls"
