"""What an engine says of its memory, what it takes from other requests, and what it refuses."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.results import Load
from surefoot.trace import Event
from surefoot.types import SamplingParams, SurefootError, Usage
from tests.harness import VOCAB_SIZE, assert_same, expected

TABLE = random_table(VOCAB_SIZE, 2, seed=1)
PARAMS = SamplingParams(seed=1, max_tokens=6)
PROMPT = tuple(range(11))  # two pages of four rows, and three rows more


def toy(table_seed: int = 1, max_length: int = 4096) -> ToyModel:
    return ToyModel(random_table(VOCAB_SIZE, 2, table_seed), VOCAB_SIZE, max_length)


class Counted(ToyModel):
    """Counts the rows that it computes."""

    def __init__(self) -> None:
        super().__init__(TABLE, VOCAB_SIZE)
        self.rows = self.widest = 0

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self.rows += sum(len(segment.tokens) for segment in batch)
        self.widest = max(self.widest, sum(segment.num_wanted for segment in batch))
        return super().forward(batch)


def test_a_second_request_computes_what_is_its_own() -> None:
    events: list[Event] = []
    engine = Engine(toy(), None, trace=events.append)
    first, second = (engine.generate(PROMPT, PARAMS)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert (first.usage, second.usage) == (Usage(11, 6), Usage(11, 6, cached_tokens=8))
    assert [event.cached_tokens for event in events if event.request == 1] == [8, 0, 0, 0, 0, 0]
    assert [event.prompt_rows for event in events if event.prompt_rows] == [11, 3]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = Engine(toy(), None)
    for _ in range(2):
        result = engine.generate(PROMPT[:8], PARAMS)[0]
    assert result.usage.cached_tokens == 4


def test_output_of_one_request_is_the_prompt_of_the_next() -> None:
    engine = Engine(toy(), None)
    first = engine.generate(PROMPT, PARAMS)[0]
    second = engine.generate([*PROMPT, *first.token_ids, 3], PARAMS)[0]
    assert second.usage.cached_tokens == 16  # of 17 tokens, the last of which was never computed


def test_requests_share_while_they_run() -> None:
    engine = Engine(toy(), None)
    first = engine.add(PROMPT, SamplingParams(seed=1, max_tokens=40))
    engine.step()
    results = {first: PROMPT, engine.add((*PROMPT, 5), PARAMS): (*PROMPT, 5)}
    while engine.has_work:
        for chunk in engine.step():
            if chunk.result and chunk.request != first:
                assert chunk.result.usage.cached_tokens == 8
                assert_same(chunk.result.choices[0], expected(TABLE, results[chunk.request], PARAMS))


def test_without_a_prefix_cache_nothing_is_shared_or_kept() -> None:
    model = toy()
    engine = Engine(model, None, prefix_cache=False)
    for _ in range(2):
        assert engine.generate(PROMPT, PARAMS)[0].usage.cached_tokens == 0
        assert not len(model.cache)


def test_choices_compute_their_prompt_once() -> None:
    for reuse, rows in ((True, 11 + 2 * 1), (False, 3 * 11)):
        model = Counted()
        engine = Engine(model, None, prefix_cache=reuse)
        result = engine.generate(PROMPT, SamplingParams(seed=4, max_tokens=5, n=3))[0]
        assert model.rows == rows + 3 * 4
        for choice in result.choices:
            params = SamplingParams(seed=4, max_tokens=5)
            assert_same(choice, expected(TABLE, PROMPT, params, choice=choice.index))
        assert result.usage == Usage(11, 15)


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    engine = Engine(toy(), None)
    stream = engine.stream(PROMPT, SamplingParams(max_tokens=40))
    next(stream)
    stream.close()
    assert engine.load == Load(running=0, waiting=0, pages_used=2, pages_cached=2)
    assert engine.generate(PROMPT, PARAMS)[0].usage.cached_tokens == 8


def test_without_a_limit_what_is_kept_takes_no_more_room_than_there_was() -> None:
    model = toy()
    with Engine(model, None) as engine:
        for number in range(200):
            engine.generate([number % 32, *PROMPT, number // 32, 1, 2, 3], PARAMS)
            assert model.cache.used_pages() <= 64
        assert model.cache.used_pages() > 50
    assert model.cache.used_pages() == 0


def test_an_engine_that_is_dropped_unclosed_leaves_nothing_in_a_shared_model() -> None:
    model = toy()
    engine = Engine(model, ModelDrafter(toy()))
    engine.generate(PROMPT, PARAMS)
    engine.add(PROMPT, PARAMS)
    engine.step()
    assert len(model.cache)
    del engine
    gc.collect()
    assert not len(model.cache)


def test_load_counts_requests_choices_and_pages() -> None:
    engine = Engine(toy(), None, max_requests=2, kv_memory=401)
    assert engine.load == Load(0, 0, 0, 100, 0, 0)
    for _ in range(2):
        engine.add(PROMPT, SamplingParams(max_tokens=9, n=2))
    assert (engine.load.running, engine.load.waiting) == (0, 4)
    engine.step()
    assert (engine.load.running, engine.load.waiting, engine.load.pages_used) == (2, 2, 6)
    while engine.has_work:
        engine.step()
    load = engine.load
    assert (load.running, load.waiting, load.pages_total) == (0, 0, 100)
    assert load.pages_used >= load.pages_cached > 0
    engine.close()
    assert engine.load == Load(0, 0, 0, 100, 0, 0)


def test_memory_is_shared_by_target_and_draft_token_by_token() -> None:
    target, draft = toy(), ToyModel(TABLE, VOCAB_SIZE, page_rows=8)
    engine = Engine(target, ModelDrafter(draft), kv_memory=2 * 103)
    assert (target.cache.free_pages(), draft.cache.free_pages()) == (25, 12)
    assert engine.max_length == 100
    assert Engine(toy(max_length=50), None, kv_memory=206).max_length == 50
    assert Engine(toy(), None).max_length == 4096


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_memory": 63}, "kv_memory: 63 is out of range; allowed is 64 or more"),
        ({"kv_memory": 127, "draft": ModelDrafter(toy())}, "kv_memory: 127 is out of range; allowed is 128"),
        ({"kv_memory": 1.5}, "kv_memory: 1.5 is not a whole number"),
        ({"prompt_rows": 0}, "prompt_rows: 0 is out of range; allowed is 1 or more"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SurefootError, match=f"^{message}"):
        Engine(toy(), **settings)  # type: ignore[arg-type]


def test_a_model_that_drafts_for_itself_cannot_share_its_memory_out() -> None:
    model = toy()
    assert Engine(model, ModelDrafter(model)).generate(PROMPT, PARAMS)[0].stats.acceptance_rate == 1
    with pytest.raises(SurefootError, match=r"^kv_memory: 999 was given, but target and draft are one model"):
        Engine(model, ModelDrafter(model), kv_memory=999)


def test_prompts_and_answers_end_where_the_memory_does() -> None:
    engine = Engine(toy(), "ngram", kv_memory=64)
    prompt = [i % 5 for i in range(60)]
    params = SamplingParams(seed=1, max_tokens=100)
    result = engine.generate(prompt, params)[0]
    assert_same(result.choices[0], expected(TABLE, prompt, params, max_length=64))
    assert (len(result.token_ids), result.finish_reason) == (4, "length")
    with pytest.raises(SurefootError, match="64 tokens are too many; the context of 64 leaves room for 63"):
        engine.add([1] * 64, params)


def test_a_preempted_request_goes_on_as_if_nothing_had_happened() -> None:
    events: list[Event] = []
    engine = Engine(toy(), "ngram", kv_memory=64, trace=events.append)
    prompts = [[number, *PROMPT[:9]] for number in range(4)]
    params = [SamplingParams(seed=number, max_tokens=40, logprobs=1) for number in range(4)]
    results = engine.generate(prompts, params)
    for result, prompt, its_params in zip(results, prompts, params, strict=True):
        assert_same(result.choices[0], expected(TABLE, prompt, its_params, max_length=64))
    assert engine.load.preemptions > 0
    assert (
        sum(max(e.preemptions for e in events if e.request == r) for r in range(4)) == engine.load.preemptions
    )
    again = [event for event in events if event.preemptions and event.prompt_rows]
    assert again
    assert not any(event.emitted or event.cached_tokens for event in again if event.request)


def test_another_engine_that_holds_all_the_memory_is_named() -> None:
    """Both count the same pages; the second engine has none left even for one request."""
    model = toy()
    first = Engine(model, None, kv_memory=64)
    first.add([1] * 50, SamplingParams(max_tokens=9))
    first.step()
    second = Engine(model, None, kv_memory=64)
    number = second.add([2] * 30, PARAMS)
    chunks = second.step()
    assert [(chunk.request, str(chunk.error)[:30]) for chunk in chunks] == [
        (number, "kv_memory: the model's cache h")
    ]
    assert not second.has_work
    model.cache.check()
    while first.has_work:
        assert not any(chunk.error for chunk in first.step())


def test_what_another_engine_merely_keeps_makes_room() -> None:
    model = toy()
    first, second = (Engine(model, None, kv_memory=64) for _ in range(2))
    first.generate([1] * 60, PARAMS)
    assert first.load.pages_cached == 15
    params = SamplingParams(seed=1, max_tokens=20)
    assert_same(second.generate([2] * 40, params)[0].choices[0], expected(TABLE, [2] * 40, params))
    assert first.load.pages_cached < 5
    model.cache.check()


def test_a_long_prompt_comes_in_small_chunks_beside_others() -> None:
    events: list[Event] = []
    engine = Engine(toy(), None, prompt_rows=5, trace=events.append)
    engine.add([1], SamplingParams(max_tokens=20))
    engine.step()
    engine.add([2] * 23, PARAMS)
    while engine.has_work:
        engine.step()
    assert [event.prompt_rows for event in events if event.request == 1 and event.prompt_rows] == [5] * 4 + [
        3
    ]
    rounds = [event.round for event in events if event.request == 0]
    assert rounds == list(range(20))  # one token in every round


def test_a_request_has_a_draft_length_of_its_own() -> None:
    events: list[Event] = []
    engine = Engine(toy(), ModelDrafter(toy()), draft_tokens=3, max_rows=9, trace=events.append)
    for draft_tokens in (None, 0, 1, 8):
        engine.add([1, 2], SamplingParams(seed=1, max_tokens=30), draft_tokens=draft_tokens)
    while engine.has_work:
        engine.step()
    longest = [max(len(e.draft_tokens) for e in events if e.request == number) for number in range(4)]
    assert longest == [3, 0, 1, 8]
    assert (engine.max_draft_tokens, Engine(toy(), None).max_draft_tokens) == (8, 0)
    for asked, message in ((9, "9 is out of range"), (-1, "-1 is out of range"), (1.5, "1.5 is not a whole")):
        with pytest.raises(SurefootError, match=f"^draft_tokens: {message}"):
            engine.add([1], draft_tokens=asked)  # type: ignore[arg-type]
    with pytest.raises(SurefootError, match=r"^draft_tokens: 1 is out of range; allowed is \[0, 0\]"):
        Engine(toy(), None).add([1], draft_tokens=1)


def test_e3_a_full_draft_cache_is_said_once_and_drafting_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    target, draft = toy(), toy(2)
    engine = Engine(target, ModelDrafter(draft, name="small"), draft_tokens=3)
    draft.cache.limit(8)
    with caplog.at_level(logging.WARNING):
        for seed in range(5):
            params = [SamplingParams(seed=seed, max_tokens=30) for _ in range(4)]
            for result in engine.generate([PROMPT] * 4, params):
                assert_same(result.choices[0], expected(TABLE, PROMPT, params[0]))
            assert sum(r.stats.draft_tokens for r in engine.generate([PROMPT], params[:1])) > 20
            draft.cache.check()
            assert draft.cache.used_pages() == 0
    assert caplog.messages == ["small: its cache is full, so some drafts are left out"]


def test_prompt_logprobs_are_those_of_every_row_however_the_prompt_is_cut() -> None:
    params = SamplingParams(seed=1, max_tokens=2, prompt_logprobs=2, n=2)
    model = Counted()
    engine = Engine(model, None, draft_tokens=0, max_rows=4)
    engine.generate(PROMPT, PARAMS)  # whose pages are of no use: every row is wanted
    chunks = list(engine.stream(PROMPT, params))
    result = chunks[-1].result
    assert result
    assert result.usage.cached_tokens == 0
    assert result.prompt_logprobs
    assert len(result.prompt_logprobs) == len(PROMPT)
    assert result.prompt_logprobs[0] is None
    for position, entry in enumerate(result.prompt_logprobs[1:], start=1):
        row = np.asarray(TABLE(PROMPT[:position]), np.float64)
        logprobs = row - np.log(np.exp(row).sum())
        assert entry
        assert entry.chosen == pytest.approx(logprobs[PROMPT[position]], abs=1e-6)
        assert entry.ids.tolist() == np.argsort(-row, kind="stable")[:2].tolist()
    own = [[chunk.prompt_logprobs for chunk in chunks if chunk.choice == choice] for choice in (0, 1)]
    assert own == [[result.prompt_logprobs, None]] * 2
    assert engine.generate(PROMPT, PARAMS)[0].prompt_logprobs is None


def test_the_logits_of_a_prompt_are_wanted_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.loop._LOGIT_BYTES", 4 * VOCAB_SIZE * 7)
    model = Counted()
    engine = Engine(model, None)
    params = SamplingParams(seed=1, max_tokens=1, prompt_logprobs=0)
    for result in engine.generate([[1] * 30, [2] * 30], params):
        assert len(result.prompt_logprobs or ()) == 30
    assert model.widest == 7
