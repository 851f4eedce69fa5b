"""Thousands of requests of every kind at once: each gets its own answer, and nothing is left of any.

Runs of the length that releases are held to are marked `soak`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.loading import LoadedModel, load_model
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.server.metrics import Metrics
from surefoot.types import VerifyMode
from tests.models_fixture import smollm2_path
from tests.serving import IM_END, TEMPLATE, VOCAB_SIZE, byte_tokenizer
from tests.soak import PATIENCE, Crowd, Report, soak
from tests.soak_bodies import LETTERS, Bodies, Job, Scale

CONTEXT, PLACES, QUEUE, DRAFTS = 160, 12, 24, 6
TOGETHER, BURST = 12, 40
SEED = 7
GROWTH = 32 * 2**20  # bytes, from the first third of a run to its end
BYTES = sorted(set(LETTERS.encode()))
SCALE = Scale(shared=40, own=12, answer=45, ids=BYTES, most=CONTEXT, drafts=DRAFTS)

_PAIRS = np.stack(
    [random_table(VOCAB_SIZE, order=1, seed=3, spread=3.0)((last,)) for last in range(VOCAB_SIZE)]
)
_MOODS = np.stack(
    [random_table(VOCAB_SIZE, order=1, seed=4, spread=1.0)((n % VOCAB_SIZE, n)) for n in range(251)]
)
_PAIRS[:, [token for token in range(VOCAB_SIZE) if token not in (*BYTES, IM_END)]] -= 9
_PAIRS[:, IM_END] -= 4


def logits(prefix: tuple[int, ...]) -> NDArray[np.float32]:
    """Of the last token mostly, and a little of everything before it."""
    found: NDArray[np.float32] = _PAIRS[prefix[-1]] + _MOODS[hash(prefix) % len(_MOODS)]
    return found


def toy() -> ToyModel:
    return ToyModel(logits, VOCAB_SIZE, CONTEXT, (IM_END,))


def drafter(kind: str) -> str | Drafter:
    if kind == "model":
        return ModelDrafter(ToyModel(lambda prefix: _PAIRS[prefix[-1]], VOCAB_SIZE, CONTEXT))
    return kind


TOKENIZER = byte_tokenizer("{% if tools %}{{ tools[0].function.name }}{% endif %}" + TEMPLATE)


class Faulty(ToyModel):
    """Fails in every tenth pass of several requests, before or after their rows are in the cache."""

    def __init__(self) -> None:
        super().__init__(logits, VOCAB_SIZE, CONTEXT, (IM_END,))
        self.passes = 0

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        if len(batch) < 2:
            return super().forward(batch)
        self.passes += 1
        if self.passes % 20 == 10:
            raise RuntimeError("before")
        found = super().forward(batch)
        if self.passes % 20 == 0:
            raise RuntimeError("after")
        return found


def busy(kind: str, mode: VerifyMode, metrics: Metrics, model: Callable[[], ToyModel] = toy) -> Engine:
    """One that has room for two or three requests of the length that they have, and is given more."""
    return Engine(
        model(),
        drafter(kind),
        tokenizer=TOKENIZER,
        draft_tokens=DRAFTS,
        verify=mode,
        max_requests=PLACES,
        max_rows=48,
        prompt_rows=16,
        kv_memory=(2 if kind == "model" else 1) * CONTEXT,
        trace=metrics,
    )


def alone(kind: str, mode: VerifyMode) -> Engine:
    return Engine(
        toy(),
        drafter(kind),
        tokenizer=TOKENIZER,
        draft_tokens=DRAFTS,
        verify=mode,
        prefix_cache=False,
    )


def check(crowd: Crowd, jobs: Sequence[Job], preempted: float = 0.04) -> Report:
    """preempted: how many times as many there must be as jobs."""

    async def bounded() -> Report:
        async with asyncio.timeout(PATIENCE):
            return await soak(crowd, jobs, SEED)

    report = asyncio.run(bounded())
    print(report)
    assert not report.mistakes, "\n".join(report.mistakes[:3])
    assert report.seen["requests"] == len(jobs)
    assert report.load
    assert report.load.preemptions >= int(preempted * len(jobs))
    first, *_, last = report.rss
    assert last - first < GROWTH
    return report


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("model", 450),
        ("ngram", 450),
        pytest.param("model", 10_000, marks=pytest.mark.soak),
        pytest.param("ngram", 10_000, marks=pytest.mark.soak),
    ],
)
def test_everyone_gets_the_answer_of_plain_decoding(kind: str, count: int) -> None:
    bodies = Bodies(SEED, SCALE)
    crowd = Crowd(partial(busy, kind, "coupled"), partial(alone, "none", "coupled"), QUEUE, TOGETHER, BURST)
    report = check(crowd, [bodies.job(number) for number in range(count)])
    for kind_of_end in ("answers", "broken", "left", "left midway", "late", "429"):
        assert report.seen[kind_of_end] > count / 200, kind_of_end
    assert report.cached > count


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["ngram", "model"])
def test_the_other_modes_leave_nothing_either(mode: VerifyMode, kind: str) -> None:
    """With drafts that depend on nothing but the text so far, answers are those of a request alone too."""
    bodies = Bodies(SEED + 1, replace(SCALE, fixed=True))
    by_itself = partial(alone, kind, mode) if kind == "ngram" else None
    crowd = Crowd(partial(busy, kind, mode), by_itself, QUEUE, TOGETHER, BURST)
    check(crowd, [bodies.job(number) for number in range(150)])


def test_passes_that_fail_cost_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(
        logging.CRITICAL, "surefoot.loop"
    )  # what is captured keeps errors, and so their requests
    bodies = Bodies(SEED + 3, SCALE)
    faulty = partial(busy, "model", "coupled", model=Faulty)
    crowd = Crowd(faulty, partial(alone, "none", "coupled"), QUEUE, TOGETHER, BURST)
    check(crowd, [bodies.job(number) for number in range(150)])


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(str(smollm2_path()))


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.soak)])
def test_everyone_gets_the_answer_of_a_real_model(smollm2: LoadedModel, count: int) -> None:
    """By connections of their own, which break where the client goes."""
    cache, context = smollm2.model.cache, 224

    def crowded(metrics: Metrics) -> Engine:
        memory = context * cache.row_bytes
        return Engine(smollm2, max_requests=8, max_rows=96, prompt_rows=32, kv_memory=memory, trace=metrics)

    def by_itself() -> Engine:
        return Engine(smollm2, None, prefix_cache=False)

    ids = random.Random(SEED).sample(range(100, 40_000), 200)
    scale = Scale(shared=36, own=12, answer=70, ids=ids, most=context, drafts=15)
    bodies = Bodies(SEED + 2, scale)
    crowd = Crowd(crowded, by_itself, max_waiting=12, together=8, burst=16, by_wire=True)
    check(crowd, [bodies.job(number) for number in range(count)], preempted=0.01)
