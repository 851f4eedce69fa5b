"""A fault in one request fails that request alone, wherever it sits, and leaves nothing behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.drafters.base import DraftRequest
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.loop import Loop
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.request import Request
from surefoot.results import Chunk, Result
from surefoot.trace import Event
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, Verdict, VerifyMode
from tests.harness import VOCAB_SIZE, Scripted, assert_same, expected

TABLE = random_table(VOCAB_SIZE, 2, seed=1)
POISON = 13  # a token that makes things fail
GOOD, BAD = (1, 2, 3, 4, 5), (1, 2, 3, 4, POISON)
PARAMS = SamplingParams(seed=1, max_tokens=9, logit_bias={POISON: -100})


class Poisoned(ToyModel):
    """Can't compute one token, which it notices when all is appended."""

    def __init__(self) -> None:
        super().__init__(TABLE, VOCAB_SIZE)

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        logits = super().forward(batch)
        if any(POISON in segment.tokens for segment in batch):
            raise RuntimeError("the pass broke")
        return logits


class Choking(NgramDrafter):
    """Can't draft for a sequence with one token. where: which of its methods raises."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where, self._bad = where, set[int]()

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        if POISON in tokens:
            self._bad.add(seq)
        self._choke("start", seq)
        super().start(seq, tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        for request in requests:
            self._choke("propose", request.seq)
        return super().propose(requests)

    def observe(self, seq: int, verdict: Verdict) -> None:
        self._choke("observe", seq)

    def stop(self, seq: int) -> None:
        self._choke("stop", seq)
        super().stop(seq)

    def _choke(self, where: str, seq: int) -> None:
        if where == self._where and seq in self._bad:
            raise RuntimeError(f"{where} broke")


class Misjudging(Loop):
    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        if POISON in request.prompt and request.output:
            raise ZeroDivisionError("judging broke")
        return super()._judge(request, draft, logits)


class Misjudged(Engine):
    loop_type = Misjudging


class Forgetful:
    """A grammar that allows everything, and fails at the third token."""

    done = False

    def __init__(self) -> None:
        self.read = 0

    def allowed(self, drafted: Sequence[int]) -> NDArray[np.bool_]:
        return np.ones(VOCAB_SIZE, np.bool_)

    def legal(self, drafted: Sequence[int]) -> int:
        return len(drafted)

    def advance(self, token: int) -> None:
        self.read += 1
        if self.read == 3:
            raise LookupError("the grammar broke")


def run(engine: Engine) -> list[Chunk]:
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    return chunks


def results_of(chunks: Sequence[Chunk]) -> dict[int, Result]:
    return {chunk.request: chunk.result for chunk in chunks if chunk.result}


def assert_only_the_bad_one_fails(engine: Engine, error: str) -> None:
    numbers = [engine.add(prompt, PARAMS) for prompt in (GOOD, BAD, GOOD[:3])]
    chunks = run(engine)
    assert [(chunk.request, repr(chunk.error)) for chunk in chunks if chunk.error] == [(numbers[1], error)]
    results = results_of(chunks)
    assert sorted(results) == [numbers[0], numbers[2]]
    for number, prompt in ((numbers[0], GOOD), (numbers[2], GOOD[:3])):
        assert_same(results[number].choices[0], expected(TABLE, prompt, PARAMS))
    assert_clean(engine)


def assert_clean(engine: Engine) -> None:
    model = engine.model
    assert isinstance(model, ToyModel)
    model.cache.check()
    assert not engine.has_work
    engine.close()
    assert (len(model.cache), model.cache.used_pages()) == (0, 0)


def toy() -> ToyModel:
    return ToyModel(TABLE, VOCAB_SIZE)


@pytest.mark.parametrize("reuse", [True, False])
def test_a_pass_that_one_request_breaks_spares_the_others(reuse: bool) -> None:
    engine = Engine(Poisoned(), "ngram", prefix_cache=reuse)
    assert_only_the_bad_one_fails(engine, "RuntimeError('the pass broke')")


@pytest.mark.parametrize("where", ["start", "propose", "observe"])
def test_a_drafter_that_one_request_breaks_spares_the_others(where: str) -> None:
    assert_only_the_bad_one_fails(Engine(toy(), Choking(where)), f"RuntimeError('{where} broke')")


def test_judging_that_breaks_ends_one_request() -> None:
    assert_only_the_bad_one_fails(Misjudged(toy(), "ngram"), "ZeroDivisionError('judging broke')")


def test_a_drafter_that_cannot_stop_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(toy(), Choking("stop"))
    results = engine.generate([BAD, GOOD], PARAMS)
    for result, prompt in zip(results, (BAD, GOOD), strict=True):
        assert_same(result.choices[0], expected(TABLE, prompt, PARAMS))
    assert caplog.messages == ["drafter ngram: it failed to stop"]
    assert_clean(engine)


def test_a_grammar_that_breaks_ends_one_request() -> None:
    engine = Engine(toy(), "ngram")
    good, bad = (engine.add(GOOD, PARAMS) for _ in range(2))
    engine._groups[bad].choices[0].grammar = Forgetful()
    chunks = run(engine)
    errors = [repr(chunk.error) for chunk in chunks if chunk.error]
    assert errors == ["LookupError('the grammar broke')"]
    assert_same(results_of(chunks)[good].choices[0], expected(TABLE, GOOD, PARAMS))
    assert_clean(engine)


def test_a_drafter_that_always_breaks_fails_every_request_and_no_step() -> None:
    def broken(tokens: Sequence[int], budget: int) -> Draft:
        raise OSError("no drafts today")

    engine = Engine(toy(), Scripted(broken))
    numbers = [engine.add(GOOD, PARAMS) for _ in range(3)]
    errors = [chunk for chunk in run(engine) if chunk.error]
    assert [chunk.request for chunk in errors] == numbers
    assert {type(chunk.error) for chunk in errors} == {OSError}
    with pytest.raises(OSError, match="no drafts today"):
        list(engine.stream(GOOD, PARAMS))
    with pytest.raises(OSError, match="no drafts today"):
        engine.generate([GOOD, GOOD], PARAMS)
    assert_clean(engine)


def test_a_trace_that_cannot_be_told_fails_whom_it_is_about() -> None:
    def record(event: Event) -> None:
        if event.request == 1 and event.emitted:
            raise OSError("disk full")

    engine = Engine(toy(), "ngram", trace=record)
    numbers = [engine.add(GOOD, PARAMS) for _ in range(3)]
    chunks = run(engine)
    assert [(c.request, str(c.error)) for c in chunks if c.error] == [(numbers[1], "disk full")]
    assert sorted(results_of(chunks)) == [numbers[0], numbers[2]]
    assert_clean(engine)


def test_a_fault_of_the_engine_itself_ends_all_that_run_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(toy(), "ngram")
    numbers = [engine.add(GOOD, PARAMS) for _ in range(2)]
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._loop, "schedule", lambda: 1 / 0)
        chunks = engine.step()
    assert [chunk.request for chunk in chunks] == numbers
    assert {type(chunk.error) for chunk in chunks} == {ZeroDivisionError}
    assert_same(engine.generate(GOOD, PARAMS)[0].choices[0], expected(TABLE, GOOD, PARAMS))
    assert_clean(engine)


@pytest.mark.parametrize("where", ["pass", "draft", "judge"])
def test_ctrl_c_is_raised_and_leaves_nothing_behind(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Scripted(lambda tokens, budget: Draft((1,) * budget))
    engine = Engine(toy(), drafter)
    engine.add(GOOD, PARAMS)
    engine.step()
    owner, name = {
        "pass": (engine.model, "forward"),
        "draft": (drafter, "propose"),
        "judge": (engine._loop, "_judge"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert not engine.has_work
    assert not drafter.open
    assert_same(engine.generate(GOOD, PARAMS)[0].choices[0], expected(TABLE, GOOD, PARAMS))
    assert_clean(engine)


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


class Flaky(ToyModel):
    """Breaks some passes of several requests, with all rows in the cache, and none of a single one."""

    def __init__(self, breaks: Callable[[], bool]) -> None:
        super().__init__(TABLE, VOCAB_SIZE)
        self._breaks = breaks

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        logits = super().forward(batch)
        if len(batch) > 1 and self._breaks():
            raise RuntimeError("the pass broke")
        return logits


@pytest.mark.parametrize("mode", VERIFY_MODES)
@settings(max_examples=40, deadline=None)
@given(draw=st.randoms(use_true_random=False), kv_memory=st.sampled_from((64, 90, None)))
def test_requests_whose_rounds_are_undone_are_given_the_same(
    mode: VerifyMode, draw: random.Random, kv_memory: int | None
) -> None:
    prompts = [[draw.randrange(5) for _ in range(draw.randrange(1, 20))] for _ in range(5)]
    params = [SamplingParams(seed=seed, max_tokens=20, temperature=1.2) for seed in range(5)]

    def engine(model: ToyModel, memory: int | None) -> Engine:
        drafter = Scripted(lambda tokens, budget: Draft(tuple(tokens[-budget:])))
        return Engine(model, drafter, draft_tokens=3, verify=mode, kv_memory=memory, max_rows=30)

    flaky = engine(Flaky(lambda: draw.random() < 0.3), kv_memory)
    results = flaky.generate(prompts, params)
    for result, prompt, its_params in zip(results, prompts, params, strict=True):
        alone = engine(toy(), 64 if kv_memory == 64 else None).generate(prompt, its_params)[0]
        assert result.token_ids == alone.token_ids
        if mode == "coupled":
            assert_same(result.choices[0], expected(TABLE, prompt, its_params))
    assert_clean(flaky)
