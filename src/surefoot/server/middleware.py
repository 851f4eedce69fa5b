"""What goes around every request: its id, its line in the log, the key, and the answer when it fails."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import uuid

from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.server.errors import ApiError, api_error
from surefoot.server.logs import REQUEST_ID, log
from surefoot.types import ClosedError

CLIENT_GONE = 499  # nginx's: the standard has no status for an answer that nobody waits for

_GIVEN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def note(request: Request, **fields: object) -> None:
    """Adds fields to the line that the log will have of a request. Text only where log_prompts is on."""
    request.state.noted.update(fields)


class Requests:
    """Gives each request its id, answers for the errors it ends with, and logs it. Outermost.

    The id is the client's own X-Request-Id where that is sane; it is in `request.state.request_id`, in the
    response, and in the log. quiet: paths that machines ask all the time, logged at level debug.
    """

    def __init__(self, app: ASGIApp, quiet: tuple[str, ...] = ()) -> None:
        self._app, self._quiet = app, quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 0
        number = _id_of(scope)
        noted: dict[str, object] = {}
        scope.setdefault("state", {}).update(request_id=number, noted=noted)
        REQUEST_ID.set(number)

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        fault: Exception | None = None
        try:
            await self._app(scope, receive, named)
        except Exception as error:
            told = api_error(error)
            noted.update(failure=told.kind, param=told.param)
            fault = error if told.status == 500 else None
            if status:  # the head is out: that the answer breaks off is all that the client can be told
                raise
            await error_response(told)(scope, receive, named)
        except asyncio.CancelledError:
            if scope["app"].state.service.engine.is_open:
                raise
            # The server closes, and has waited long enough for this client.
            noted.update(failure="unavailable_error")
            if not status:
                told = api_error(ClosedError("server: it closed before the request was complete"))
                await error_response(told)(scope, receive, named)
        finally:
            noted |= {"method": scope["method"], "path": scope["path"], "status": status or CLIENT_GONE}
            noted["ms"] = round(1000 * (time.perf_counter() - began), 1)
            level = "error" if fault else "debug" if scope["path"] in self._quiet else "info"
            log(level, "request", fault=fault, **noted)


def error_response(error: ApiError) -> JSONResponse:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 408:
        headers["Connection"] = "close"  # what is left of the body would be read as the next request
    return JSONResponse(error.body(), error.status, headers)


class Key:
    """Asks for `Authorization: Bearer KEY` everywhere but at some paths."""

    def __init__(self, app: ASGIApp, key: str, free: tuple[str, ...]) -> None:
        self._app, self._wanted, self._free = app, key.encode(), free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._free:
            scheme, _, given = (_header(scope, b"authorization") or b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self._wanted):
                what = "wrong" if given else "missing"
                message = f"api key: it is {what}; send Authorization: Bearer KEY"
                raise ApiError(401, "authentication_error", message)
        await self._app(scope, receive, send)


def _id_of(scope: Scope) -> str:
    given = _header(scope, b"x-request-id")
    return given.decode() if given and _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((bytes(value) for key, value in scope["headers"] if key == name), None)
