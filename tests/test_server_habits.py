"""What clients send out of habit, and that asks for nothing: it must not be held against them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from surefoot.server.fields import IDLE
from tests.api import CHAT, COMPLETIONS, Api, Json, serving
from tests.server_tables import named, table

USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": USER}}
SHORT = {"max_tokens": 8, "seed": 3}
TAKEN = {
    cells[0].strip("`"): [json.loads(value) for value in named(cells[1])]
    for cells in table("### Taken where they ask for nothing", "field")
}
IN_STREAM_OPTIONS = ("include_obfuscation", "continuous_usage_stats")


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving() as running:
        yield running


def choices(api: Api, path: str, **more: object) -> object:
    return api.ask(path, **{**BODIES[path], **SHORT, **more})["choices"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "habit",
    [
        {"n": 1, "stop": [], "logit_bias": {}, "user": "me", "stream": False, "stream_options": None},
        {"safety_identifier": "a", "prompt_cache_key": "b"},
        {"top_k": -1},
        {"stream_options": {}},
        {"stream_options": {"include_usage": False, **dict.fromkeys(IN_STREAM_OPTIONS, False)}},
        {"suffix": None, "functions": None, "metadata": None, "reasoning_effort": None, "not_known": None},
    ],
    ids=str,
)
def test_fields_that_ask_for_nothing(api: Api, path: str, habit: Json) -> None:
    assert choices(api, path, **habit) == choices(api, path)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", TAKEN)
def test_fields_without_a_meaning_here_are_taken_where_they_ask_for_nothing(
    api: Api, path: str, field: str
) -> None:
    for value in TAKEN[field]:
        assert choices(api, path, **{field: value}) == choices(api, path)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", TAKEN)
def test_any_other_value_of_them_is_refused(api: Api, path: str, field: str) -> None:
    allowed = " or ".join(json.dumps(value) for value in TAKEN[field])
    asked = {bool: not TAKEN[field][0], int: 2, str: "other", list: ["audio"], dict: {"a": 1}}
    value = asked[type(TAKEN[field][0])]
    said = f"{field}: {json.dumps(value)} asks for what is not done here; allowed is {allowed}"
    assert api.refusal(path, **BODIES[path], **{field: value}) == said


@pytest.mark.parametrize(("field", "value"), [("store", 0), ("priority", False), ("length_penalty", True)])
def test_numbers_are_no_switches(api: Api, field: str, value: object) -> None:
    assert f"{field}: {json.dumps(value)} asks for" in api.refusal(CHAT, messages=USER, **{field: value})


@pytest.mark.parametrize("field", IN_STREAM_OPTIONS)
def test_more_in_a_stream_than_is_done_is_refused(api: Api, field: str) -> None:
    told = api.refusal(CHAT, messages=USER, stream=True, stream_options={field: True})
    assert told == f"stream_options.{field}: true asks for what is not done here; allowed is false"


def test_the_document_has_all_that_is_taken() -> None:
    inside = {f"stream_options.{field}": (False,) for field in IN_STREAM_OPTIONS}
    assert {field: tuple(values) for field, values in TAKEN.items()} | inside == IDLE


def test_a_message_has_no_such_fields(api: Api) -> None:
    message = {**USER[0], "store": False}
    assert api.refusal(CHAT, messages=[message]) == "messages[0].store: this field is unknown"


@pytest.mark.parametrize(
    "habit",
    [
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none", "response_format": {"type": "text"}},
        {"logprobs": False, "top_logprobs": 0},
        {"messages": [{**USER[0], "name": None, "weight": None}]},
    ],
    ids=str,
)
def test_fields_of_chats_that_ask_for_nothing(api: Api, habit: Json) -> None:
    assert choices(api, CHAT, **habit) == choices(api, CHAT)


def test_other_servers_answers_may_be_sent_back(api: Api) -> None:
    said = {"role": "assistant", "content": "yes"}
    empty: Json = {"tool_calls": [], "refusal": None, "reasoning": None, "reasoning_content": None}
    first, second = ([*USER, message, *USER] for message in (said, said | empty))
    assert choices(api, CHAT, messages=first) == choices(api, CHAT, messages=second)


def test_no_calls_are_no_content(api: Api) -> None:
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": []}, *USER]
    assert api.refusal(CHAT, messages=messages).startswith("messages[1].content: it is missing")


def test_no_tools_can_not_be_required(api: Api) -> None:
    told = api.refusal(CHAT, messages=USER, tools=[], tool_choice="required")
    assert told.startswith("tool_choice: 'required' was given without tools")


def test_an_empty_list_of_tools_goes_with_a_form(api: Api) -> None:
    more = {"response_format": {"type": "json_object"}, "max_tokens": 20}
    assert choices(api, CHAT, tools=[], **more) == choices(api, CHAT, **more)
    assert choices(api, CHAT, tools=[]) == choices(api, CHAT)


def test_no_tools_are_tokenized_as_none(api: Api) -> None:
    assert api.ask("/tokenize", messages=USER, tools=[]) == api.ask("/tokenize", messages=USER)
