"""What the two generating endpoints do alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request

from surefoot.results import Result
from surefoot.server.answers import Failure, metrics, usage
from surefoot.server.errors import ApiError
from surefoot.server.fields import Ask, Shared
from surefoot.server.runs import Run
from surefoot.server.service import Service
from surefoot.server.stream import Event, Writer, note_usage, stream
from surefoot.text import Tokenizer
from surefoot.types import SurefootError

Made = TypeVar("Made")

_LONG: Final = 4096  # characters that take a tokenizer a millisecond or more


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; as server-sent events when it is streamed.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    **{
        status: {"model": Failure, "description": description}
        for status, description in {
            400: "The request can't be answered as it is: the field, its value and what is allowed.",
            401: "The key is missing or wrong.",
            404: "There is no such model.",
            408: "The body wasn't there in time.",
            413: "The body is too long.",
            429: "Too many requests wait; Retry-After says for how many seconds.",
            500: "The server failed at this request.",
            503: "The server is closing.",
            504: "The answer took too long.",
        }.items()
    },
}
"""Of the OpenAPI schema."""


class Shape(Writer, Protocol):
    """Answers in the shape of an endpoint, in pieces or whole."""

    def whole(self, results: Sequence[Result]) -> Event:
        """The answer in one piece, from the results for all prompts."""


async def respond(
    request: Request, body: Shared, served: Service, asks: Sequence[Ask], shape: Shape
) -> Response:
    """Generates, and answers as the body wants it."""
    run = Run(served.engine, asks)
    with named(body.form):
        if body.stream:
            return await stream(request, run, shape)
        async with run:
            results = await run.results()
    note_usage(request, results)
    return JSONResponse(dict(shape.whole(results)))


@contextmanager
def named(form: str) -> Iterator[None]:
    """Mistakes in a grammar are told by the field that it came from; the engine knows it by another name."""
    try:
        yield
    except SurefootError as error:
        name, _, why = str(error).partition(": ")
        if name != "grammar":
            raise
        raise SurefootError(f"{form}: {why}") from error


class Addressed(Protocol):
    """A body that may name a model."""

    model: str | None


def check_model(body: Addressed, served: Service) -> None:
    """Raises ApiError, 404, for a model that isn't served."""
    if body.model is not None and body.model not in served.names:
        raise unknown_model(body.model, served)


def unknown_model(name: str, served: Service) -> ApiError:
    message = f"model: {name!r} is unknown; allowed is {', '.join(served.names)}"
    return ApiError(404, "not_found_error", message, param="model")


async def off_loop(size: int, make: Callable[[], Made]) -> Made:
    """What `make` gives; made in a thread where so many characters would hold up other requests."""
    return make() if size < _LONG else await asyncio.to_thread(make)


def encode(name: str, tokenizer: Tokenizer, text: str, add_special: bool) -> tuple[int, ...]:
    """Its ids. Raises SurefootError naming the field for what is no text."""
    try:
        return tuple(tokenizer.encode(text, add_special))
    except SurefootError as error:
        raise SurefootError(f"{name}: {error}") from error


def check_room(name: str, ids: Sequence[int], served: Service) -> None:
    """Raises SurefootError for a prompt that is too long, or leaves no room for an answer."""
    longest = served.max_prompt_tokens
    if longest is not None and len(ids) > longest:
        raise SurefootError(f"{name}: {len(ids)} tokens are too many; allowed is {longest}")
    if len(ids) >= served.max_length:
        raise SurefootError(
            f"{name}: {len(ids)} tokens are too many; the context of {served.max_length} leaves room for "
            f"{served.max_length - 1} and an answer"
        )


def wants_usage(body: Shared) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def no_usage(body: Shared) -> dict[str, None]:
    """What OpenAI has in the chunks of a stream before the one with the usage."""
    return {"usage": None} if wants_usage(body) else {}


def last_event(body: Shared, results: Sequence[Result]) -> dict[str, Any] | None:
    """What comes last in a stream, but for its heading; None when nothing of it was asked for."""
    found: dict[str, Any] = {"choices": []}
    if wants_usage(body):
        found["usage"] = usage(results)
    if body.include_metrics:
        found["metrics"] = metrics(results)
    return found if len(found) > 1 else None
