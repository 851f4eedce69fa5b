"""A request's body, read whole within a limit, and its end when the client goes away."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.server.errors import ApiError


class Connection:
    """Reads a body before anyone works on it, and cancels the work when the connection closes.

    So no endpoint has to look whether its client is still there: whatever it awaits is cancelled, be it
    between two chunks of a stream, in the queue, or in an answer that is given as a whole.

    max_body: bytes; more are 413, however they come. patience: seconds for all of a body; one that takes
    longer is 408, and its connection ends.
    """

    def __init__(self, app: ASGIApp, max_body: int, patience: float) -> None:
        self._app, self._max_body, self._patience = app, max_body, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            async with asyncio.timeout(self._patience):
                body = await self._body(scope, receive)
        except TimeoutError:
            message = f"body: it was not there in time; allowed are {self._patience:g} seconds"
            raise ApiError(408, "timeout_error", message) from None
        if body is None:
            return None
        gone = asyncio.create_task(_disconnect(receive))
        answered = False

        async def watched(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        work = asyncio.ensure_future(self._app(scope, _replay(body, gone), watched))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or answered:  # a client also counts as gone once it has its answer
                await work
            else:
                scope["state"]["noted"]["client"] = "gone"
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """None when the client went away meanwhile. Raises ApiError as soon as it is known to be too long."""
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._check(int(declared) if declared.isdigit() else 0)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            self._check(size)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _check(self, size: int) -> None:
        if size > self._max_body:
            raise ApiError(
                413, "invalid_request_error", f"body: it is too long; allowed is {self._max_body} bytes"
            )


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _replay(body: bytes, gone: asyncio.Task[None]) -> Receive:
    """The body once more, then the end of the connection."""
    left = [body]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        await asyncio.wait((gone,))
        return {"type": "http.disconnect"}

    return receive
