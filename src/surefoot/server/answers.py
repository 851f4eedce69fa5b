"""What answers are made of, in OpenAI's shapes and with our additions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from surefoot import types
from surefoot.results import Result

FINGERPRINT = f"surefoot-{version('surefoot')}"
"""Which version answers. A seed's tokens stay the same while it, the model file, its precision and the
machine do."""


class Mistake(TypedDict):
    """param: the field at fault. code: the HTTP status."""

    message: str
    type: str
    param: str | None
    code: int


class Failure(TypedDict):
    error: Mistake


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """Tokens of all prompts and all answers, those that best_of left out included. cached_tokens: of the
    prompts, those that another request had computed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Speculation(TypedDict):
    """How the speculation went, over all answers to a request; rounds without a draft don't count.

    mean_acceptance_length: 1 + accepted / steps, 1 without steps. acceptance_histogram: how many steps
    accepted 0, 1, … draft tokens, up to num_spec_tokens, the longest draft there was.
    """

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class Metrics(TypedDict):
    speculative_decoding: Speculation


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ContentLogprobs(TypedDict):
    content: list[TokenLogprob]


class ListLogprobs(TypedDict):
    """A list entry per token. text_offset: characters of the choice's text before it; where a stop string
    was cut, its tokens lie at the text's end or past it."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """rank: 1 for the likeliest; None for a token that is not among those that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Per token of the prompt, by token id: the token itself, and the likeliest ones."""


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: ListLogprobs | None
    finish_reason: types.FinishReason | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Answer(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str


class Completion(Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]
    metrics: NotRequired[Metrics]


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCall]]


ChatReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(TypedDict):
    index: int
    message: AssistantMessage
    logprobs: ContentLogprobs | None
    finish_reason: ChatReason
    seed: int
    token_ids: NotRequired[list[int]]


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: NotRequired[Metrics]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """id, type and name: in the first piece of a call alone."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class Delta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: Delta
    logprobs: ContentLogprobs | None
    finish_reason: ChatReason | None
    seed: NotRequired[int]
    token_ids: NotRequired[list[int]]


def heading(kind: str, request_id: str, model: str) -> Answer:
    """What every piece of an answer begins with. kind: of its id."""
    return Answer(
        id=f"{kind}-{request_id}", created=int(time.time()), model=model, system_fingerprint=FINGERPRINT
    )


def usage(results: Sequence[Result]) -> Usage:
    """Of the answers to all prompts of a request."""
    prompt = sum(result.usage.prompt_tokens for result in results)
    completion = sum(result.usage.completion_tokens for result in results)
    cached = sum(result.usage.cached_tokens for result in results)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=CachedTokens(cached_tokens=cached),
    )


def metrics(results: Sequence[Result]) -> Metrics:
    """Of the answers to all prompts of a request."""
    histograms = [result.stats.acceptance_histogram for result in results]
    histogram = [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]
    steps = sum(histogram)
    accepted = sum(result.stats.accepted_tokens for result in results)
    drafted = sum(result.stats.draft_tokens for result in results)
    return Metrics(
        speculative_decoding=Speculation(
            mean_acceptance_length=1.0 + (accepted / steps if steps else 0),
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=histogram,
            num_spec_steps=steps,
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=len(histogram) - 1,
        )
    )
