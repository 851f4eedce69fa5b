"""What the tests of the endpoints share: a server over a toy model in a thread, and a client for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import openai
import uvicorn

from surefoot.engine import Engine
from surefoot.models.toy import ToyModel
from surefoot.results import Result
from surefoot.server.app import create_app
from surefoot.server.metrics import Metrics
from surefoot.server.service import Service
from surefoot.server.settings import Settings
from surefoot.text import Tokenizer
from surefoot.types import SamplingParams
from tests.serving import NAME, byte_tokenizer, toy_model, toy_service

Json = dict[str, Any]

AS_JSON = {"Content-Type": "application/json"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass
class Api:
    """A running server, and what it serves."""

    url: str
    served: Service
    model: ToyModel
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.served.tokenizer

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.client.post(path, content=json.dumps(body), headers=AS_JSON)

    def ask(self, path: str, **body: object) -> Json:
        """An answer, which must be one."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        found: Json = strictly(response.text)
        return found

    def refusal(self, path: str, **body: object) -> str:
        """The message of a 400."""
        response = self.post(path, **body)
        assert response.status_code == 400, response.text
        message: str = response.json()["error"]["message"]
        return message

    def events(self, path: str, **body: object) -> list[Json]:
        """The events of a complete stream."""
        *events, last = self.lines(path, **body)
        assert last == "[DONE]"
        return [strictly(event) for event in events]

    def lines(self, path: str, **body: object) -> list[str]:
        """What the events of a stream carry."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *lines, end = response.text.split("\n\n")
        assert end == ""
        assert all(line.startswith("data: ") and "\n" not in line for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def solo(self, prompt: list[int], params: SamplingParams) -> Result:
        """The same by plain decoding, alone."""
        model = ToyModel(
            self.model._logits_of, self.model.vocab_size, self.model.max_length, self.model.eos_token_ids
        )
        with Engine(model, draft=None, tokenizer=self.tokenizer) as engine:
            return engine.generate([prompt], params)[0]


def strictly(text: str) -> Any:
    """JSON, without the NaN and Infinity that Python would take."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@contextmanager
def serving(
    model: ToyModel | None = None, tokenizer: Tokenizer | None = None, **service: Any
) -> Iterator[Api]:
    """A server over the toy model, or another. service: further arguments of `toy_service`."""
    model, tokenizer = model or toy_model(), tokenizer or byte_tokenizer()
    started = threading.Event()
    services: list[Service] = []
    servers: list[uvicorn.Server] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        async with toy_service(model, tokenizer=tokenizer, **service) as served:
            served = replace(served, max_length=model.max_length)
            config = uvicorn.Config(application(served), port=0, log_level="error", lifespan="off")
            server = uvicorn.Server(config)
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            services.append(served)
            servers.append(server)
            task = asyncio.create_task(server.serve())
            while not server.started and not task.done():
                await asyncio.sleep(0.001)
            started.set()
            await task

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(60)
    try:
        assert not failed, failed
        port = servers[0].servers[0].sockets[0].getsockname()[1]
        api = Api(f"http://127.0.0.1:{port}", services[0], model)
        with api.client:
            yield api
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(60)
    assert not failed, failed


def application(served: Service) -> Any:
    return create_app(served, Settings(model=NAME), Metrics(NAME))
