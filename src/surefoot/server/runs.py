"""The answers to all prompts of one HTTP request, generated side by side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType

from surefoot.asynchronous import AsyncEngine
from surefoot.results import Chunk, Result
from surefoot.server.fields import Ask


class Run:
    """One request of the engine for each prompt.

        async with Run(engine, asks) as run:
            results = await run.results()

    What fails for one prompt fails for all: the error is raised, and closing ends the others. It has to be
    closed, in the loop that it was made in.
    """

    def __init__(self, engine: AsyncEngine, asks: Sequence[Ask]) -> None:
        self._queue: asyncio.Queue[tuple[int, Chunk | Exception]] = asyncio.Queue()
        self._begun: deque[tuple[int, Chunk]] = deque()
        self._results: list[Result | None] = [None] * len(asks)
        self._tasks = [asyncio.create_task(self._pump(engine, place, ask)) for place, ask in enumerate(asks)]

    async def begin(self) -> None:
        """Waits for the first piece of every answer, so that whatever can't be answered is known: it raises
        that error."""
        waiting = set(range(len(self._tasks)))
        while waiting:
            place, chunk = await self._next()
            waiting.discard(place)
            self._begun.append((place, chunk))

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """The pieces as they come, each with the number of its prompt."""
        while self._begun or None in self._results:
            place, chunk = self._begun.popleft() if self._begun else await self._next()
            self._results[place] = chunk.result
            yield place, chunk

    async def results(self) -> list[Result]:
        """The whole answers, in the order of the prompts; those so far, when `chunks` brought them."""
        async for _ in self.chunks():
            pass
        return [result for result in self._results if result]

    async def close(self) -> None:
        """Ends what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def _next(self) -> tuple[int, Chunk]:
        place, item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return place, item

    async def _pump(self, engine: AsyncEngine, place: int, ask: Ask) -> None:
        asked = engine.generate(
            list(ask.prompt),
            ask.params,
            draft_tokens=ask.draft_tokens,
            cache_salt=ask.cache_salt,
            deadline=ask.deadline,
        )
        try:
            async with aclosing(asked) as chunks:
                async for chunk in chunks:
                    self._queue.put_nowait((place, chunk))
        except Exception as error:
            self._queue.put_nowait((place, error))
