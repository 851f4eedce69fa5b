"""What a request gives back: pieces while it runs, and the whole at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.request import Request
from surefoot.sampling import TopLogprobs
from surefoot.trace import Event, Stats, stats
from surefoot.types import FinishReason, Usage

PromptLogprobs = tuple[TopLogprobs | None, ...]
"""One per prompt token; None for the first, which nothing comes before."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the n answers of a request. text: empty without a tokenizer. logprobs: one per token id, when
    they were asked for."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TopLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request. seed: the one given, or the one that was drawn; giving it again repeats the
    tokens. prompt_token_ids: as the model saw them. text, token_ids, finish_reason, logprobs: of the first
    choice. usage: of all choices, the prompt counted once. prompt_logprobs: one per token of the prompt, when
    they were asked for; None first, for the first token follows nothing."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    seed: int
    usage: Usage
    stats: Stats
    prompt_logprobs: tuple[TopLogprobs | None, ...] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TopLogprobs, ...] | None:
        return self.choices[0].logprobs


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to one choice of a request.

    text: new text that nothing can take back; it may lag behind token_ids while a character is incomplete
    or a stop string possible. finish_reason: set in a choice's last chunk. result: set in the last chunk of
    the whole request. error: set instead when the request failed; no chunk of it follows. prompt_logprobs:
    in a choice's first chunk, when they were asked for.
    """

    request: int
    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TopLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    result: Result | None = None
    error: Exception | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine holds now. running, waiting: requests, choices counted singly. pages_used, pages_total:
    of the cache, None for as many as it takes. pages_cached: of the used, those kept for prompts to come.
    preemptions: so far."""

    running: int
    waiting: int
    pages_used: int = 0
    pages_total: int | None = None
    pages_cached: int = 0
    preemptions: int = 0


class Group:
    """The choices of one request while they run. prompt: its text, if it came as text. held_back: those of
    its choices that wait for the first one's prompt."""

    def __init__(
        self, prompt: str | None, choices: Sequence[Request], held_back: Sequence[Request] = ()
    ) -> None:
        self.prompt = prompt
        self.choices, self._held_back = tuple(choices), tuple(held_back)
        self.events: list[Event] = []
        self._shown = [0] * len(choices)
        self._unfinished = len(choices)

    @property
    def held_back(self) -> int:
        """Choices that still wait for the first one's prompt."""
        return len(self._held_back)

    def let_go(self) -> tuple[Request, ...]:
        """The choices that waited for the first one's prompt."""
        waited, self._held_back = self._held_back, ()
        return waited

    def chunk(self, choice: int, emitted: tuple[int, ...], logprobs: tuple[TopLogprobs, ...]) -> Chunk:
        """What a round added to a choice; with the result when this is the last chunk of all."""
        request = self.choices[choice]
        text = request.text[self._shown[choice] :]
        self._shown[choice] += len(text)
        self._unfinished -= request.finished
        return Chunk(
            request=request.number,
            choice=choice,
            text=text,
            token_ids=emitted,
            logprobs=None if request.params.logprobs is None else logprobs,
            finish_reason=request.finish_reason,
            result=None if self._unfinished else self._result(),
            prompt_logprobs=self._prompt_logprobs if len(request.output) == len(emitted) else None,
        )

    @property
    def _prompt_logprobs(self) -> PromptLogprobs | None:
        first = self.choices[0]
        return None if first.params.prompt_logprobs is None else (None, *first.prompt_logprobs)

    def _result(self) -> Result:
        first = self.choices[0]
        completion_tokens = sum(len(request.output) for request in self.choices)
        return Result(
            prompt=self.prompt,
            prompt_token_ids=tuple(first.prompt),
            choices=tuple(map(_choice, self.choices)),
            seed=first.seed,
            usage=Usage(len(first.prompt), completion_tokens, first.cached_tokens),
            stats=stats(self.events),
            prompt_logprobs=self._prompt_logprobs,
        )


def _choice(request: Request) -> Choice:
    assert request.finish_reason is not None
    return Choice(
        index=request.choice,
        text=request.text,
        token_ids=tuple(request.output),
        finish_reason=request.finish_reason,
        logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
    )
