"""Whatever reached the server before it stopped listening gets an answer, however far it had come."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable

import pytest

from surefoot.server import run as running
from surefoot.server.wire import Wire
from tests.serving import Gated, run, toy_service
from tests.test_server_operation import COMPLETIONS, ENDLESS, SHORT, listening

HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = json.dumps(SHORT)
WHOLE = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n{BODY}"


class Client:
    """A socket that connects and sends without a turn of the event loop, so before the server can look."""

    def __init__(self, port: int, sent: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self.send(sent)
        self._socket.setblocking(False)

    def send(self, text: str) -> None:
        self._socket.sendall(text.encode())

    async def rest(self) -> str:
        """To the connection's end. Raises ConnectionResetError where there is none but that."""
        got = b""
        while piece := await asyncio.get_running_loop().sock_recv(self._socket, 65_536):
            got += piece
        self._socket.close()
        return got.decode()

    async def until(self, found: str) -> None:
        got = b""
        while found.encode() not in got:
            got += await asyncio.get_running_loop().sock_recv(self._socket, 65_536)


def close_after(server: running.Server, act: Callable[[], None]) -> None:
    """Closes a server, and acts at the very moment when it stops listening."""
    ends = server.shutdown

    async def shutdown(sockets: list[socket.socket] | None = None) -> None:
        act()
        await ends(sockets)

    server.shutdown = shutdown  # type: ignore[method-assign]
    server.close("the test")


def answers_at_the_end(
    act: Callable[[int], list[Client]], late: Callable[[list[Client]], None] | None = None
) -> list[str]:
    """What clients got that `act` made, given the port, at the very moment when the server stops listening.
    late: what they do once it has stopped."""
    clients: list[Client] = []

    async def main() -> list[str]:
        async with toy_service() as served, listening(served) as (server, http):
            port = http.base_url.port
            assert port
            close_after(server, lambda: clients.extend(act(port)))
            while not clients or any(each.is_serving() for each in server.servers):
                await asyncio.sleep(0)
            if late:
                late(clients)
            return [await client.rest() for client in clients]

    got: list[str] = []

    async def kept() -> None:
        got.extend(await main())

    run(kept)
    return got


def check_refused(answer: str) -> None:
    head, _, body = answer.partition("\r\n\r\n")
    status, *fields = head.lower().split("\r\n")
    assert status == "http/1.1 503 service unavailable"
    assert fields.count("connection: close") == 1
    assert "retry-after: 1" in fields
    assert f"content-length: {len(body)}" in fields
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (503, "unavailable_error")


def test_requests_that_nobody_has_accepted_yet_are_refused_in_words() -> None:
    answers = answers_at_the_end(lambda port: [Client(port, WHOLE) for _ in range(150)])
    assert len(answers) == 150
    for answer in answers:
        check_refused(answer)


@pytest.mark.parametrize("size", [0, 1, 20, len(HEAD), len(WHOLE) - 9])
def test_the_rest_of_a_request_is_waited_for(size: int) -> None:
    [answer] = answers_at_the_end(
        lambda port: [Client(port, WHOLE[:size])], lambda clients: clients[0].send(WHOLE[size:])
    )
    check_refused(answer)


@pytest.mark.parametrize("size", [1, 20, len(HEAD), len(WHOLE) - 9])
def test_half_a_request_is_refused_in_the_end(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_TICKS", 4)
    [answer] = answers_at_the_end(lambda port: [Client(port, WHOLE[:size])])
    check_refused(answer)
    assert "server: it closed before the request was complete" in answer


def test_who_sends_nothing_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wire, "patience", 0)
    assert answers_at_the_end(lambda port: [Client(port)]) == [""]


def test_what_is_asked_over_a_connection_that_rested_is_refused() -> None:
    async def main() -> None:
        async with toy_service() as served, listening(served) as (server, http):
            assert http.base_url.port
            client = Client(http.base_url.port, WHOLE)
            await client.until('"usage"')
            close_after(server, lambda: client.send(WHOLE))
            check_refused(await client.rest())

    run(main)


def test_a_stream_gets_its_last_event_and_then_its_end() -> None:
    async def main() -> None:
        model = Gated(free=1)
        body = json.dumps(ENDLESS | {"stream": True})
        async with toy_service(model) as served, listening(served) as (server, http):
            client = Client(http.base_url.port or 0, f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}")
            await client.until("data: ")
            await model.is_held()
            server.close("the test")
            while served.engine._commands.qsize() < 2:  # to wake its thread, and to stop it
                await asyncio.sleep(0)
            model.gate.set()
            *_, event, end = (await client.rest()).rstrip("\r\n").split("\r\n")
            assert end == "0"  # the last of its chunks
            assert json.loads(event.removeprefix("data: ").strip())["error"]["code"] == 503

    run(main)


@pytest.mark.parametrize("path", ["/health", "/nowhere", COMPLETIONS])
def test_every_answer_of_a_server_that_closes_says_that_its_connection_ends(path: str) -> None:
    async def main() -> None:
        async with toy_service() as served, listening(served) as (server, http):
            assert "connection" not in (await http.get(path)).headers
            endless = Client(http.base_url.port or 0, WHOLE[:-1])  # holds the server
            await http.get(path)  # so that one has been read
            server.close("the test")
            answer = await http.get(path)
            assert answer.headers["connection"] == "close"
            endless.send(WHOLE[-1])
            check_refused(await endless.rest())

    run(main)


def test_a_request_that_began_long_before_is_told_too() -> None:
    """uvicorn makes its headers anew every second, and a request keeps those of its first moment."""

    async def main() -> None:
        async with toy_service() as served, listening(served) as (server, http):
            early = Client(http.base_url.port or 0, WHOLE[:-1])
            await http.get("/health")  # so that it has been read
            headers = server.server_state.default_headers
            while server.server_state.default_headers is headers:
                await asyncio.sleep(0.01)
            server.close("the test")
            early.send(WHOLE[-1])
            check_refused(await early.rest())

    run(main)


def test_what_came_while_it_was_looked_at_is_read_before_it_is_looked_at_again() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        read: list[bytes] = []
        looks: list[int] = []

        def reached() -> bool:
            if not looks:
                theirs.send(b"a")
            looks.append(len(read))
            return True

        asyncio.get_running_loop().add_reader(ours, lambda: read.append(ours.recv(1)))
        await running._until(reached)
        asyncio.get_running_loop().remove_reader(ours)
        assert looks == [0, 1]
        ours.close()
        theirs.close()

    run(main)
