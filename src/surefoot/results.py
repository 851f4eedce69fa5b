"""What a request gives back: pieces while it runs, and the whole at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.request import Request
from surefoot.sampling import TopLogprobs
from surefoot.trace import Event, Stats, stats
from surefoot.types import FinishReason, SurefootError, Usage


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
    choice. usage: of all choices, the prompt counted once."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    seed: int
    usage: Usage
    stats: Stats

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
    the whole request. error: set instead when the request failed; no chunk of it follows.
    """

    request: int
    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TopLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    result: Result | None = None
    error: SurefootError | None = None


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
    """The choices of one request while they run. prompt: its text, if it came as text."""

    def __init__(self, prompt: str | None, choices: Sequence[Request]) -> None:
        self.prompt = prompt
        self.choices = tuple(choices)
        self.events: list[Event] = []
        self._shown = [0] * len(choices)
        self._unfinished = len(choices)

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
        )

    def _result(self) -> Result:
        first = self.choices[0]
        completion_tokens = sum(len(request.output) for request in self.choices)
        return Result(
            prompt=self.prompt,
            prompt_token_ids=tuple(first.prompt),
            choices=tuple(map(_choice, self.choices)),
            seed=first.seed,
            usage=Usage(prompt_tokens=len(first.prompt), completion_tokens=completion_tokens),
            stats=stats(self.events),
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
