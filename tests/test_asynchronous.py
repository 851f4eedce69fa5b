"""AsyncEngine: the engine's own answers, whoever cancels, comes late, or closes it meanwhile."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from surefoot.asynchronous import AsyncEngine
from surefoot.types import BusyError, Constraint, DeadlineError, SamplingParams, SurefootError
from tests.serving import PATIENCE, Gated, engine_of, idle, run, toy_model, whole_answer

PARAMS = SamplingParams(seed=1, max_tokens=20)


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
            await model.is_held()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            model.gate.set()
            await idle(engine)
            assert (len(model.cache), model.passes) == (0, 1)

    run(main)


def test_a_request_cancelled_while_it_waits_is_never_started() -> None:
    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model)) as engine:
            first = asyncio.create_task(whole_answer(engine.generate("first", PARAMS)))
            await model.is_held()
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
            asked = [asyncio.create_task(whole_answer(engine.generate("a", PARAMS))) for _ in range(3)]
            await model.is_held()
            for _ in range(2):
                with pytest.raises(BusyError, match="3 requests run or wait, and 3 may") as caught:
                    await anext(engine.generate("b", PARAMS))
                assert caught.value.retry_after >= 1
            model.gate.set()
            await asyncio.gather(*asked)
            assert await whole_answer(engine.generate("c", PARAMS))
            assert await whole_answer(engine.generate("alone", SamplingParams(max_tokens=2, n=9)))

    run(main)


def test_a_refusal_says_how_long_places_take_to_come_free(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0])  # a request came and went: it took 10 seconds
    fake = SimpleNamespace(monotonic=lambda: next(clock, 10.0))
    monkeypatch.setattr("surefoot.asynchronous.time", fake)

    async def main() -> None:
        model = Gated()
        async with AsyncEngine(engine_of(model, max_requests=1), max_waiting=1) as engine:
            model.gate.set()
            assert await whole_answer(engine.generate("a", PARAMS))
            model.gate.clear()
            asked = [asyncio.create_task(whole_answer(engine.generate("b", PARAMS))) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError) as caught:
                await anext(engine.generate("c", PARAMS))
            assert caught.value.retry_after == 5  # one of two places, each taken for 10 seconds
            model.gate.set()
            await asyncio.gather(*asked)

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


def test_a_grammar_that_takes_long_to_compile_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    core = engine_of(toy_model())
    compile_it, compiled = core.compile, threading.Event()

    def slow(grammar: Constraint) -> None:
        assert compiled.wait(PATIENCE)
        compile_it(grammar)

    monkeypatch.setattr(core, "compile", slow)
    formed = SamplingParams(seed=1, max_tokens=20, grammar=Constraint("choice", '["yes", "no"]'))

    async def main() -> None:
        async with AsyncEngine(core) as engine:
            answer = asyncio.create_task(whole_answer(engine.generate("hello", formed)))
            assert await whole_answer(engine.generate("next", PARAMS))
            assert not answer.done()
            compiled.set()
            assert (await answer).text in ("yes", "no")

    run(main)
