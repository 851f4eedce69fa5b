"""Clients for tests/soak.py: of the application itself, and of a server by connections of their own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from tests.api import Json
from tests.soak_bodies import Job


@dataclass
class Reply:
    """status: 0 when there was none yet. pieces: of the body. left: the client went away. broken: the server
    did, after it had taken the connection and before the answer was over."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    left: bool = False
    broken: bool = False

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode()


async def ask(app: FastAPI, job: Job) -> Reply:
    """Sends a request to the application, as a server would, and reads as slowly as a client may."""
    reply, gone = Reply(), asyncio.Event()
    half = len(job.body) // 2
    parts = [(job.body[:half], True), (job.body[half:], False)]

    async def receive() -> Json:
        if parts:
            body, more = parts.pop(0)
            return {"type": "http.request", "body": body, "more_body": more}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if gone.is_set():
            return
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        if message.get("body"):
            reply.pieces.append(message["body"])
        if not message.get("more_body"):
            gone.set()
        elif job.leaves is not None and len(reply.pieces) > job.leaves:
            reply.left = True
            gone.set()
        elif len(reply.pieces) % 3 == 0:
            await asyncio.sleep(0)

    def leave() -> None:
        if not gone.is_set():
            reply.left = True
            gone.set()

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(job.body))]
    scope: Json = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
    scope |= {"method": "POST", "path": job.path, "raw_path": job.path.encode(), "query_string": b""}
    scope |= {"headers": headers, "scheme": "http", "root_path": "", "server": ("test", 80)}
    timer = None
    if job.leaves is not None and not job.stream:
        timer = asyncio.get_running_loop().call_later(job.wait, leave)
    try:
        await app(scope, receive, send)
    finally:
        if timer:
            timer.cancel()
    return reply


async def ask_at(port: int, job: Job) -> Reply:
    """The same over a connection that is closed, or reset, when the client goes. Raises OSError where the
    connection isn't taken, and only there."""
    reply = Reply()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {job.path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        writer.write(
            f"{head}Content-Length: {len(job.body)}\r\nConnection: close\r\n\r\n".encode() + job.body
        )
        async with asyncio.timeout(job.wait if job.leaves is not None and not job.stream else None):
            await _read(reader, job, reply)
    except TimeoutError:
        reply.left = True
    except (asyncio.IncompleteReadError, OSError):  # an end, or a reset
        reply.broken = True
    finally:
        if reply.left and len(job.body) % 2:
            writer.transport.abort()  # a reset, where closing sends an end
        writer.close()
    return reply


async def _read(reader: asyncio.StreamReader, job: Job, reply: Reply) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    reply.status = int(head[0].split()[1])
    fields = (line.split(": ", 1) for line in head[1:] if line)
    reply.headers = {name.lower(): value for name, value in fields}
    if "content-length" in reply.headers:
        reply.pieces.append(await reader.readexactly(int(reply.headers["content-length"])))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        reply.pieces.append((await reader.readexactly(size + 2))[:-2])
        if job.leaves is not None and len(reply.pieces) > job.leaves:
            reply.left = True
            return
