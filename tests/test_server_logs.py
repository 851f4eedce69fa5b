"""The log: a line of JSON for every request, without a word of what was said unless that is wanted."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from numpy.typing import NDArray

from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from surefoot.server.app import create_app
from surefoot.server.logs import configure, log
from surefoot.server.metrics import Metrics
from surefoot.server.observed import ObservedEngine
from surefoot.server.settings import Settings
from tests.serving import CONTEXT, NAME, VOCAB_SIZE, byte_tokenizer, prose, toy_model, toy_service

SECRET = "zebra crossing"
ASKED = {"prompt": SECRET, "max_tokens": 5, "seed": 1}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes, from level info on."""
    loggers = [logging.getLogger(name) for name in ("surefoot", "uvicorn.error")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    found = io.StringIO()
    configure("info", found)
    yield found
    for logger, state in zip(loggers, before, strict=True):
        logger.handlers, logger.level, logger.propagate = state


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def ask(
    talk: Callable[[httpx.AsyncClient], Awaitable[object]],
    model: ToyModel | None = None,
    log_prompts: bool = False,
) -> None:
    """Holds a talk with the application."""

    async def main() -> None:
        async with toy_service(model) as served:
            engine = Engine(model or toy_model(), tokenizer=byte_tokenizer())
            metrics = Metrics(NAME)
            async with ObservedEngine(engine, metrics, log_prompts=log_prompts) as observed:
                app = create_app(replace(served, engine=observed), Settings(model=NAME), metrics)
                transport = httpx.ASGITransport(app=app)
                async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                    await talk(client)

    asyncio.run(main())


def test_an_event_is_one_line_of_json(stream: io.StringIO) -> None:
    log("info", "start", answer=42, nothing=None, text="two\nlines ü")
    log("debug", "hidden")
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log("error", "failure", fault=error)
    first, second = lines(stream)
    assert list(first) == ["time", "level", "event", "answer", "text"]
    assert (first["level"], first["event"], first["answer"]) == ("info", "start", 42)
    assert first["text"] == "two\nlines ü"
    assert first["time"].endswith("+00:00")
    assert (second["level"], second["event"]) == ("error", "failure")
    assert "ValueError: two\nlines" in second["traceback"]


def test_every_request_is_logged_with_its_id_and_counts_and_without_text(stream: io.StringIO) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        for body in (ASKED, {**ASKED, "stream": True}, {**ASKED, "temperature": -1}, {**ASKED, "p": SECRET}):
            await client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})

    ask(talk)
    assert SECRET not in stream.getvalue()
    logged = lines(stream)
    assert [line["event"] for line in logged] == ["request"] * 4
    assert {line["request_id"] for line in logged} == {"mine"}
    assert [line["status"] for line in logged] == [200, 200, 400, 400]
    for line in logged:
        assert (line["method"], line["path"], line["level"]) == ("POST", "/v1/completions", "info")
        assert line["ms"] >= 0
    for line in logged[:2]:
        assert (line["prompt_tokens"], line["completion_tokens"]) == (len(SECRET), 5)
    assert [line["param"] for line in logged[2:]] == ["temperature", "p"]
    assert logged[2]["failure"] == "invalid_request_error"


def test_what_machines_ask_all_the_time_is_not_logged(stream: io.StringIO) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        for path in ("/health", "/metrics", "/v1/models"):
            assert (await client.get(path)).status_code == 200

    ask(talk)
    assert [line["path"] for line in lines(stream)] == ["/v1/models"]


def test_text_is_logged_when_it_is_wanted(stream: io.StringIO) -> None:
    ask(lambda client: client.post("/v1/completions", json={**ASKED, "n": 2}), log_prompts=True)
    answer, request = lines(stream)
    assert (answer["event"], answer["prompt"]) == ("answer", SECRET)
    assert len(answer["answers"]) == 2
    assert answer["request_id"] == request["request_id"]


def test_a_fault_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    class Failing(ToyModel):
        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            raise RuntimeError("no such luck")

    model = Failing(prose, VOCAB_SIZE, CONTEXT)
    ask(lambda client: client.post("/v1/completions", json=ASKED), model)
    [line] = lines(stream)
    assert (line["level"], line["status"], line["failure"]) == ("error", 500, "server_error")
    assert "RuntimeError: no such luck" in line["traceback"]
    assert SECRET not in stream.getvalue()


def test_what_other_parts_warn_of_is_a_line_of_json_too(stream: io.StringIO) -> None:
    logging.getLogger("surefoot.loop").warning("a round failed")
    (line,) = lines(stream)
    assert (line["level"], line["event"]) == ("warning", "a round failed")
