"""What goes around every request: ids, keys, limits, closed connections, and the server's own end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from surefoot.server.app import create_app
from surefoot.server.machine import bind, url_of
from surefoot.server.metrics import Metrics
from surefoot.server.run import Server
from surefoot.server.service import Service
from surefoot.server.settings import Settings
from tests.serving import CONTEXT, NAME, PATIENCE, VOCAB_SIZE, Gated, idle, prose, run, taken, toy_service

COMPLETIONS = "/v1/completions"
PATHS = (
    "/v1/completions, /v1/chat/completions, /tokenize, /detokenize, /v1/models, /v1/models/{name}, "
    "/health, /metrics"
)
SHORT = {"prompt": "hello", "max_tokens": 5, "seed": 1}
ENDLESS = {"prompt": "hello", "max_tokens": 350, "ignore_eos": True}


@asynccontextmanager
async def asking(served: Service, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without a network."""
    app = create_app(served, Settings(model=NAME, **settings), Metrics(NAME))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=PATIENCE) as client:
        yield client


@asynccontextmanager
async def listening(
    served: Service, grace: float = 0, **settings: Any
) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    """A server at a port of its own, and a client of it."""
    app = create_app(served, Settings(model=NAME, **settings), Metrics(NAME))
    ready = asyncio.Event()
    with bind("127.0.0.1", 0) as bound:
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        server = Server(config, served.engine, grace, ready.set)
        task = asyncio.create_task(server.serve([bound]))
        await ready.wait()
        async with httpx.AsyncClient(base_url=url_of(bound), timeout=PATIENCE) as client:
            yield server, client
        server.close("the test is over")
        await task


def message_of(response: httpx.Response) -> str:
    """Of an error in the API's shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == response.status_code
    message: str = error["message"]
    assert "\n" not in message
    return message


def test_every_answer_has_a_request_id_and_keeps_a_sane_one() -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served) as client:
            made = [(await client.get("/health")).headers["x-request-id"] for _ in range(2)]
            assert len(set(made)) == 2
            for given, kept in (("my-id.1:2_3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False)):
                response = await client.get("/nowhere", headers={"X-Request-Id": given})
                assert (response.headers["x-request-id"] == given) == kept

    run(main)


def test_the_key_is_asked_for_everywhere_but_at_health() -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served, api_key="secret") as client:
            assert (await client.get("/health")).status_code == 200
            for path in ("/metrics", "/v1/models", "/openapi.json", "/nowhere", "/health/"):
                response = await client.get(path)
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
                assert message_of(response).startswith("api key: it is missing")
            for wrong in ("Bearer secre", "Bearer secrets", "Bearer secret ", "Basic secret", "Bearer é"):
                headers = {b"Authorization": wrong.encode()}
                response = await client.post(COMPLETIONS, json=SHORT, headers=headers)
                assert response.status_code == 401
                assert message_of(response).startswith("api key: it is wrong")
            for right in ("Bearer secret", "bearer secret"):
                response = await client.post(COMPLETIONS, json=SHORT, headers={"Authorization": right})
                assert response.status_code == 200

    run(main)


def test_a_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    async def main() -> None:
        read: list[int] = []

        async def pieces() -> AsyncIterator[bytes]:
            for size in range(100):
                read.append(size)
                yield b" " * 50

        async with toy_service() as served, asking(served, max_body_bytes=200) as client:
            assert (await client.post(COMPLETIONS, json=SHORT)).status_code == 200
            for body in (b" " * 201, pieces()):
                response = await client.post(COMPLETIONS, content=body)
                assert response.status_code == 413
                assert message_of(response) == "body: it is too long; allowed is 200 bytes"
            assert len(read) <= 6

    run(main)


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, f"path: /nowhere is unknown; allowed is {PATHS}"),
        ("GET", "/health/", 404, f"path: /health/ is unknown; allowed is {PATHS}"),
        ("GET", COMPLETIONS, 405, f"method: GET given at {COMPLETIONS}; allowed is POST"),
        ("DELETE", "/health", 405, "method: DELETE given at /health; allowed is GET"),
    ],
)
def test_what_has_no_endpoint_is_told_in_the_same_shape(
    method: str, path: str, status: int, message: str
) -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served) as client:
            response = await client.request(method, path)
            assert (response.status_code, message_of(response)) == (status, message)

    run(main)


def test_health_answers_head_too() -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served) as client:
            assert (await client.head("/health")).status_code == 200

    run(main)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"prompt": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_400(body: bytes) -> None:
    async def main() -> None:
        async with toy_service() as served, asking(served) as client:
            response = await client.post(
                COMPLETIONS, content=body, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == 400
            assert message_of(response)

    run(main)


def test_a_fault_of_ours_is_500_and_says_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(ToyModel):
        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            raise RuntimeError("secret")

    async def main() -> None:
        async with toy_service(Failing(prose, VOCAB_SIZE, CONTEXT)) as served, asking(served) as client:
            response = await client.post(COMPLETIONS, json=SHORT)
            assert response.status_code == 500
            assert "secret" not in response.text
            assert response.headers["x-request-id"]
            assert message_of(response)

    run(main)
    assert "secret" in caplog.text


def test_more_than_may_wait_is_429_with_retry_after() -> None:
    async def main() -> None:
        model = Gated(free=1)
        async with (
            toy_service(model, max_requests=1, max_waiting=1) as served,
            asking(served) as client,
        ):
            asked = [asyncio.create_task(client.post(COMPLETIONS, json=SHORT)) for _ in range(2)]
            await model.is_held()
            await taken(served.engine, 2)
            response = await client.post(COMPLETIONS, json=SHORT)
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert message_of(response).startswith("engine: 2 requests run or wait")
            model.gate.set()
            assert [(await each).status_code for each in asked] == [200, 200]

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_request_within_a_round(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        model = Gated(free=1)
        async with (
            toy_service(model, prefix_cache=False) as served,
            listening(served) as (server, client),
        ):
            async with asyncio.TaskGroup() as tasks:
                asked = tasks.create_task(client.post(COMPLETIONS, json={**ENDLESS, "stream": stream}))
                await model.is_held()
                asked.cancel()
            while server.server_state.tasks:  # until it has seen it, and ended its own work
                await asyncio.sleep(0.001)
            model.gate.set()
            await idle(served.engine)
            assert len(model.cache) == 0
            assert model.passes == 2  # the one that ran when the client went was the last
            assert (await client.post(COMPLETIONS, json=SHORT)).status_code == 200

    run(main)
    gone, served = [record.__dict__["fields"] for record in caplog.records if record.msg == "request"]
    assert (gone["status"], gone["client"]) == (200 if stream else 499, "gone")
    assert (served["status"], served.get("client")) == (200, None)


def test_more_answers_than_ever_find_room_are_400_and_not_429() -> None:
    async def main() -> None:
        async with (
            toy_service(max_requests=2, max_waiting=2) as served,
            asking(served) as client,
        ):
            assert (await client.post(COMPLETIONS, json={**SHORT, "prompt": ["a"] * 4})).status_code == 200
            assert (await client.post(COMPLETIONS, json={**SHORT, "n": 5})).status_code == 200
            for body in ({"prompt": ["a"] * 5}, {"prompt": ["a"] * 3, "n": 2}):
                response = await client.post(COMPLETIONS, json={**SHORT, **body})
                assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
                assert message_of(response).endswith("allowed are 4 answers in a request")

    run(main)


def test_a_prompt_beyond_the_limit_of_prompts_is_refused() -> None:
    async def main() -> None:
        async with toy_service() as served, asking(replace(served, max_prompt_tokens=5)) as client:
            assert (await client.post(COMPLETIONS, json=SHORT)).status_code == 200
            response = await client.post(COMPLETIONS, json={**SHORT, "prompt": "hello!"})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
            assert message_of(response) == "prompt: 6 tokens are too many; allowed is 5"

    run(main)


@pytest.mark.parametrize("stream", [True, False])
def test_closing_lets_answers_finish_and_refuses_new_ones(stream: bool) -> None:
    async def main() -> None:
        model = Gated(free=1)
        async with toy_service(model) as served, listening(served, grace=PATIENCE) as (server, client):
            asked = asyncio.create_task(client.post(COMPLETIONS, json={**SHORT, "stream": stream}))
            await model.is_held()
            server.close("test")
            while served.engine.is_open:
                await asyncio.sleep(0)
            assert (await client.get("/health")).status_code == 503
            refused = await client.post(COMPLETIONS, json=SHORT)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert message_of(refused) == "engine: it is closing and takes no more requests"
            model.gate.set()
            response = await asked
            assert response.status_code == 200
            assert not stream or response.text.endswith("data: [DONE]\n\n")

    run(main)


def test_closing_without_grace_gives_every_answer_an_end() -> None:
    async def main() -> None:
        model = Gated(free=1)
        async with toy_service(model, max_requests=1) as served, listening(served) as (server, client):
            streamed = asyncio.create_task(client.post(COMPLETIONS, json={**ENDLESS, "stream": True}))
            await model.is_held()
            whole = asyncio.create_task(client.post(COMPLETIONS, json=ENDLESS))
            await taken(served.engine, 2)
            server.close("test")
            while served.engine.is_open:
                await asyncio.sleep(0)
            model.gate.set()
            responses = await asyncio.gather(streamed, whole)
            assert [response.status_code for response in responses] == [200, 503]
            last = responses[0].text.split("\n\n")[-2]
            assert "it closed before the answer was complete" in last
            assert message_of(responses[1]) == "engine: it closed before the answer was complete"

    run(main)


def test_an_engine_that_fails_for_good_ends_the_server() -> None:
    class Deadly(ToyModel):
        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            raise SystemExit(3)

    async def main() -> None:
        model = Deadly(prose, VOCAB_SIZE, CONTEXT)
        async with toy_service(model) as served, listening(served) as (server, client):
            response = await client.post(COMPLETIONS, json=SHORT)
            assert response.status_code == 503
            assert message_of(response) == "engine: it failed, and takes no more requests"
            while not server.should_exit:
                await asyncio.sleep(0.001)

    with pytest.raises(SystemExit):  # of closing the engine
        run(main)
