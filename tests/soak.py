"""A server under mixed load, and what must be left of it: nothing.

Requests go to the application directly, or over connections of their own. Every answer that ends is compared
with that of a server which has nothing else to do, doesn't speculate and caches nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from surefoot.engine import Engine
from surefoot.request import Request
from surefoot.results import Group, Load, Result
from surefoot.server.app import create_app
from surefoot.server.machine import bind
from surefoot.server.metrics import Metrics
from surefoot.server.observed import ObservedEngine
from surefoot.server.run import Server
from surefoot.server.runs import Run
from surefoot.server.service import Service
from surefoot.server.settings import Settings
from tests.answers import joined
from tests.api import Json, strictly
from tests.soak_bodies import Job
from tests.soak_clients import Reply, ask, ask_at

PATIENCE = 3600.0  # seconds; only a hang takes so long
MAX_BODY = 65_536
KEPT = (Request, Group, Run, Result)  # nothing keeps these once their request is over
Alone = tuple[str, bytes]
Send = Callable[[Job], Awaitable[Reply]]


@dataclass
class Report:
    """What a run saw. rss: of the process, and objects: of Python's, after each third of the requests."""

    seen: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    alone_s: float = 0.0
    together_s: float = 0.0
    load: Load | None = None
    cached: float = 0.0

    def wrong(self, job: Job, what: str, wanted: Json | None = None) -> None:
        instead = "" if wanted is None else f"\n  instead of\n  {wanted}"
        self.mistakes.append(f"{what}{instead}\n  for {job}")


@asynccontextmanager
async def service(engine: Engine, metrics: Metrics, max_waiting: int = 128) -> AsyncIterator[Service]:
    """As `surefoot serve` has it. The engine is closed at the end."""
    assert engine.tokenizer
    async with ObservedEngine(engine, metrics, max_waiting=max_waiting) as running:
        yield Service(
            engine=running,
            tokenizer=engine.tokenizer,
            names=("toy",),
            max_length=engine.max_length,
            max_draft_tokens=engine.max_draft_tokens,
            timeout=None,
            created=0,
        )


def application(served: Service, metrics: Metrics) -> FastAPI:
    return create_app(served, Settings(model="toy", max_body_bytes=MAX_BODY), metrics)


async def alone(engine: Callable[[], Engine], jobs: Iterable[Job]) -> dict[Alone, Json]:
    """What sound jobs must get: each from an engine of its own."""
    app: FastAPI | None = None
    found: dict[Alone, Json] = {}
    metrics = Metrics("alone")
    for job in jobs:
        if job.wrong or job.alone in found:
            continue
        async with service(engine(), metrics) as served:
            app = app or application(served, metrics)  # which takes longer than an answer
            app.state.service = served
            path, body = job.alone
            whole = Job(path, body)
            found[job.alone] = answer(whole, await ask(app, whole))
    return found


def answer(job: Job, reply: Reply) -> Json:
    """What there is to compare: the choices and the counts, or the error. end: how it ended."""
    if reply.status != 200:
        error = strictly(reply.text)["error"]
        assert error["code"] == reply.status
        return {"end": error["type"], "message": error["message"]}
    if not job.stream or not reply.headers["content-type"].startswith("text/event-stream"):
        whole = strictly(reply.text)
        return {"end": "whole", "choices": _bare(whole["choices"]), "usage": _counts(whole["usage"])}
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n")[:-1]]
    if not lines:
        return {"end": "cut", "choices": []}
    last = lines.pop() if lines[-1] == "[DONE]" else ""
    events = [strictly(line) for line in lines]
    if "error" in events[-1]:
        error = events.pop()["error"]
        return {"end": error["type"], "message": error["message"], "choices": _bare(joined(events))}
    found: Json = {"end": "whole" if last else "cut", "choices": _bare(joined(events))}
    if events and events[-1].get("usage"):
        found["usage"] = _counts(events[-1]["usage"])
    return found


def _bare(choices: Sequence[Json]) -> list[Json]:
    """Without what no two answers have in common, and spelled alike."""
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", ()):
            call.pop("id")
        if "message" in choice:
            choice["message"]["content"] = choice["message"]["content"] or ""
        choice.setdefault("logprobs", None)
    return list(choices)


def _counts(usage: Json) -> Json:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}


@dataclass(frozen=True)
class Crowd:
    """The server that comes under load, and how: `together` requests at once, now and then `burst` more."""

    busy: Callable[[Metrics], Engine]
    alone: Callable[[], Engine] | None
    max_waiting: int
    together: int
    burst: int
    by_wire: bool = False


async def soak(crowd: Crowd, jobs: Sequence[Job], seed: int) -> Report:
    """Sends a crowd to a server, and holds it to everything but the time that it takes."""
    report, metrics, before = Report(), Metrics("soak"), survivors()
    began = time.perf_counter()
    wanted = await alone(crowd.alone, jobs) if crowd.alone else None
    report.alone_s = time.perf_counter() - began
    engine = crowd.busy(metrics)
    async with service(engine, metrics, crowd.max_waiting) as served, sending(crowd, served, metrics) as send:
        began = time.perf_counter()
        run = Soak(send, wanted, report, seed)
        for third in range(3):
            await run.run(jobs[third::3], crowd.together, crowd.burst)
            await idle(served)
            report.rss.append(rss())
            report.objects.append(len(gc.get_objects()))
        report.together_s = time.perf_counter() - began
        report.load = served.engine.load
        report.cached = _hits(metrics)
        check_idle(served)
    assert not (left := survivors() - before), left
    assert engine.load.pages_used == 0
    assert not engine_threads()
    return report


@asynccontextmanager
async def sending(crowd: Crowd, served: Service, metrics: Metrics) -> AsyncIterator[Send]:
    app = application(served, metrics)
    if not crowd.by_wire:
        yield partial(ask, app)
        return
    ready = asyncio.Event()
    with bind("127.0.0.1", 0) as bound:
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        server = Server(config, served.engine, 0, ready.set)
        task = asyncio.create_task(server.serve([bound]))
        await ready.wait()
        yield partial(ask_at, bound.getsockname()[1])
        server.should_exit = True
        await task


class Soak:
    """One run of a server. wanted: the answer to every sound job, by `Job.alone`; None takes any."""

    def __init__(self, send: Send, wanted: dict[Alone, Json] | None, report: Report, seed: int) -> None:
        self._send, self._wanted, self.report = send, wanted, report
        self._rng = random.Random(f"{seed} order")

    async def run(self, jobs: Sequence[Job], together: int, burst: int) -> None:
        """All jobs, about `together` at once; now and then `burst` more come at the same moment."""
        left = list(reversed(jobs))
        running: set[asyncio.Task[None]] = set()
        while left or running:
            more = burst if self._rng.random() < 0.02 else together - len(running)
            for _ in range(min(more, len(left))):
                running.add(asyncio.create_task(self._one(left.pop())))
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def _one(self, job: Job) -> None:
        while True:
            reply = await self._send(job)
            if reply.status != 429:
                break
            self.report.seen["429"] += 1
            if int(reply.headers.get("retry-after", "0")) < 1:
                self.report.wrong(job, "429 without Retry-After")
            await asyncio.sleep(0.02 * self._rng.random())  # sooner than it was told to
        self._judge(job, reply)

    def _judge(self, job: Job, reply: Reply) -> None:
        seen, report = self.report.seen, self.report
        seen["requests"] += 1
        if reply.broken:
            return report.wrong(job, "the connection ended before the answer")
        if job.wrong:
            seen["broken"] += 1
            return self._judge_broken(job, reply)
        if reply.left and not (job.stream and reply.status):
            seen["left"] += 1
            return None
        got = answer(job, reply)
        want = self._wanted[job.alone] if self._wanted else got
        if reply.left:
            seen["left midway"] += 1
        elif got["end"] == "timeout_error":
            seen["late midway" if reply.status == 200 else "late"] += 1
            if not job.hurried:
                report.wrong(job, f"late without a deadline: {got}")
        elif got["end"] != want["end"] or got.get("message") != want.get("message"):
            return report.wrong(job, f"{got}", want)
        else:
            seen["answers" if got["end"] == "whole" else "refused"] += 1
        whole = got["end"] == want["end"] == "whole"
        if not (_same(got, want) if whole else _begins(got, want)):
            report.wrong(job, f"{got}", want)
        return None

    def _judge_broken(self, job: Job, reply: Reply) -> None:
        assert job.wrong
        status, param = job.wrong
        try:
            error = strictly(reply.text)["error"]
        except (ValueError, KeyError):
            return self.report.wrong(job, f"{reply}")
        named = param is None or (error["param"] or "").startswith(param)
        if reply.status != status or not named or not error["message"]:
            self.report.wrong(job, f"{reply.status} {error}")
        return None


def _same(got: Json, want: Json) -> bool:
    return all(got[name] == want.get(name) for name in got)


def _begins(got: Json, want: Json) -> bool:
    """Whether a broken-off answer is the beginning of a whole one, choice by choice. Of one that ended in an
    error there is no whole."""
    if "choices" not in want:
        return True
    wanted = {choice["index"]: choice for choice in want["choices"]}
    for choice in got.get("choices", ()):
        other = wanted.get(choice["index"])
        ids = choice.get("token_ids", [])
        if (
            other is None
            or ids != other["token_ids"][: len(ids)]
            or not _text(other).startswith(_text(choice))
        ):
            return False
    return True


def _text(choice: Json) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


async def idle(served: Service) -> None:
    """Returns once the engine holds no request; the caller bounds the wait."""
    while served.engine.load.running or served.engine.load.waiting:
        await asyncio.sleep(0.001)


def check_idle(served: Service) -> None:
    """Holds an idle engine to having nothing but what is kept for prompts to come, and then to nothing.

    Looks inside: from another thread than the engine's, which waits for commands.
    """
    running: Any = served.engine
    engine = running._engine
    memory, drafter = engine._loop._memory, engine._loop._drafter
    cache, prefixes, load = engine.model.cache, memory._prefixes, engine.load
    cache.check()
    assert (load.running, load.waiting) == (0, 0)
    kept = {page for seq in prefixes._retired for page in cache._table.pages(seq)}
    assert load.pages_used == len(kept) >= load.pages_cached == prefixes.pages == prefixes.idle_pages
    assert len(cache._table) == len(prefixes._retired) == len(prefixes._keys)
    assert not any((memory._admitted, memory._reserved, engine._groups, engine._inboxes, engine._ready))
    assert not any((running._open, running._streams, engine._loop._scheduler._turns))
    for held in ("_indices", "_committed", "_beyond"):  # by one drafter or the other
        assert not getattr(drafter, held, ())
    if hasattr(drafter, "model"):
        drafter.model.cache.check()
        assert drafter.model.cache.used_pages() == len(drafter.model.cache._table) == 0
    memory.clear()
    cache.check()
    assert cache.used_pages() == prefixes.pages == prefixes.idle_pages == len(cache._table) == 0
    assert not any((prefixes._index, prefixes._keys, prefixes._retired))


def _hits(metrics: Metrics) -> float:
    """Prompt tokens that others had computed."""
    name = "surefoot:prefix_cache_hits_total"
    lines = metrics.render().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def engine_threads() -> list[threading.Thread]:
    """Those that don't end, though their engines are closed; others wait in pools that the event loop and its
    libraries keep."""
    found = [thread for thread in threading.enumerate() if thread.name == "surefoot-engine"]
    for thread in found:
        thread.join(60)
    return [thread for thread in found if thread.is_alive()]


def survivors() -> Counter[str]:
    """Objects that go with their requests; other tests may keep some."""
    gc.collect()
    found = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KEPT)
    found["tasks"] = len(asyncio.all_tasks()) - 1
    return +found


def rss() -> int:
    """Bytes that this process holds; 0 where Linux doesn't tell."""
    statm = Path("/proc/self/statm")
    return os.sysconf("SC_PAGE_SIZE") * int(statm.read_text().split()[1]) if statm.exists() else 0
