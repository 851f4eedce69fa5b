"""AsyncEngine: the engine's own answers, whoever cancels, comes late, or closes it meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.asynchronous import AsyncEngine
from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from surefoot.results import Chunk, Result
from surefoot.types import BusyError, ClosedError, DeadlineError, SamplingParams, SurefootError
from tests.serving import CONTEXT, IM_END, VOCAB_SIZE, byte_tokenizer, prose, toy_model

PATIENCE = 60  # seconds; only a hang takes so long
PARAMS = SamplingParams(seed=1, max_tokens=20)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


class Gated(ToyModel):
    """A pass waits until the gate is open, and says that it began."""

    def __init__(self) -> None:
        super().__init__(prose, VOCAB_SIZE, CONTEXT, (IM_END,))
        self.gate, self.entered = threading.Event(), threading.Event()

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        return super().forward(batch)

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, PATIENCE)


def engine_of(model: ToyModel, **options: Any) -> Engine:
    return Engine(model, tokenizer=byte_tokenizer(), **options)


async def whole_answer(chunks: AsyncGenerator[Chunk, None]) -> Result:
    async with aclosing(chunks):
        result = [chunk async for chunk in chunks][-1].result
    assert result
    return result


async def idle(engine: AsyncEngine) -> None:
    """Returns once the engine holds no request; the caller bounds the wait."""
    while engine.load.running or engine.load.waiting:
        await asyncio.sleep(0)


def test_many_requests_at_once_get_the_engines_own_answers() -> None:
    prompts = [f"request {n} " * (1 + n % 5) for n in range(40)]
    params = [SamplingParams(seed=n, max_tokens=5 + n % 30, n=1 + n % 3, logprobs=n % 2) for n in range(40)]
    alone = engine_of(toy_model()).generate(prompts, params)

    async def main() -> None:
        async with AsyncEngine(engine_of(toy_model(), max_requests=7)) as engine:
            asked = [engine.generate(*pair) for pair in zip(prompts, params, strict=True)]
            results = await asyncio.gather(*map(whole_answer, asked))
            for result, wanted in zip(results, alone, strict=True):
                assert [choice.token_ids for choice in result.choices] == [
                    choice.token_ids for choice in wanted.choices
                ]
                assert (result.prompt, result.text, result.usage.completion_tokens) == (
                    wanted.prompt,
                    wanted.text,
                    wanted.usage.completion_tokens,
                )
            await idle(engine)

    run(main)


def test_chunks_add_up_and_arguments_arrive() -> None:
    async def main() -> None:
        async with AsyncEngine(engine_of(toy_model())) as engine:
            chunks = [chunk async for chunk in engine.generate("hello", PARAMS, chat=True, draft_tokens=0)]
            result = chunks[-1].result
            assert result
            assert "".join(chunk.text for chunk in chunks) == result.text
            assert result.stats.draft_tokens == 0
            assert len(result.prompt_token_ids) > len("hello")

    run(main)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], PARAMS, "prompt: it is empty"),
        ([999], PARAMS, "prompt: token 999"),
        (None, PARAMS, "prompt: NoneType given"),
        ([1], {"n": 2}, "params: dict given"),
    ],
)
def test_a_bad_request_raises_before_the_first_chunk(prompt: Any, params: Any, message: str) -> None:
    async def main() -> None:
        async with AsyncEngine(engine_of(toy_model())) as engine:
            with pytest.raises(SurefootError, match=message):
                await anext(engine.generate(prompt, params))
            assert await whole_answer(engine.generate("next", PARAMS))

    run(main)


@pytest.mark.parametrize("taken", range(6))
def test_closing_a_generator_at_any_chunk_drops_the_request(taken: int) -> None:
    async def main() -> None:
        model = toy_model()
        async with AsyncEngine(engine_of(model, draft="none", prefix_cache=False)) as engine:
            chunks = engine.generate("hello", SamplingParams(seed=1, max_tokens=300, ignore_eos=True))
            for _ in range(taken):
                await anext(chunks)
            await chunks.aclose()
            await idle(engine)
            assert len(model.cache) == 0
            assert await whole_answer(engine.generate("next", PARAMS))

    run(main)


def test_cancelling_a_consumer_drops_its_request_before_the_next_round() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model, prefix_cache=False)) as engine:
            task = asyncio.create_task(whole_answer(engine.generate("hello", PARAMS)))
            await model.has_begun()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            model.gate.set()
            await idle(engine)
            assert len(model.cache) == 0

    run(main)


def test_a_request_cancelled_while_it_waits_is_never_started() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model)) as engine:
            first = asyncio.create_task(whole_answer(engine.generate("first", PARAMS)))
            await model.has_begun()
            second = asyncio.create_task(whole_answer(engine.generate("second", PARAMS)))
            await asyncio.sleep(0)  # lets it send its command, which the thread can't see yet
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            model.gate.set()
            assert (await first).text
            assert second.cancelled()
            await idle(engine)

    run(main)


def test_more_than_may_wait_are_refused_and_there_is_room_again() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model, max_requests=2), max_waiting=1) as engine:
            taken = [asyncio.create_task(whole_answer(engine.generate("a", PARAMS))) for _ in range(3)]
            await model.has_begun()
            for _ in range(2):
                with pytest.raises(BusyError, match="3 requests run or wait, and 3 may") as caught:
                    await anext(engine.generate("b", PARAMS))
                assert caught.value.retry_after >= 1
            model.gate.set()
            await asyncio.gather(*taken)
            assert await whole_answer(engine.generate("c", PARAMS))
            assert await whole_answer(engine.generate("alone", SamplingParams(max_tokens=2, n=9)))

    run(main)


def test_a_deadline_ends_a_request_and_no_other() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model)) as engine:
            other = asyncio.create_task(whole_answer(engine.generate("other", PARAMS)))
            with pytest.raises(DeadlineError, match=r"more than 0\.01 seconds"):  # no pass ends before
                await anext(engine.generate("late", PARAMS, deadline=0.01))
            model.gate.set()
            assert await whole_answer(engine.generate("in time", PARAMS, deadline=PATIENCE))
            assert (await other).text
            await idle(engine)
            with pytest.raises(SurefootError, match="deadline: 0 is out of range"):
                await anext(engine.generate("never", PARAMS, deadline=0))

    run(main)


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
        await model.has_begun()
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

        def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
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
        def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
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
