"""AsyncEngine's end: closed, failed, or left alone by its loop; and whatever comes and goes before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.asynchronous import AsyncEngine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from surefoot.results import Chunk, Result
from surefoot.types import BusyError, ClosedError, SamplingParams
from tests.serving import (
    CONTEXT,
    IM_END,
    PATIENCE,
    VOCAB_SIZE,
    Gated,
    engine_of,
    idle,
    prose,
    run,
    toy_model,
    whole_answer,
)

PARAMS = SamplingParams(seed=1, max_tokens=20)


def test_closing_with_grace_finishes_what_runs_and_waits() -> None:
    async def main() -> None:
        engine = AsyncEngine(engine_of(toy_model(), max_requests=1))
        asked = [asyncio.create_task(whole_answer(engine.generate(f"{n}", PARAMS))) for n in range(4)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(engine.close(grace=PATIENCE))
        await asyncio.sleep(0)
        assert not engine.is_open
        with pytest.raises(ClosedError):
            await anext(engine.generate("too late", PARAMS))
        await closing
        assert all(result.text for result in await asyncio.gather(*asked))
        await engine.close()

    run(main)


def test_closing_without_grace_ends_what_runs() -> None:
    async def main() -> None:
        model = Gated()
        engine = AsyncEngine(engine_of(model))
        asked = [asyncio.create_task(whole_answer(engine.generate(f"{n}", PARAMS))) for n in range(3)]
        await model.is_held()
        closing = asyncio.create_task(engine.close(grace=PATIENCE))
        await asyncio.sleep(0)
        at_once = asyncio.create_task(engine.close())  # the second signal takes the grace back
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(closing, at_once)
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, ClosedError) for error in ended)
        assert len(model.cache) == 0

    run(main)


def test_a_round_that_fails_reaches_those_in_it_and_the_engine_goes_on() -> None:
    class Failing(ToyModel):
        fails = True

        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            if self.fails:
                raise RuntimeError("no such luck")
            return super().forward(batch)

    async def main() -> None:
        model = Failing(prose, VOCAB_SIZE, CONTEXT, (IM_END,))
        async with AsyncEngine(engine_of(model)) as engine:
            asked = [whole_answer(engine.generate("a", PARAMS)) for _ in range(3)]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert [str(error) for error in failed] == ["no such luck"] * 3
            model.fails = False
            assert await whole_answer(engine.generate("next", PARAMS))
            await idle(engine)

    run(main)


def test_the_death_of_the_thread_reaches_everyone() -> None:
    class Deadly(ToyModel):
        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            raise SystemExit

    async def main() -> None:
        engine = AsyncEngine(engine_of(Deadly(prose, VOCAB_SIZE)))
        asked = [whole_answer(engine.generate("a", PARAMS)) for _ in range(3)]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, ClosedError)
            assert isinstance(error.__cause__, SystemExit)
        assert not engine.is_open
        with pytest.raises(ClosedError, match="it failed"):
            await anext(engine.generate("next", PARAMS))
        with pytest.raises(SystemExit):
            await engine.close()

    run(main)


def test_a_loop_that_ended_leaves_no_request_behind() -> None:
    engine = AsyncEngine(engine_of(toy_model()))

    async def abandon() -> None:
        chunks = engine.generate("hello", SamplingParams(max_tokens=300, ignore_eos=True))
        await anext(chunks)

    async def afterwards() -> None:
        await idle(engine)
        assert await whole_answer(engine.generate("next", PARAMS))
        await engine.close()

    run(abandon)
    run(afterwards)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("read"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(ACTIONS, st.sampled_from((0.0, float(PATIENCE))), st.integers(1, 3), st.integers(0, 9))
@settings(max_examples=60)
def test_whatever_comes_and_goes_nobody_hangs_and_nothing_is_left(
    actions: list[tuple[str, int]], grace: float, max_requests: int, max_waiting: int
) -> None:
    async def main() -> None:
        model = toy_model()
        engine = AsyncEngine(engine_of(model, max_requests=max_requests), max_waiting=max_waiting)
        tasks: list[asyncio.Task[Result]] = []
        unread: list[AsyncGenerator[Chunk, None]] = []
        for action, size in actions:
            if action == "ask":
                params = SamplingParams(seed=size, max_tokens=size)
                tasks.append(asyncio.create_task(whole_answer(engine.generate([size], params))))
            elif action == "cancel" and tasks:
                tasks[size % len(tasks)].cancel()
            elif action == "read":
                unread.append(engine.generate([size], SamplingParams(seed=size, max_tokens=30)))
                await asyncio.gather(anext(unread[-1]), return_exceptions=True)
            elif action == "wait":
                await asyncio.sleep(size / 1000)
        await engine.close(grace)
        for chunks in unread:
            await chunks.aclose()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        allowed = (Result, BusyError, ClosedError, asyncio.CancelledError)
        assert all(isinstance(one, allowed) for one in ended)
        for one in ended:
            if isinstance(one, Result):
                params = SamplingParams(seed=one.seed, max_tokens=one.seed)
                alone = engine_of(toy_model()).generate([one.seed], params)[0]
                assert one.token_ids == alone.token_ids
        assert len(model.cache) == 0
        assert engine.load.running == engine.load.waiting == engine.load.pages_used == 0

    run(main)
