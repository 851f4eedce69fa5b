"""What is wrong with a body is said in one line: the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.server.fields import LIMITS
from surefoot.types import SamplingParams, SurefootError
from tests.api import CHAT, COMPLETIONS, Api, Json, serving
from tests.serving import CONTEXT

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(timeout=20.0) as running:
        yield running


SHARED: list[tuple[Json, str]] = [
    ({"temperature": 101}, "temperature: 101 is out of range; allowed is [0, 100]"),
    ({"temperature": -0.1}, "temperature: -0.1 is out of range; allowed is [0, 100]"),
    ({"temperature": "1"}, 'temperature: "1" is not a number; allowed is [0, 100]'),
    ({"temperature": True}, "temperature: true is not a number; allowed is [0, 100]"),
    ({"temperature": [1]}, "temperature: [1] is not a number; allowed is [0, 100]"),
    ({"top_p": 0}, "top_p: 0 is out of range; allowed is (0, 1]"),
    ({"top_k": -2}, "top_k: -2 is out of range; allowed is -1 or more"),
    ({"top_k": 1.5}, "top_k: 1.5 is not a whole number; allowed is -1 or more"),
    ({"top_k": 1.0}, "top_k: 1.0 is not a whole number; allowed is -1 or more"),
    ({"top_k": "1"}, 'top_k: "1" is not a whole number; allowed is -1 or more'),
    ({"min_p": 1.1}, "min_p: 1.1 is out of range; allowed is [0, 1]"),
    ({"repetition_penalty": 0}, "repetition_penalty: 0 is out of range; allowed is [1e-06, 100]"),
    ({"presence_penalty": 2.5}, "presence_penalty: 2.5 is out of range; allowed is [-2, 2]"),
    ({"frequency_penalty": -3}, "frequency_penalty: -3 is out of range; allowed is [-2, 2]"),
    ({"n": 0}, "n: 0 is out of range; allowed is [1, 128]"),
    ({"n": 129}, "n: 129 is out of range; allowed is [1, 128]"),
    ({"max_tokens": 0}, "max_tokens: 0 is out of range; allowed is 1 or more"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9 is out of range; allowed is [0, 8]"),
    ({"seed": -1}, "seed: -1 is out of range; allowed is [0, 18446744073709551615]"),
    ({"seed": 2**64}, "seed: 18446744073709551616 is out of range; allowed is [0, 18446744073709551615]"),
    ({"logit_bias": {"x": 1}}, 'logit_bias: "x" is not of the form ^[0-9]{1,12}$'),
    ({"logit_bias": {"5": 101}}, "logit_bias.5: 101 is out of range; allowed is [-100, 100]"),
    ({"logit_bias": {"5": "1"}}, 'logit_bias.5: "1" is not a number; allowed is [-100, 100]'),
    ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias: token 5 is given twice"),
    ({"logit_bias": {"258": 1}}, "logit_bias: token 258 is out of range; allowed is [0, 257]"),
    ({"logit_bias": [5]}, "logit_bias: [5] is not an object"),
    ({"stop": 5}, "stop: 5 is neither a string nor a list of strings"),
    ({"stop": ""}, 'stop: "" is an empty string; it needs at least 1 character'),
    ({"stop": ["a", 5]}, "stop[1]: 5 is not a string"),
    ({"stop": ["a", ""]}, 'stop[1]: "" is an empty string; it needs at least 1 character'),
    ({"stop": "\ud800"}, 'stop: "\\ud800" holds half a character, which is no text'),
    ({"bad_words": ["\udfff"]}, 'bad_words[0]: "\\udfff" holds half a character, which is no text'),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]: -1 is out of range; allowed is 0 or more"),
    ({"stop_token_ids": [258]}, "stop_token_ids: token 258 is out of range; allowed is [0, 257]"),
    ({"bad_words": "a"}, 'bad_words: "a" is not a list'),
    ({"ignore_eos": 1}, "ignore_eos: 1 is not true or false"),
    ({"stream": "yes"}, 'stream: "yes" is not true or false'),
    ({"stream_options": {"include_usage": True}}, "stream_options: given without stream; "),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x: this field is unknown"),
    ({"prompt_logprobs": 21}, "prompt_logprobs: 21 is out of range; allowed is [0, 20]"),
    ({"draft_tokens": -1}, "draft_tokens: -1 is out of range; allowed is 0 or more"),
    ({"draft_tokens": 33}, "draft_tokens: 33 is out of range; allowed is [0, 32]"),
    ({"timeout": 0}, "timeout: 0 is out of range; allowed is more than 0"),
    ({"timeout": 20.5}, "timeout: 20.5 is out of range; allowed is (0, 20.0]"),
    ({"structured_outputs": {}}, "structured_outputs: nothing given; allowed is exactly one of "),
    (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs: regex and choice given; allowed is exactly one of json, regex, grammar, choice",
    ),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs: "),
    ({"structured_outputs": {"grammar": "start: %%%"}}, "structured_outputs: "),
    ({"structured_outputs": {"json": {"type": 5}}}, "structured_outputs: "),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs: "),
    (
        {"structured_outputs": {"choice": []}},
        "structured_outputs.choice: [] is too short; allowed is 1 item or more",
    ),
    ({"user": 5}, "user: 5 is not a string"),
    ({"include_metrics": None, "logprob": 1}, "logprob: this field is unknown"),
    ({"model": 5}, "model: 5 is not a string"),
]


@pytest.mark.parametrize(("more", "message"), SHARED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})])
def test_a_field_that_both_endpoints_take(api: Api, path: str, body: Json, more: Json, message: str) -> None:
    response = api.post(path, **body, **more)
    assert response.status_code == 400, response.text
    told = response.json()["error"]
    assert told["message"].startswith(message)
    assert "\n" not in told["message"]
    assert (told["type"], told["code"]) == ("invalid_request_error", 400)
    assert told["param"] == message.partition(":")[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt: it is missing"),
        ({"prompt": None}, "prompt: null is neither text nor token ids, nor a list of either"),
        ({"prompt": 5}, "prompt: 5 is neither text nor token ids, nor a list of either"),
        ({"prompt": ""}, "prompt: it is empty; at least 1 token is needed"),
        ({"prompt": []}, "prompt: [] is too short; allowed is 1 item or more"),
        ({"prompt": [[]]}, "prompt[0]: [] is too short; allowed is 1 item or more"),
        ({"prompt": ["a", 5]}, "prompt[1]: 5 is not a string"),
        ({"prompt": ["a", ""]}, "prompt: it is empty; at least 1 token is needed"),
        ({"prompt": [1, "a"]}, 'prompt[1]: "a" is not a whole number'),
        ({"prompt": [1, -1]}, "prompt[1]: -1 is out of range; allowed is 0 or more"),
        ({"prompt": [258]}, "prompt: token 258 is out of range; allowed is [0, 257]"),
        ({"prompt": [[1], [True]]}, "prompt[1][0]: true is not a whole number"),
        ({"prompt": "\ud800"}, "prompt: "),
        (
            {"prompt": "a" * CONTEXT},
            f"prompt: {CONTEXT} tokens are too many; the context of {CONTEXT} leaves room for "
            f"{CONTEXT - 1} and an answer",
        ),
        ({"prompt": "a", "suffix": "b"}, 'suffix: "b" asks for what is not done here; allowed is ""'),
        ({"prompt": "a", "best_of": 2, "n": 3}, "best_of: 2 is out of range; allowed is n, 3, or more"),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of: 2 of 1 can't be streamed; "),
        ({"prompt": "a", "logprobs": 21}, "logprobs: 21 is out of range; allowed is [0, 20]"),
        ({"prompt": "a", "logprobs": True}, "logprobs: true is not a whole number; allowed is [0, 20]"),
        ({"prompt": "a", "echo": 1}, "echo: 1 is not true or false"),
        ({"prompt": "a", "tools": [TOOL]}, "tools: this field is unknown"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_of_completions(api: Api, body: Json, message: str) -> None:
    assert api.refusal(COMPLETIONS, **body).startswith(message)


def user(content: object, **more: object) -> list[Json]:
    return [{"role": "user", "content": content, **more}]


def calling(**function: object) -> list[Json]:
    call = {"id": "c", "type": "function", "function": function}
    return [*USER, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages: it is missing"),
        ({"messages": []}, "messages: [] is too short; allowed is 1 item or more"),
        ({"messages": "hi"}, 'messages: "hi" is not a list'),
        ({"messages": [5]}, "messages[0]: 5 has no role that is known; allowed is system, developer, user, "),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0]: {"),
        ({"messages": user(5)}, "messages[0].content: 5 is neither a string nor a list of text parts"),
        ({"messages": user(None)}, "messages[0].content: null is neither a string nor a list of text parts"),
        ({"messages": user("a", weight=1)}, "messages[0].weight: this field is unknown"),
        (
            {"messages": user([{"type": "image_url", "image_url": {"url": "x"}}])},
            "messages[0].content[0].type: \"image_url\" is unknown; allowed is 'text'",
        ),
        ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text: it is missing"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: it is missing"),
        (
            {"messages": [{"role": "assistant"}]},
            "messages[0].content: it is missing; an assistant may leave ",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id: it is missing"),
        ({"messages": calling(name="f")}, "messages[1].tool_calls[0].function.arguments: it is missing"),
        (
            {"messages": calling(name="f", arguments="{}")},
            "messages[1].tool_calls: given, but the model's chat",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]},
            'messages[0].refusal: "no" is not allowed; only null is',
        ),
        ({"messages": user("a" * CONTEXT)}, "messages: 419 tokens are too many; the context of 400 leaves "),
        ({"messages": user("\ud800")}, "messages"),
        (
            {"messages": USER, "max_tokens": 5, "max_completion_tokens": 6},
            "max_completion_tokens: 6 was given with max_tokens 5; give one of them",
        ),
        (
            {"messages": USER, "max_completion_tokens": 0},
            "max_completion_tokens: 0 is out of range; allowed is 1",
        ),
        ({"messages": USER, "logprobs": 1}, "logprobs: 1 is not true or false"),
        ({"messages": USER, "top_logprobs": 1}, "top_logprobs: given without logprobs; set that to true"),
        (
            {"messages": USER, "top_logprobs": 21, "logprobs": True},
            "top_logprobs: 21 is out of range; allowed is [0, 20]",
        ),
        ({"messages": USER, "best_of": 2}, "best_of: this field is unknown"),
        ({"messages": USER, "response_format": {"type": "xml"}}, "response_format: {"),
        ({"messages": USER, "response_format": "json"}, 'response_format: "json" has no type that is known'),
        (
            {"messages": USER, "response_format": {"type": "json_schema"}},
            "response_format.json_schema: it is missing",
        ),
        (
            {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name: it is missing",
        ),
        (
            {
                "messages": USER,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": 5}},
                },
            },
            "response_format: ",
        ),
        (
            {
                "messages": USER,
                "response_format": {"type": "json_object"},
                "structured_outputs": {"regex": "a"},
            },
            "response_format: given with structured_outputs; an answer can't be both",
        ),
        ({"messages": USER, "tools": [TOOL]}, "tools: 1 given, but the model's chat template knows no tools"),
        ({"messages": USER, "tools": [TOOL, TOOL]}, "tools[1].function.name: 'look' is there twice"),
        (
            {"messages": USER, "tools": [{"type": "function", "function": {"name": "a b"}}]},
            'tools[0].function.name: "a b" is not of the form ^[a-zA-Z0-9_-]{1,64}$',
        ),
        (
            {"messages": USER, "tool_choice": "any"},
            "tool_choice: \"any\" is unknown; allowed is 'none', 'auto' or",
        ),
        ({"messages": USER, "tool_choice": 5}, "tool_choice: 5 is neither none, auto, required nor a named "),
        ({"messages": USER, "tool_choice": "required"}, "tool_choice: 'required' was given without tools"),
        (
            {"messages": USER, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice: 'f' is no tool; allowed is none, as there are no tools",
        ),
        (
            {"messages": USER, "functions": [1]},
            "functions: [1] asks for what is not done here; allowed is []",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_field_of_chats(api: Api, body: Json, message: str) -> None:
    assert api.refusal(CHAT, **body).startswith(message)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "body: it is missing; send a JSON object"),
        ("{", "body: it is not valid JSON: "),
        ("[]", "body: [] is not an object"),
        ("5", "body: 5 is not an object"),
        ('{"temperature": NaN}', "temperature: NaN is not a finite number; allowed is [0, 100]"),
        ('{"temperature": 1e999}', "temperature: Infinity is not a finite number; allowed is [0, 100]"),
        ('{"x": ' + "9" * 5000 + "}", "request: "),
        ('{"x": ' + "[" * 100_000 + "}", "request: "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_no_body(api: Api, path: str, content: str, message: str) -> None:
    response = api.client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(message)


def test_a_body_of_another_kind(api: Api) -> None:
    response = api.client.post(COMPLETIONS, data={"prompt": "a"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith("send the header Content-Type: application/json")


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})])
def test_another_model_is_not_found(api: Api, path: str, body: Json) -> None:
    response = api.post(path, model="gpt\n5", **body)
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "model: 'gpt\\n5' is unknown; allowed is toy",
        "type": "not_found_error",
        "param": "model",
        "code": 404,
    }


def test_null_is_not_given(api: Api) -> None:
    for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})):
        fields = schema(api, path)["properties"]
        nulls = {name: None for name in fields if name not in body}
        asked: Json = {**body, "max_tokens": 3, "seed": 1}
        assert same(api.ask(path, **{**nulls, **asked}), api.ask(path, **asked))


def same(first: Json, second: Json) -> bool:
    return bool(first["choices"] == second["choices"])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_schema_shows_the_ranges(api: Api, path: str) -> None:
    """And these are the ones that `SamplingParams` has, which would refuse the same."""
    fields = schema(api, path)["properties"]
    shown = 0
    for name, limits in LIMITS.items():
        numbers = [kind for kind in fields.get(name, {}).get("anyOf", ()) if kind["type"] != "null"]
        if len(numbers) != 1 or numbers[0]["type"] not in ("integer", "number"):
            continue
        shown += 1
        assert numbers[0].get("exclusiveMinimum" if limits.low_open else "minimum") == limits.low
        assert numbers[0].get("maximum", float("inf")) == float(limits.high)
        assert fields[name]["description"]
        if name in SamplingParams.__dataclass_fields__:
            beyond: dict[str, Any] = {name: limits.low - 1}
            with pytest.raises(SurefootError, match=f"^{name}: "):
                SamplingParams(**beyond)
    assert shown >= 12


def schema(api: Api, path: str) -> Any:
    name = {COMPLETIONS: "CompletionBody", CHAT: "ChatBody"}[path]
    return api.client.get("/openapi.json").json()["components"]["schemas"][name]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_field_is_described(api: Api, path: str) -> None:
    assert [
        name for name, field in schema(api, path)["properties"].items() if "description" not in field
    ] == []
