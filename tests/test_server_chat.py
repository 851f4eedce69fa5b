"""/v1/chat/completions: conversations, tools and formats; every parameter reaches the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest

from surefoot.models.toy import ToyModel
from surefoot.results import Result
from surefoot.types import SamplingParams
from tests.answers import BASE, NEUTRAL, PARAMETERS, joined, same_choices, same_content, same_prompt
from tests.api import CHAT, COMPLETIONS, Api, Json, serving
from tests.harness import reciting
from tests.serving import CONTEXT, IM_END, TEMPLATE, VOCAB_SIZE, byte_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOLS_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}{{ tool | tojson }};{% endfor %}" + TEMPLATE
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(draft_tokens=4) as running:
        yield running


def solo(api: Api, prompt: str = PROMPT, **params: Any) -> Result:
    given: dict[str, Any] = {**NEUTRAL, **BASE, **params}
    return api.solo(api.tokenizer.encode(prompt, add_special=False), SamplingParams(**given))


@pytest.mark.parametrize(("body", "params"), PARAMETERS, ids=lambda value: str(value)[:40])
def test_a_parameter_reaches_the_engine(api: Api, body: Json, params: dict[str, Any]) -> None:
    wanted = solo(api, **params, logprobs=3)
    asked: Json = {"messages": MESSAGES, **BASE, **body, "logprobs": True, "top_logprobs": 3}
    answer = api.ask(CHAT, **asked, return_token_ids=True)
    same_choices(answer["choices"], wanted, "message")
    for choice, expected in zip(answer["choices"], wanted.choices, strict=True):
        same_content(choice["logprobs"]["content"], expected, api.tokenizer)
    used, tokens = answer["usage"], wanted.usage
    assert (used["prompt_tokens"], used["completion_tokens"]) == (
        tokens.prompt_tokens,
        tokens.completion_tokens,
    )
    assert answer["prompt_token_ids"] == list(wanted.prompt_token_ids)


def test_an_answer_has_its_shape(api: Api) -> None:
    answer = api.ask(CHAT, model="toy", messages=MESSAGES, **BASE)
    assert (answer["object"], answer["model"]) == ("chat.completion", "toy")
    assert answer["id"].startswith("chatcmpl-")
    assert set(answer["choices"][0]) == {"index", "message", "logprobs", "finish_reason", "seed"}
    assert answer["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert answer["choices"][0]["logprobs"] is None


def test_an_answer_may_fill_the_context(api: Api) -> None:
    answer = api.ask(CHAT, messages=MESSAGES, ignore_eos=True)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_a_limit(api: Api, name: str) -> None:
    answer = api.ask(CHAT, messages=MESSAGES, **{name: 3}, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 3


def test_logprobs_without_lists(api: Api) -> None:
    content = api.ask(CHAT, messages=MESSAGES, **BASE, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * len(content)


def test_the_logprobs_of_a_prompt(api: Api) -> None:
    wanted = solo(api, prompt_logprobs=1)
    answer = api.ask(CHAT, messages=MESSAGES, **BASE, prompt_logprobs=1)
    assert wanted.prompt_logprobs is not None
    same_prompt(answer["prompt_logprobs"], wanted.prompt_logprobs)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi", "name": "me"}],
        [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [
            {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "e"}]},
            {"role": "user", "content": "hi"},
        ],
    ],
)
def test_messages_in_each_form(api: Api, messages: Sequence[Json]) -> None:
    text = "<|im_start|>system\nbe<|im_end|>\n" + PROMPT
    answer = api.ask(CHAT, messages=messages, **BASE, return_token_ids=True)
    assert answer["prompt_token_ids"] == api.tokenizer.encode(text, add_special=False)


def test_an_answer_goes_back_as_it_came(api: Api) -> None:
    said = api.ask(CHAT, messages=MESSAGES, max_tokens=5)["choices"][0]["message"]
    others: Json = {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    api.ask(CHAT, messages=[*MESSAGES, {**said, **others}, *MESSAGES], max_tokens=5)


def test_a_model_without_a_template_does_not_chat() -> None:
    with serving(tokenizer=byte_tokenizer(None)) as api:
        assert api.refusal(CHAT, messages=MESSAGES).startswith("messages: the model has no chat template; ")
        api.ask(COMPLETIONS, prompt="hi")


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "format",
    [
        {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "description": "x"}},
    ],
)
def test_an_answer_after_a_schema(api: Api, format: Json, stream: bool) -> None:
    for seed in range(3):
        body: Json = {"messages": MESSAGES, "seed": seed, "response_format": format}
        choice = (joined(api.events(CHAT, **body)) if stream else api.ask(CHAT, **body)["choices"])[0]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


def test_any_object_and_any_text(api: Api) -> None:
    """The toy model has no end to its objects: what there is of one begins one."""
    body: Json = {"messages": MESSAGES, **BASE}
    text = api.ask(CHAT, **body, response_format={"type": "json_object"})["choices"][0]["message"]["content"]
    assert text.lstrip().startswith("{")
    free = api.ask(CHAT, **body, response_format={"type": "text"})
    same_choices([{**free["choices"][0], "token_ids": list(solo(api).token_ids)}], solo(api), "message")


# Tools


def told(*tools: Json) -> str:
    listed = "".join(f"{tool['function']['name']}{json.dumps(tool, ensure_ascii=False)};" for tool in tools)
    return listed + PROMPT


def saying(text: str, *tools: Json) -> ToyModel:
    """A model that says a text, once it was told of tools."""
    prompt = byte_tokenizer().encode(told(*tools), add_special=False)
    return ToyModel(
        reciting(prompt, [*text.encode(), IM_END], VOCAB_SIZE), VOCAB_SIZE, 900, eos_token_ids=(IM_END,)
    )


def tooling(model: ToyModel) -> Any:
    return serving(model, byte_tokenizer(TOOLS_TEMPLATE), draft_tokens=4)


ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("said", "more", "text", "calls", "reason"),
    [
        ("It rains.", {}, "It rains.", [], "stop"),
        (ONE, {}, None, [("weather", {"city": "Oslo"})], "tool_calls"),
        (TWO, {}, None, [("weather", {"city": "Oslo"}), ("clock", {})], "tool_calls"),
        (
            TWO,
            {"parallel_tool_calls": True},
            None,
            [("weather", {"city": "Oslo"}), ("clock", {})],
            "tool_calls",
        ),
        (TWO, {"parallel_tool_calls": False}, None, [("weather", {"city": "Oslo"})], "tool_calls"),
        ("Wait.\n" + ONE, {}, "Wait.", [("weather", {"city": "Oslo"})], "tool_calls"),
        ("Wait.\n" + ONE, {"max_tokens": 30}, "Wait.\n" + ONE[:24], [], "length"),
        (ONE, {"max_tokens": len(ONE)}, None, [("weather", {"city": "Oslo"})], "length"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_calls_of_tools(
    said: str, more: Json, text: str | None, calls: Sequence[Any], reason: str, stream: bool
) -> None:
    with tooling(saying(said, WEATHER, CLOCK)) as api:
        body: Json = {
            "messages": MESSAGES,
            "tools": [WEATHER, CLOCK],
            "temperature": 0,
            "max_tokens": 300,
            **more,
        }
        body |= {"logprobs": True}
        events = api.events(CHAT, **body) if stream else []
        choice = joined(events)[0] if stream else api.ask(CHAT, **body)["choices"][0]
    message = choice["message"]
    found = message.get("tool_calls", [])
    assert (message["content"] or None) == text
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found] == list(
        calls
    )
    assert len({call["id"] for call in found}) == len(found)
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in found)
    assert choice["finish_reason"] == reason
    limit = more.get("max_tokens", 300)
    assert len(choice["logprobs"]["content"]) == min(limit, len(said) + 1)  # the calls' tokens, and the end


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "weather", "clock"])
def test_a_call_that_must_be_made(choice: str, stream: bool) -> None:
    """By a model that would sooner talk."""
    named = {"type": "function", "function": {"name": choice}}
    with tooling(saying("I would rather not say anything of that. ", WEATHER, CLOCK)) as api:
        body: Json = {"messages": MESSAGES, "tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 400}
        body |= {"tool_choice": "required" if choice == "required" else named, "parallel_tool_calls": False}
        got = joined(api.events(CHAT, **body))[0] if stream else api.ask(CHAT, **body)["choices"][0]
    (call,) = got["message"]["tool_calls"]
    assert got["finish_reason"] == "tool_calls"
    assert not got["message"]["content"]
    assert call["function"]["name"] in (["weather", "clock"] if choice == "required" else [choice])
    schema = {"weather": WEATHER, "clock": CLOCK}[call["function"]["name"]]["function"].get("parameters", {})  # type: ignore[attr-defined]
    jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


def test_no_calls_and_no_word_of_tools() -> None:
    prompt = byte_tokenizer().encode(PROMPT, add_special=False)
    model = ToyModel(reciting(prompt, [*ONE.encode(), IM_END], VOCAB_SIZE), VOCAB_SIZE, 900, (IM_END,))
    with tooling(model) as api:
        body: Json = {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": "none", "temperature": 0}
        choice = api.ask(CHAT, **body)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ONE, "stop")


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_an_answer_of_a_form_can_call_nothing(name: str, choice: str) -> None:
    form: Json = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}}
    with tooling(saying("x", WEATHER)) as api:
        body: Json = {"messages": MESSAGES, "tools": [WEATHER], name: form[name], "max_tokens": 5}
        if choice == "none":
            api.ask(CHAT, **body, tool_choice=choice)
        else:
            told = api.refusal(CHAT, **body, tool_choice=choice)
            assert told == f"{name}: given with tools; an answer can't be both"


def test_calls_and_what_they_gave_go_back() -> None:
    with tooling(saying(ONE, WEATHER)) as api:
        body: Json = {"tools": [WEATHER], "temperature": 0, "max_tokens": 300}
        called = api.ask(CHAT, messages=MESSAGES, **body)["choices"][0]["message"]
        given = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "wet"}
        api.ask(CHAT, messages=[*MESSAGES, called, given], **{**body, "max_tokens": 3})
