"""Requests to an OpenAI-compatible server, so many at once or arriving at random, and how long each took."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from surefoot.types import SurefootError

TIMEOUT = httpx.Timeout(None, connect=10)  # an overloaded server may let a request wait for minutes


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under one name. fields: what is added to the body of every request."""

    name: str
    url: str
    model: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's answer. began, first, ended: seconds on one clock; first: when its first text came. gaps:
    between pieces of text, seconds. tokens: as the server counts them, not the pieces."""

    text: str
    tokens: int
    began: float
    first: float
    ended: float
    gaps: tuple[float, ...]

    @property
    def seconds_per_token(self) -> float:
        """After the first piece; a piece may hold several tokens, so this is what a reader waits for one."""
        return (self.ended - self.first) / max(1, self.tokens - 1)


async def ask(client: httpx.AsyncClient, subject: Subject, body: dict[str, object]) -> Answer:
    """One streamed chat completion. Raises SurefootError with the server's own words when it refuses."""
    body = {
        "model": subject.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        **body,
        **subject.fields,
    }
    began = time.perf_counter()
    moments: list[float] = []
    text, tokens = "", 0
    async with client.stream("POST", f"{subject.url}/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            said = (await response.aread()).decode(errors="replace")
            raise SurefootError(f"{subject.name}: {response.status_code}: {said}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise SurefootError(f"{subject.name}: {event['error']['message']}")
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece:
                moments.append(time.perf_counter())
                text += piece
    ended = time.perf_counter()
    gaps = tuple(after - before for before, after in pairwise(moments))
    return Answer(text, tokens, began, moments[0] if moments else ended, ended, gaps)


async def closed_loop(
    subject: Subject, bodies: Sequence[dict[str, object]], concurrency: int
) -> list[Answer]:
    """All bodies, so many at a time; answers in the order of the bodies."""
    gate = asyncio.Semaphore(concurrency)

    async def one(client: httpx.AsyncClient, body: dict[str, object]) -> Answer:
        async with gate:
            return await ask(client, subject, body)

    return await _gathered(bodies, one)


async def open_loop(
    subject: Subject, bodies: Sequence[dict[str, object]], rate: float, seed: int
) -> list[Answer]:
    """All bodies, arriving as a Poisson process of so many a second whether or not the server keeps up."""
    draws = random.Random(seed)
    arrivals, now = [], 0.0
    for _ in bodies:
        now += draws.expovariate(rate)
        arrivals.append(now)
    began = time.perf_counter()
    waits = iter(arrivals)

    async def one(client: httpx.AsyncClient, body: dict[str, object]) -> Answer:
        await asyncio.sleep(max(0.0, began + next(waits) - time.perf_counter()))
        return await ask(client, subject, body)

    return await _gathered(bodies, one)


async def _gathered(
    bodies: Sequence[dict[str, object]],
    one: Callable[[httpx.AsyncClient, dict[str, object]], Coroutine[Any, Any, Answer]],
) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits) as client:
        tasks = [asyncio.create_task(one(client, body)) for body in bodies]
        try:
            return await asyncio.gather(*tasks)
        finally:  # one that failed ends the measurement
            for task in tasks:
                task.cancel()
