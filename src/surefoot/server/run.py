"""A server from its start to its end: what is loaded, what is printed, and how signals close it."""

from __future__ import annotations

import asyncio
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from surefoot.asynchronous import AsyncEngine
from surefoot.engine import Engine, lookahead
from surefoot.loading import LoadedModel, load_model
from surefoot.pairing import check_sharing, names_a_model
from surefoot.server.app import create_app
from surefoot.server.logs import configure, log
from surefoot.server.machine import bind, free_memory, kv_memory, refuse_handshakes, url_of
from surefoot.server.metrics import Metrics
from surefoot.server.observed import ObservedEngine
from surefoot.server.service import Service
from surefoot.server.starting import announce, start_of
from surefoot.server.wire import Wire
from surefoot.trace import Event, Writer
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.server.settings import Settings

_LAST_WORDS = 5  # seconds that clients have for taking the ends of their answers
_TICK = 0.05  # seconds; waiting is counted in these, so that a machine that stands still cuts nobody off
_TICKS = round(_LAST_WORDS / _TICK)
_TO_CONNECT = 8  # turns of the event loop; it needs three to make a connection of what it has accepted
_CLOSE = (b"connection", b"close")


def serve(settings: Settings, told: Callable[[LoadedModel], None] = lambda target: None) -> None:
    """Serves until SIGINT or SIGTERM: then requests are refused, those in flight may finish within the grace,
    and the rest is ended. A second signal ends the program at once. Raises SurefootError for what can't be
    served, before anyone is told that it is. told: called with the target once it is loaded."""
    lookahead(settings.draft, settings.draft_tokens, settings.max_rows)  # before loading, which takes seconds
    check_sharing(settings.draft, settings.share_drafts)
    with bind(settings.host, settings.port) as bound:
        target, draft = _load(settings)
        told(target)
        settings = _resolved(settings, target, draft)
        metrics = Metrics(settings.served_model_name[0])
        with _recorded(settings.trace, metrics) as record:
            engine = Engine(
                target,
                draft,
                draft_tokens=settings.draft_tokens,
                share_drafts=settings.share_drafts,
                verify=settings.verify,
                max_rows=settings.max_rows,
                max_requests=settings.max_requests,
                kv_memory=settings.kv_memory,
                prefix_cache=settings.prefix_cache,
                prompt_rows=settings.prompt_rows,
                trace=record,
            )
            configure(settings.log_level)
            asyncio.run(_serve(settings, engine, metrics, target, bound))


async def _serve(
    settings: Settings,
    engine: Engine,
    metrics: Metrics,
    target: LoadedModel,
    bound: socket.socket,
) -> None:
    running = ObservedEngine(
        engine, metrics, max_waiting=settings.max_queue, log_prompts=settings.log_prompts
    )
    start = start_of(settings, target, engine)
    serving = Service(
        engine=running,
        tokenizer=target.tokenizer,
        names=settings.served_model_name,
        max_length=engine.max_length,
        max_draft_tokens=min(engine.max_draft_tokens, settings.prompt_rows),  # no more stalls others
        timeout=settings.timeout,
        created=int(time.time()),
        max_prompt_tokens=settings.max_prompt_tokens,
    )
    config = uvicorn.Config(
        create_app(serving, settings, metrics),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_LAST_WORDS,
    )
    server = Server(config, running, settings.grace, lambda: announce(settings, start, url_of(bound)))
    try:
        await server.serve(sockets=[bound])
    finally:
        await running.close()


class Server(uvicorn.Server):
    """uvicorn's, which closes the engine before itself: so /health tells that it closes, and every answer
    gets an end; and which hears out every client that it let in. announce: called once connections are
    accepted."""

    def __init__(
        self, config: uvicorn.Config, engine: AsyncEngine, grace: float, announce: Callable[[], None]
    ) -> None:
        config.http = Wire
        super().__init__(config)
        self._engine, self._grace, self._announce = engine, grace, announce
        self._closing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # somebody else listened there while the model was loading
            raise SurefootError(f"port: it can't be listened at: {error.strerror}") from error
        self._announce()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # there are no signals to be had
            yield
            return
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)

        def first(number: int, frame: FrameType | None) -> None:
            for each in signals:
                signal.signal(each, signal.SIG_DFL)  # the second ends the program, whatever it is doing
            loop.call_soon_threadsafe(self.close, signal.Signals(number).name)

        before = [signal.signal(each, first) for each in signals]
        try:
            yield
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)

    def close(self, reason: str) -> None:
        """Begins to close; nothing happens when it has begun."""
        if self._closing is None:
            load = self._engine.load
            log(
                "info",
                "closing",
                reason=reason,
                running=load.running,
                waiting=load.waiting,
                grace=self._grace,
            )
            for headers in (self.config.encoded_headers, self.server_state.default_headers):
                headers.append(_CLOSE)  # nobody shall send another request where nobody will read it
            for wire in self._wires():
                if wire.cycle:  # uvicorn gives a request the list that there is when it begins
                    wire.cycle.default_headers = self.server_state.default_headers
            self._closing = asyncio.create_task(self._close())

    async def on_tick(self, counter: int) -> bool:
        if not self._engine.is_open:
            self.close("the engine failed")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            await _stop_accepting(server)
        tasks = self.server_state.tasks
        await _until(lambda: not tasks and not any(wire.is_owed for wire in self._wires()))
        for task in list(tasks):  # what they wait for doesn't come; they tell their clients so
            task.cancel()
        await _until(lambda: not tasks)
        await super().shutdown(sockets)

    def _wires(self) -> list[Wire]:
        return [wire for wire in self.server_state.connections if isinstance(wire, Wire)]

    async def _close(self) -> None:
        try:
            await self._engine.close(self._grace)
        except BaseException as error:  # whoever closes it once more is told
            log("error", "engine", fault=error)
        self.should_exit = True


async def _stop_accepting(server: asyncio.Server) -> None:
    """Closing a socket resets whom the kernel connected and nobody accepted. So first the kernel is told to
    connect nobody else, then everyone is accepted, and only then nobody listens. Where the kernel can't be
    told, a client that connects between the last look and the closing, one statement apart, is reset."""
    with selectors.DefaultSelector() as waiting:
        for listening in server.sockets:
            refuse_handshakes(listening)
            waiting.register(listening, selectors.EVENT_READ)
        await asyncio.sleep(_TICK)  # handshakes that were begun are completed
        await _until(lambda: not waiting.select(0))
        server.close()
    await _turns(_TO_CONNECT)


async def _until(reached: Callable[[], bool]) -> None:
    """Returns once it is so twice, with two turns of the event loop between: what came before the first is
    found in the one and read in the other. Or when _LAST_WORDS are over."""
    for _ in range(_TICKS):
        if reached():
            await _turns(2)
            if reached():
                return
        await asyncio.sleep(_TICK)


async def _turns(count: int) -> None:
    """So many turns of the event loop for everybody else."""
    for _ in range(count):
        await asyncio.sleep(0)


def _load(settings: Settings) -> tuple[LoadedModel, LoadedModel | str]:
    target = load_model(settings.model, settings.precision, settings.threads)
    if not names_a_model(settings.draft):
        return target, settings.draft
    return target, load_model(settings.draft, settings.precision, settings.threads)


def _resolved(settings: Settings, target: LoadedModel, draft: LoadedModel | str) -> Settings:
    """The settings with what depends on the model, and on the memory that it leaves."""
    names = settings.served_model_name or (settings.model,)
    memory = settings.kv_memory
    if memory is None:
        models = [loaded.model for loaded in (target, draft) if not isinstance(loaded, str)]
        a_token = sum(model.cache.row_bytes for model in models)
        needed = a_token * target.model.max_length * settings.max_requests
        memory = kv_memory(free_memory(), needed)
    return replace(settings, served_model_name=names, kv_memory=memory)


@contextmanager
def _recorded(path: str | None, metrics: Metrics) -> Iterator[Callable[[Event], None]]:
    """What takes the events of a trace: the metrics, and a file where one is wanted. A full disk ends the
    file, not the server."""
    if path is None:
        yield metrics
        return
    writer = Writer(path)
    writes = True

    def both(event: Event) -> None:
        nonlocal writes
        metrics(event)
        try:
            if writes:
                writer(event)
        except SurefootError as error:
            writes = False
            log("error", "trace", message=str(error))

    try:
        yield both
    finally:
        writer.close()
