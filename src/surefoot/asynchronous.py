"""An engine in a thread of its own, for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Self

from surefoot.results import Chunk
from surefoot.types import BusyError, ClosedError, DeadlineError, SamplingParams, SurefootError, whole

if TYPE_CHECKING:
    from surefoot.engine import Engine
    from surefoot.prompts import Prompt
    from surefoot.results import Load

_RECENT = 32  # requests whose durations say how soon there is room


@dataclass(eq=False)
class _Stream:
    """What the engine's thread and the consumer of one request share.

    places: as `max_requests` counts them, one per choice. number: the engine's, once it has taken the
    request. left: the consumer wants no more. Both belong to the engine's thread.
    """

    loop: asyncio.AbstractEventLoop
    places: int
    began: float
    inbox: asyncio.Queue[Chunk | Exception] = field(default_factory=asyncio.Queue)
    number: int | None = None
    left: bool = False

    def give(self, item: Chunk | Exception) -> None:
        """From any thread. Nobody waits in a loop that is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.inbox.put_nowait, item)


class AsyncEngine:
    """Requests from coroutines to one engine, which a daemon thread owns from now on.

        async with AsyncEngine(Engine("smollm2-135m")) as engine:
            async for chunk in engine.generate("Once upon a time"):
                print(chunk.text, end="")

    max_waiting: requests taken beyond the engine's `max_requests`, choices counted singly; more are refused.

    Engines that share a model belong to one thread, so only one of them may be given to this.

    Commands go to the thread by a queue, which it empties before every round; chunks come back through the
    event loop. Nothing here blocks the loop. The thread tokenizes prompts that come as text, so whoever has
    long ones should give token ids; grammars are compiled in threads of their own.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = 128) -> None:
        self._engine = engine
        self._places = engine.max_requests + whole("max_waiting", max_waiting, 0)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()  # of what follows, up to the thread's own
        self._refusal: ClosedError | None = None
        self._open: set[_Stream] = set()
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._load = engine.load  # as of the last round
        self._streams: dict[int, _Stream] = {}  # the thread's own, as the next
        self._stopped = False
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        self._thread = threading.Thread(target=self._run, name="surefoot-engine", daemon=True)
        self._thread.start()

    @property
    def load(self) -> Load:
        """The engine's, as of the last round or command."""
        return self._load

    @property
    def places(self) -> int:
        """How many requests may run or wait, choices counted singly; one with more is served alone."""
        return self._places

    @property
    def is_open(self) -> bool:
        """Whether requests are taken."""
        return self._refusal is None

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat: bool = False,
        draft_tokens: int | None = None,
        cache_salt: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer to one prompt as it comes; the last chunk carries the `Result`. Arguments as
        `Engine.add`. deadline: seconds from the first step.

        Closing or cancelling the generator drops the request before the next round. Before the first chunk
        it raises BusyError when the queue is full, ClosedError, and SurefootError for a request that can't
        be answered; at any time DeadlineError, ClosedError when the engine closed, or whatever the request
        failed of.
        """
        if deadline is not None and not deadline > 0:
            raise SurefootError(f"deadline: {deadline} is out of range; allowed is more than 0 seconds")
        loop = asyncio.get_running_loop()
        began = loop.time()
        if isinstance(params, SamplingParams) and params.grammar is not None:
            await asyncio.to_thread(self._engine.compile, params.grammar)  # the engine's has rounds to run
        stream = _Stream(loop, getattr(params, "n", 1), time.monotonic())
        add = partial(
            self._engine.add, prompt, params, chat=chat, draft_tokens=draft_tokens, cache_salt=cache_salt
        )
        self._enter(stream, add)
        timer = None
        if deadline is not None:
            timer = loop.call_at(began + deadline, self._expire, stream, deadline)
        try:
            while True:
                item = await stream.inbox.get()
                if isinstance(item, Exception):
                    raise item
                if item.error:
                    raise item.error
                if item.result:
                    self._leave(stream)
                yield item
                if item.result:
                    return
        finally:
            if timer:
                timer.cancel()
            self._leave(stream)

    async def close(self, grace: float = 0) -> None:
        """Refuses new requests, lets those in flight and in the queue finish for up to `grace` seconds, ends
        the rest with ClosedError, and closes the engine with its thread. May be called again, with less
        grace too. Raises what closing the engine raises."""
        with self._lock:
            self._refusal = self._refusal or ClosedError("engine: it is closing and takes no more requests")
        self._commands.put(lambda: None)  # wakes an idle thread
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait([ended], timeout=grace)
        self._commands.put(self._stop)
        await ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    # In the consumers' threads

    def _enter(self, stream: _Stream, add: Callable[[], int]) -> None:
        with self._lock:
            if self._refusal:
                raise ClosedError(str(self._refusal)) from self._refusal.__cause__
            taken = sum(other.places for other in self._open)
            missing = taken + stream.places - self._places
            if missing > 0 and taken:  # alone, even one with more choices than places is served
                raise BusyError(
                    f"engine: {taken} requests run or wait, and {self._places} may; try again later",
                    self._soon(missing, taken),
                )
            self._open.add(stream)
            self._commands.put(partial(self._add, stream, add))

    def _leave(self, stream: _Stream) -> None:
        with self._lock:
            if stream not in self._open:
                return
            self._open.remove(stream)
            self._durations.append(time.monotonic() - stream.began)
        self._commands.put(partial(self._drop, stream))

    def _expire(self, stream: _Stream, deadline: float) -> None:
        stream.inbox.put_nowait(DeadlineError(f"deadline: the answer took more than {deadline:g} seconds"))
        self._commands.put(partial(self._drop, stream))

    def _soon(self, missing: int, taken: int) -> float:
        """Seconds until so many places are free, if they go on becoming so at the pace of late: by Little's
        law, the places taken over the time that each stays taken."""
        stay = sum(self._durations) / len(self._durations) if self._durations else 0.0
        return max(1.0, stay * missing / taken)

    # In the engine's thread

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._obey():
                for chunk in self._engine.step():
                    self._deliver(chunk)
        except BaseException as error:
            failure = error
        self._end(failure)

    def _obey(self) -> bool:
        """Carries out the commands that are there, and waits for one when there is nothing else to do.
        Returns whether to go on."""
        while True:
            closing = not self.is_open  # read first: what was taken before is then in the queue
            with suppress(Empty):
                while not self._stopped:
                    self._commands.get_nowait()()
            self._load = self._engine.load
            if self._stopped or self._engine.has_work:
                return not self._stopped
            if closing:
                return False
            self._commands.get()()

    def _add(self, stream: _Stream, add: Callable[[], int]) -> None:
        if stream.left:
            return
        try:
            stream.number = add()
        except Exception as error:
            stream.give(error)
        else:
            self._streams[stream.number] = stream

    def _drop(self, stream: _Stream) -> None:
        stream.left = True
        if stream.number is not None:
            self._engine.abort(stream.number)
            self._streams.pop(stream.number, None)

    def _stop(self) -> None:
        self._stopped = True

    def _deliver(self, chunk: Chunk) -> None:
        over = chunk.result or chunk.error
        stream = self._streams.pop(chunk.request, None) if over else self._streams.get(chunk.request)
        if stream:
            stream.give(chunk)

    def _end(self, failure: BaseException | None) -> None:
        """Tells everyone who waits, whatever the thread ended of."""
        told = ClosedError("engine: it closed before the answer was complete")
        if failure:
            told = ClosedError("engine: it failed, and takes no more requests")
            told.__cause__ = failure
        with self._lock:
            self._refusal = told if failure or not self._refusal else self._refusal
            left = list(self._open)
        for stream in left:  # who has its result already stops there
            stream.give(told)
        try:
            self._engine.close()
        except BaseException as error:
            failure = failure or error
        self._load = self._engine.load
        if failure:
            self._ended.set_exception(failure)
        else:
            self._ended.set_result(None)
