"""`surefoot serve` killed, started again and ended under mixed load: nobody hangs, no answer breaks off."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.api import COMPLETIONS
from tests.models_fixture import smollm2_path
from tests.soak import answer
from tests.soak_bodies import Bodies, Job, Scale
from tests.soak_clients import Reply, ask_at
from tests.test_server_process import PATIENCE, SHORT, Running, serving

CLIENTS = 12
LIMITS = ("--max-requests", "4", "--max-queue", "6", "--kv-memory", "8MiB")
SCALE = Scale(shared=60, own=20, answer=60, ids=range(100, 200), most=10_000, drafts=15)
Ends = list[Reply | OSError]


async def client(port: int, number: int, begun: list[int], ends: Ends) -> None:
    """Asks one thing after another until nobody answers; of what it got, the last goes to `ends`."""
    bodies = Bodies(number, SCALE)
    count = 0
    while True:
        job = bodies.job(count)
        count += 1
        begun.append(number)
        try:
            reply = await ask_at(port, job)
        except OSError as error:
            ends.append(error)
            return
        if reply.broken:
            ends.append(reply)
            return
        check_whole(job, reply)
        if reply.status in (429, 503):
            await asyncio.sleep(0.02)


def check_whole(job: Job, reply: Reply) -> None:
    """An answer, or an error that says what it is."""
    if reply.left or not reply.status:
        return
    assert reply.status != 500, reply
    if reply.status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1
    if not job.wrong:
        assert answer(job, reply)["end"] != "cut", reply


async def crowded(port: int, number_of: int, act: Callable[[], Any]) -> Ends:
    """What clients got in the end when `act` came over the server while all of them were asking."""
    begun: list[int] = []
    ends: Ends = []
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(number_of):
            group.create_task(client(port, number, begun, ends))
        while len(begun) < 4 * number_of:
            await asyncio.sleep(0.01)
        act()
    return ends


def half_a_request(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{{".encode())
    return connection


def port_of(running: Running) -> int:
    return int(running.url.rpartition(":")[2])


def test_killed_started_again_and_ended_under_load() -> None:
    smollm2_path()
    with serving(*LIMITS) as running:
        port = port_of(running)
        ends = asyncio.run(crowded(port, CLIENTS, running.process.kill))
        assert len(ends) == CLIENTS
        assert running.process.wait(PATIENCE) == -signal.SIGKILL
    with serving(*LIMITS, "--grace", "1", port=port) as again, closing(half_a_request(port)) as half:
        assert again.ask(SHORT).json()["usage"]["completion_tokens"] > 0
        ends = asyncio.run(crowded(port, CLIENTS, lambda: again.process.send_signal(signal.SIGTERM)))
        # Whoever was connected got a whole answer, and asked again until nobody was connected any more. Only
        # where the kernel can't be told to connect nobody (not Linux) may one of them be reset.
        assert [end for end in ends if not isinstance(end, ConnectionRefusedError)] == []
        assert half.recv(65_536).startswith(b"HTTP/1.1 503 ")
        code, log = again.end()
    assert code == 0
    assert not [line for line in log if "traceback" in line]
