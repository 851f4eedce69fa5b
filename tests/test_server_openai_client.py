"""The official client, which takes our answers for OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from surefoot.results import Result
from surefoot.types import SamplingParams
from tests.answers import NEUTRAL
from tests.api import Api, serving
from tests.serving import NAME
from tests.test_server_chat import CLOCK, ONE, TWO, WEATHER, saying, tooling

PROMPT = "tell me of"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
TEMPLATED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(draft_tokens=4) as running:
        yield running


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[openai.OpenAI]:
    with api.openai() as client:
        yield client


def solo(api: Api, prompt: str, **params: Any) -> Result:
    given: dict[str, Any] = {**NEUTRAL, "seed": 5, "max_tokens": 30, **params}
    return api.solo(api.tokenizer.encode(prompt, add_special=True), SamplingParams(**given))


def strict(answer: pydantic.BaseModel, model: type[pydantic.BaseModel]) -> None:
    """The client itself takes whatever comes; its types tell what should have come."""
    model.model_validate_json(answer.model_dump_json(exclude_unset=True))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]


def test_a_completion(api: Api, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=NAME,
        prompt=[PROMPT, "and of"],
        n=2,
        best_of=2,
        max_tokens=30,
        seed=5,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"101": 3},
        stop=["zz", "q"],
        logprobs=2,
        user="me",
    )
    strict(answer, Completion)
    params: dict[str, Any] = {"n": 2, "temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5}
    params |= {"frequency_penalty": 0.5, "logit_bias": {101: 3.0}, "stop": ("zz", "q")}
    wanted = [choice for text in (PROMPT, "and of") for choice in solo(api, text, **params).choices]
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (index, choice.text, choice.finish_reason) for index, choice in enumerate(wanted)
    ]
    for got, want in zip(answer.choices, wanted, strict=True):
        assert got.logprobs is not None
        assert got.logprobs.token_logprobs is not None
        assert len(got.logprobs.token_logprobs) == len(want.token_ids)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in wanted)
    assert answer.usage.prompt_tokens_details is not None


def test_an_echo(client: openai.OpenAI) -> None:
    """Whose first token has no log-probability, for which the client has no type."""
    answer = client.completions.create(model=NAME, prompt=PROMPT, echo=True, logprobs=1, max_tokens=4, seed=5)
    lists: Any = answer.choices[0].logprobs
    assert (lists.token_logprobs[0], len(lists.token_logprobs)) == (None, len(PROMPT) + 4)


def test_a_streamed_completion(api: Api, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=NAME,
        prompt=PROMPT,
        n=2,
        max_tokens=30,
        seed=5,
        logprobs=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, reasons = ["", ""], [None, None]
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]  # type: ignore[call-overload]
    wanted = solo(api, PROMPT, n=2)
    assert texts == [choice.text for choice in wanted.choices]
    assert reasons == [choice.finish_reason for choice in wanted.choices]
    assert usage is not None
    assert usage.completion_tokens == wanted.usage.completion_tokens


def test_a_chat(api: Api, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        n=2,
        max_completion_tokens=30,
        seed=5,
        logprobs=True,
        top_logprobs=2,
        response_format={"type": "text"},
    )
    strict(answer, ChatCompletion)
    wanted = solo(api, TEMPLATED, n=2, logprobs=2)
    for got, want in zip(answer.choices, wanted.choices, strict=True):
        assert (got.message.content, got.finish_reason) == (want.text, want.finish_reason)
        assert got.logprobs is not None
        assert got.logprobs.content is not None
        assert want.logprobs is not None
        assert [entry.logprob for entry in got.logprobs.content] == pytest.approx(
            [place.chosen for place in want.logprobs], abs=1e-5
        )
        assert all(len(entry.top_logprobs) == 2 for entry in got.logprobs.content)


def test_a_streamed_chat(api: Api, client: openai.OpenAI) -> None:
    """Assembled by the client's own hand, which checks what it is given."""
    with client.chat.completions.stream(
        model=NAME,
        messages=MESSAGES,
        max_tokens=30,
        seed=5,
        logprobs=True,
        stream_options={"include_usage": True},
    ) as stream:
        for event in stream:
            if event.type == "chunk":
                strict(event.chunk, ChatCompletionChunk)
        answer = stream.get_final_completion()
    wanted = solo(api, TEMPLATED)
    assert answer.choices[0].message.content == wanted.text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == wanted.usage.completion_tokens
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or ()) == wanted.usage.completion_tokens


OWN: dict[str, Any] = {
    "top_k": 5,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "min_tokens": 3,
    "bad_words": ["x"],
}
OWN |= {"stop_token_ids": [122], "ignore_eos": True}


@pytest.mark.parametrize("chat", [False, True])
def test_our_own_fields(api: Api, client: openai.OpenAI, chat: bool) -> None:
    extra = {**OWN, "prompt_logprobs": 1, "draft_tokens": 2, "timeout": 60, "include_metrics": True}
    if chat:
        answer: Any = client.chat.completions.create(
            model=NAME, messages=MESSAGES, max_tokens=30, seed=5, extra_body=extra
        )
        text = answer.choices[0].message.content
    else:
        answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=30, seed=5, extra_body=extra)
        text = answer.choices[0].text
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in OWN.items()}
    assert text == solo(api, TEMPLATED if chat else PROMPT, **params).text
    assert answer.choices[0].seed == 5
    assert answer.metrics["speculative_decoding"]["num_spec_tokens"] <= 2
    assert (answer if chat else answer.choices[0]).prompt_logprobs[0] is None


def test_an_answer_parsed_into_a_model(client: openai.OpenAI) -> None:
    class Reply(pydantic.BaseModel):
        ok: bool

    for seed in range(3):
        answer = client.chat.completions.parse(
            model=NAME, messages=MESSAGES, response_format=Reply, seed=seed, max_tokens=200
        )
        assert answer.choices[0].message.parsed in (Reply(ok=True), Reply(ok=False))


def test_a_tool_is_called_and_its_result_told() -> None:
    with tooling(saying(TWO, WEATHER, CLOCK)) as api, api.openai() as client:
        tools: Any = [WEATHER, CLOCK]
        create = client.chat.completions.create
        answer = create(
            model=NAME,
            messages=MESSAGES,
            tools=tools,
            temperature=0,
            tool_choice="auto",
            parallel_tool_calls=True,
        )
        strict(answer, ChatCompletion)
        message = answer.choices[0].message
        calls: Any = message.tool_calls
        assert [call.function.name for call in calls] == ["weather", "clock"]
        assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}
        results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "wet"} for call in calls]
        create(model=NAME, messages=[*MESSAGES, message, *results], tools=tools, max_tokens=3)


def test_a_tool_is_called_in_a_stream() -> None:
    with tooling(saying(ONE, WEATHER)) as api, api.openai() as client:
        tools: Any = [WEATHER]
        with client.chat.completions.stream(
            model=NAME, messages=MESSAGES, tools=tools, temperature=0
        ) as stream:
            for event in stream:
                if event.type == "chunk":
                    strict(event.chunk, ChatCompletionChunk)
            choice = stream.get_final_completion().choices[0]
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", {"city": "Oslo"})
    ]
    assert choice.finish_reason == "tool_calls"


def test_mistakes_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match=r"temperature: 200 is out of range; allowed is \[0, 100\]"
    ) as bad:
        client.completions.create(model=NAME, prompt=PROMPT, temperature=200)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match='suffix: "x" asks for what is not done here'):
        client.completions.create(model=NAME, prompt=PROMPT, suffix="x")
    with pytest.raises(openai.NotFoundError, match="model: 'gpt-4' is unknown"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES, stream=True)
    with pytest.raises(openai.BadRequestError, match="structured_outputs: "):
        client.completions.create(
            model=NAME, prompt=PROMPT, extra_body={"structured_outputs": {"regex": "("}}, stream=True
        )
