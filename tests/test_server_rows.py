"""Every row of docs/server.md's tables: a request with the field does what the row says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from surefoot.server.answers import Speculation
from tests.answers import joined, same_choices, same_content, same_lists, same_prompt
from tests.api import Api, Json, serving
from tests.asked import ALL, EVERY_ROW, Asked
from tests.server_tables import Row
from tests.serving import IM_END, NAME, byte_tokenizer

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
)
# The likeliest tokens repeat themselves, so that drafts are found.
LOOPS: Json = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "maxProperties": 0}}}
    for name in ("look", "leap")
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}},
    "required": ["a"],
    "additionalProperties": False,
}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(tokenizer=byte_tokenizer(TEMPLATE)) as running:
        yield running


def sampled(fields: Json, params: dict[str, Any], beside: Json | None = None) -> Callable[[Asked], None]:
    """That some fields give what the engine gives for its own parameters, and not what comes without them.
    beside: fields that are there either way."""

    def check(asked: Asked) -> None:
        common = dict(beside or {})
        got, without = asked.choices(**common, **fields), asked.choices(**common)
        if "logit_bias" in common:
            common["logit_bias"] = {int(token): bias for token, bias in common["logit_bias"].items()}
        same_choices(got, asked.solo(**common, **params), "content" if asked.is_chat else "text")
        assert got != without

    return check


def model(asked: Asked) -> None:
    assert asked.ask(model=NAME)["model"] == NAME
    assert asked.api.post(asked.path, **asked.prompt, model="other").status_code == 404


def prompt_logprobs(asked: Asked) -> None:
    answer = asked.ask(prompt_logprobs=3)
    listed = answer["prompt_logprobs"] if asked.is_chat else answer["choices"][0]["prompt_logprobs"]
    want = asked.solo(prompt_logprobs=3)
    assert want.prompt_logprobs is not None
    same_prompt(listed, want.prompt_logprobs)


def structured_outputs(asked: Asked) -> None:
    assert re.fullmatch("[0-9]{3}", asked.text(structured_outputs={"regex": "[0-9]{3}"}))
    assert asked.text(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert json.loads(asked.text(structured_outputs={"json": SCHEMA}))["a"] in (1, 2)
    grammar = 'start: "a" | "b" start'
    assert re.fullmatch("b*a", asked.text(structured_outputs={"grammar": grammar}))


def draft_tokens(asked: Asked) -> None:
    plain, two, most = (
        asked.ask(include_metrics=True, return_token_ids=True, **LOOPS, **given)
        for given in ({"draft_tokens": 0}, {"draft_tokens": 2}, {})
    )
    assert plain["choices"] == two["choices"] == most["choices"]
    told = [answer["metrics"]["speculative_decoding"] for answer in (plain, two, most)]
    assert [entry["num_spec_steps"] > 0 for entry in told] == [False, True, True]
    assert told[1]["num_spec_tokens"] <= 2 < told[2]["num_spec_tokens"]


def timeout(asked: Asked) -> None:
    response = asked.api.post(asked.path, **asked.prompt, max_tokens=300, ignore_eos=True, timeout=1e-6)
    assert response.status_code == 504
    assert asked.choices(timeout=600) == asked.choices()


def stream(asked: Asked) -> None:
    [piece] = joined(asked.events(return_token_ids=True))
    [whole] = asked.choices()
    assert {name: piece[name] for name in whole} == whole
    assert len(asked.events()) > 2


def stream_options(asked: Asked) -> None:
    *_, last = asked.events(stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]["completion_tokens"]) == (
        [],
        asked.ask()["usage"]["completion_tokens"],
    )
    assert not any("usage" in event for event in asked.events())


def include_metrics(asked: Asked) -> None:
    told = asked.ask(include_metrics=True, **LOOPS)["metrics"]["speculative_decoding"]
    assert set(told) == set(Speculation.__annotations__)
    steps, accepted = told["num_spec_steps"], told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert told["draft_acceptance_rate"] == pytest.approx(accepted / told["num_draft_tokens"])
    assert sum(told["acceptance_histogram"]) == steps
    assert asked.events(include_metrics=True, **LOOPS)[-1]["metrics"]["speculative_decoding"] == told
    assert "metrics" not in asked.ask()


def return_token_ids(asked: Asked) -> None:
    answer = asked.ask(return_token_ids=True)
    [choice] = answer["choices"]
    assert choice["token_ids"] == list(asked.solo().choices[0].token_ids)
    assert (answer if asked.is_chat else choice)["prompt_token_ids"] == asked.ids
    assert "token_ids" not in asked.ask()["choices"][0]


def cache_salt(asked: Asked) -> None:
    asked.ask()
    cached = [
        asked.ask(**given)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for given in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"})
    ]
    assert [tokens > 0 for tokens in cached] == [True, False, True, False]
    assert asked.choices(cache_salt="a") == asked.choices()


def user(asked: Asked) -> None:
    assert asked.choices(user="me") == asked.choices()


def safety_identifier(asked: Asked) -> None:
    assert asked.choices(safety_identifier="me") == asked.choices()


def prompt_cache_key(asked: Asked) -> None:
    assert asked.choices(prompt_cache_key="mine") == asked.choices()


def prompt(asked: Asked) -> None:
    assert asked.choices(prompt=asked.ids) == asked.choices()
    other = [1, 2, 3]
    for two in (["How are you?", "\x01\x02\x03"], [asked.ids, other]):
        first, second = asked.choices(prompt=two)
        assert first == asked.choices()[0]
        assert second == {**asked.choices(prompt=other)[0], "index": 1}


def max_tokens(asked: Asked) -> None:
    sampled({"max_tokens": 9}, {"max_tokens": 9})(asked)
    usage = asked.ask(max_tokens=None, ignore_eos=True)["usage"]
    assert usage["completion_tokens"] == (
        asked.api.served.max_length - len(asked.ids) if asked.is_chat else 16
    )


def best_of(asked: Asked) -> None:
    three = asked.solo(n=3, logprobs=0).choices

    def mean(place: int) -> float:
        listed = three[place].logprobs or ()
        return sum(entry.chosen for entry in listed) / len(listed)

    ranked = sorted(range(3), key=mean, reverse=True)
    got = asked.choices(best_of=3, n=2)
    assert [choice["token_ids"] for choice in got] == [list(three[place].token_ids) for place in ranked[:2]]


def echo(asked: Asked) -> None:
    assert asked.text(echo=True) == "How are you?" + asked.text()
    lists = asked.ask(echo=True, logprobs=1)["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == len(asked.ids) + asked.ask()["usage"]["completion_tokens"]


def logprobs(asked: Asked) -> None:
    given = {"logprobs": True} if asked.is_chat else {"logprobs": 2}
    [want] = asked.solo(logprobs=0 if asked.is_chat else 2).choices
    found = asked.ask(**given)["choices"][0]["logprobs"]
    if asked.is_chat:
        same_content(found["content"], want, asked.api.tokenizer)
    else:
        same_lists(found, want, asked.api.tokenizer)
    assert asked.ask()["choices"][0]["logprobs"] is None


def top_logprobs(asked: Asked) -> None:
    [want] = asked.solo(logprobs=4).choices
    found = asked.ask(logprobs=True, top_logprobs=4)["choices"][0]["logprobs"]
    same_content(found["content"], want, asked.api.tokenizer)


def messages(asked: Asked) -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    told = asked.ask(messages=turns, return_token_ids=True)["prompt_token_ids"]
    said = "system:Be brief.", "user:ab", "assistant:c", "user:d"
    laid_out = "".join(f"<|im_start|>{turn}<|im_end|>" for turn in said) + "<|im_start|>"
    assert asked.api.tokenizer.decode(told, skip_special=False) == laid_out


def max_completion_tokens(asked: Asked) -> None:
    nine = asked.choices(max_tokens=9)
    assert asked.choices(max_tokens=None, max_completion_tokens=9) == nine


def response_format(asked: Asked) -> None:
    assert json.loads(asked.text(response_format=AS_SCHEMA))["a"] in (1, 2)
    bias = {"125": 100}  # "}" as soon as it may come
    assert json.loads(asked.text(response_format={"type": "json_object"}, logit_bias=bias)) == {}


def tools(asked: Asked) -> None:
    told = asked.ask(tools=TOOLS, return_token_ids=True)["prompt_token_ids"]
    assert asked.api.tokenizer.decode(told, skip_special=False).startswith("look;leap;<|im_start|>user")


def calls(asked: Asked, **fields: object) -> list[str]:
    """The names of an answer's calls, which are all of it."""
    [choice] = asked.ask(tools=TOOLS, **{"max_tokens": 300, **fields})["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    return [call["function"]["name"] for call in choice["message"]["tool_calls"]]


def tool_choice(asked: Asked) -> None:
    ends = {str(IM_END): 100}
    assert set(calls(asked, tool_choice="required", logit_bias=ends)) <= {"look", "leap"}
    leap = {"type": "function", "function": {"name": "leap"}}
    assert calls(asked, tool_choice=leap) == ["leap"]
    without = asked.choices(tools=TOOLS, tool_choice="none")
    assert without == asked.choices()
    assert asked.choices(tools=TOOLS, tool_choice="auto") == asked.choices(tools=TOOLS)


def parallel_tool_calls(asked: Asked) -> None:
    again = {"10": 9}  # "\n", behind which another call comes
    given: Json = {"tool_choice": "required", "logit_bias": again}
    several = (seed for seed in range(40) if len(calls(asked, seed=seed, **given)) > 1)
    seed = next(several)
    assert len(calls(asked, seed=seed, parallel_tool_calls=False, **given)) == 1


EARLY: Json = {"logit_bias": {str(IM_END): 6}}  # the model would end soon
CHECKS: dict[str, Callable[[Asked], None]] = {
    "n": sampled({"n": 3}, {"n": 3}),
    "temperature": sampled({"temperature": 0.3}, {"temperature": 0.3}),
    "top_p": sampled({"top_p": 0.3}, {"top_p": 0.3}),
    "top_k": sampled({"top_k": 2}, {"top_k": 2}),
    "min_p": sampled({"min_p": 0.3}, {"min_p": 0.3}),
    "repetition_penalty": sampled({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    "presence_penalty": sampled({"presence_penalty": 2}, {"presence_penalty": 2.0}),
    "frequency_penalty": sampled({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
    "logit_bias": sampled({"logit_bias": {"101": 9}}, {"logit_bias": {101: 9.0}}),
    "seed": sampled({"seed": 6}, {"seed": 6}),
    "stop": sampled({"stop": list("aeiou")}, {"stop": tuple("aeiou")}),
    "stop_token_ids": sampled({"stop_token_ids": [*b"aeiou"]}, {"stop_token_ids": tuple(b"aeiou")}),
    "min_tokens": sampled({"min_tokens": 20}, {"min_tokens": 20}, EARLY),
    "ignore_eos": sampled({"ignore_eos": True}, {"ignore_eos": True}, EARLY),
    "bad_words": sampled({"bad_words": ["e", "o", "a"]}, {"bad_words": ("e", "o", "a")}),
} | {
    check.__name__: check
    for check in (
        *(model, prompt_logprobs, structured_outputs, draft_tokens, timeout, stream, stream_options),
        *(include_metrics, return_token_ids, cache_salt, user, safety_identifier),
        *(prompt_cache_key, prompt, max_tokens, best_of, echo, logprobs),
        *(top_logprobs,),
        *(messages, max_completion_tokens, response_format, tools, tool_choice, parallel_tool_calls),
    )
}


@EVERY_ROW
def test_a_field_does_what_its_row_says(api: Api, row: Row, path: str) -> None:
    CHECKS[row.field](Asked(api, path))


def test_every_row_is_checked() -> None:
    assert {row.field for row, _ in ALL} == set(CHECKS)
