"""Answers piece by piece, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from surefoot.results import Chunk, Result
from surefoot.sampling import TopLogprobs
from surefoot.server.answers import usage
from surefoot.server.errors import api_error
from surefoot.server.listings import Token
from surefoot.server.logs import log
from surefoot.server.middleware import note
from surefoot.server.runs import Run

Event = Mapping[str, Any]


class Writer(Protocol):
    """Puts pieces of answers into the shape of an endpoint."""

    def write(self, place: int, chunk: Chunk) -> Iterable[Event]:
        """What a piece of the answer to a prompt, by number, brings the client; maybe nothing yet."""

    def end(self, results: Sequence[Result]) -> Iterable[Event]:
        """What comes behind all answers."""


@dataclass(slots=True)
class Held:
    """What a choice's client has not been told of yet: text may lag behind its tokens. text: an echo, at
    first. prompt: the log-probabilities of the prompt, at first."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    prompt: Sequence[TopLogprobs | None] | None = None

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.ids += chunk.token_ids
        self.tokens += zip(chunk.token_ids, chunk.logprobs or (), strict=False)
        self.prompt = self.prompt or chunk.prompt_logprobs


async def stream(request: Request, run: Run, writer: Writer) -> EventStream:
    """The response, once every answer has begun: what is wrong before that is raised, and so has a status of
    its own. What goes wrong later is the stream's last event, an error without the [DONE] that complete
    answers end with."""
    try:
        await run.begin()
    except BaseException:
        await run.close()
        raise
    return EventStream(request, run, writer)


class EventStream(StreamingResponse):
    """Ends the run when it ends itself, however that comes about."""

    media_type = "text/event-stream"

    def __init__(self, request: Request, run: Run, writer: Writer) -> None:
        self._run = run
        super().__init__(_events(request, run, writer), headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._run.close()


def note_usage(request: Request, results: Sequence[Result]) -> None:
    """For the request's line in the log."""
    used = usage(results)
    note(request, prompt_tokens=used["prompt_tokens"], completion_tokens=used["completion_tokens"])


async def _events(request: Request, run: Run, writer: Writer) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(run.chunks()) as chunks:
            async for place, chunk in chunks:
                for event in writer.write(place, chunk):
                    yield _line(event)
        results = await run.results()
        note_usage(request, results)
        for event in writer.end(results):
            yield _line(event)
    except Exception as error:
        told = api_error(error)
        note(request, failure=told.kind)
        if told.status == 500:
            log("error", "stream", fault=error)
        yield _line(told.body())
    else:
        yield b"data: [DONE]\n\n"


def _line(event: Event) -> bytes:
    text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"
