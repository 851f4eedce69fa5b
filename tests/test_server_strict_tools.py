"""Strict tools over HTTP: their calls follow their schemas, whatever the model would sooner write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from tests.api import CHAT, Api, Json
from tests.test_server_chat import CLOCK, MESSAGES, saying, tooling


class Weather(pydantic.BaseModel):
    city: Literal["Oslo", "Rome"]


STRICT: Any = openai.pydantic_function_tool(Weather)
WRONG = 'Wait. <tool_call>\n{"name": "Weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BODY: Json = {"messages": MESSAGES, "tools": [STRICT, CLOCK], "temperature": 0, "max_tokens": 120}


@pytest.fixture(scope="module")
def wrong() -> Iterator[Api]:
    """Whose model would call a tool with what its schema doesn't allow."""
    with tooling(saying(WRONG, STRICT, CLOCK)) as api:
        yield api


def test_the_clients_own_tools_are_strict() -> None:
    assert STRICT["function"]["strict"] is True


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}])
def test_a_call_follows_its_schema(wrong: Api, choice: Json) -> None:
    message = wrong.ask(CHAT, **BODY, **choice)["choices"][0]["message"]
    assert message["content"].startswith("Wait.")
    called = message["tool_calls"][0]["function"]
    assert called["name"] == "Weather"
    Weather.model_validate_json(called["arguments"])


def test_the_client_parses_it() -> None:
    with tooling(saying(WRONG, STRICT)) as api, api.openai() as client:
        answer = client.chat.completions.parse(model="toy", **{**BODY, "tools": [STRICT]})
    called: Any = (answer.choices[0].message.tool_calls or [])[0]
    assert called.function.parsed_arguments in (Weather(city="Oslo"), Weather(city="Rome"))


def test_without_strict_nothing_holds_it() -> None:
    loose: Json = {**STRICT, "function": {**STRICT["function"], "strict": False}}
    with tooling(saying(WRONG, loose, CLOCK)) as api:
        message = api.ask(CHAT, **{**BODY, "tools": [loose, CLOCK]})["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'


def test_drafts_change_none_of_it(wrong: Api) -> None:
    for more in ({}, {"temperature": 1, "seed": 3}):
        plain, drafted = (
            wrong.ask(CHAT, **{**BODY, **more}, return_token_ids=True, **given)["choices"][0]["token_ids"]
            for given in ({"draft_tokens": 0}, {})
        )
        assert plain == drafted


def test_text_stays_what_it_was() -> None:
    with tooling(saying("It rains.", STRICT, CLOCK)) as api:
        choice = api.ask(CHAT, **BODY)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It rains.", "stop")


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_schema_that_can_not_be_held_to_is_the_tools_mistake(wrong: Api, choice: str) -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "if": {}}}
    tools = [{"type": "function", "function": function}]
    told = wrong.refusal(CHAT, messages=MESSAGES, tools=tools, tool_choice=choice)
    assert told.startswith("tools: the schema of f has the keyword 'if', which is not")


def test_a_form_beside_them_is_refused(wrong: Api) -> None:
    told = wrong.refusal(CHAT, **BODY, response_format={"type": "json_object"})
    assert told == "response_format: given with tools; an answer can't be both"
