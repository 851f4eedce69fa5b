"""What is counted: held to the trace of the same rounds, and to what clients saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel
from surefoot.results import Load
from surefoot.server.metrics import Metrics
from surefoot.server.observed import ObservedEngine
from surefoot.trace import Event
from surefoot.types import SamplingParams, SurefootError
from tests.serving import CONTEXT, NAME, VOCAB_SIZE, byte_tokenizer, prose, toy_model

ENDLESS = SamplingParams(seed=1, max_tokens=300, ignore_eos=True)


def numbers(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name, the labels beside the model's behind it."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == NAME
            suffix = "".join(f"{{{value}}}" for name, value in labels.items() if name != "le")
            if "le" not in labels and not sample.name.endswith("_created"):
                found[sample.name.removeprefix("surefoot:") + suffix] = sample.value
    return found


def observed(
    metrics: Metrics, events: list[Event], model: ToyModel | None = None, **options: Any
) -> ObservedEngine:
    def record(event: Event) -> None:
        metrics(event)
        events.append(event)

    engine = Engine(model or toy_model(), tokenizer=byte_tokenizer(), trace=record, **options)
    return ObservedEngine(engine, metrics)


async def consume(engine: ObservedEngine, params: SamplingParams, limit: int | None = None) -> None:
    async with aclosing(engine.generate("abcabcabc", params)) as chunks:
        async for _ in chunks:
            limit = None if limit is None else limit - 1
            if limit == 0:
                return


def test_rounds_are_counted_as_the_trace_has_them() -> None:
    metrics, events = Metrics(NAME), list[Event]()

    async def main() -> None:
        async with observed(metrics, events) as engine:
            params = [SamplingParams(seed=n, max_tokens=60, temperature=0.1, n=1 + n % 2) for n in range(6)]
            await asyncio.gather(*(consume(engine, each) for each in params))

    asyncio.run(main())
    drafted = [event for event in events if event.draft_tokens]
    accepted = [len(event.path) for event in drafted]
    found = numbers(metrics)
    assert found["spec_decode_num_drafts_total"] == len(drafted) > 0
    assert found["spec_decode_num_draft_tokens_total"] == sum(len(event.draft_tokens) for event in drafted)
    assert found["spec_decode_num_accepted_tokens_total"] == sum(accepted) > 0
    for place in range(max(accepted)):
        name = f"spec_decode_num_accepted_tokens_per_pos_total{{{place}}}"
        assert found[name] == sum(place < count for count in accepted)
    assert found["prompt_tokens_total"] == sum(event.prompt_rows for event in events)
    hits = sum(event.cached_tokens for event in events)
    assert found["prefix_cache_hits_total"] == hits > 0
    assert found["prefix_cache_queries_total"] == 9 * len("abcabcabc") == hits + found["prompt_tokens_total"]
    assert found["generation_tokens_total"] == sum(len(event.emitted) for event in events)


def test_requests_are_counted_by_their_end_and_timed() -> None:
    metrics, events = Metrics(NAME), list[Event]()

    async def main() -> None:
        async with observed(metrics, events, draft="none") as engine:
            await consume(engine, SamplingParams(seed=1, max_tokens=3, ignore_eos=True, n=2))
            await consume(engine, SamplingParams(seed=1, max_tokens=99, stop_token_ids=range(VOCAB_SIZE)))  # type: ignore[arg-type]
            await consume(engine, ENDLESS, limit=4)
            with pytest.raises(SurefootError):
                await anext(engine.generate([], ENDLESS))

    asyncio.run(main())
    found = numbers(metrics)
    assert {name: value for name, value in found.items() if name.startswith("request_success")} == {
        "request_success_total{length}": 2,
        "request_success_total{stop}": 1,
        "request_success_total{abort}": 1,
    }
    assert found["time_to_first_token_seconds_count"] == 4
    assert found["inter_token_latency_seconds_count"] == 2 + 2 + 3
    assert found["e2e_request_latency_seconds_count"] == 3
    assert found["request_time_per_output_token_seconds_count"] == 1  # the others had one token or no end


def test_tokens_that_come_together_share_the_time_since_those_before() -> None:
    metrics = Metrics(NAME)
    metrics.later_tokens(6.0, 3)
    found = numbers(metrics)
    assert found["inter_token_latency_seconds_count"] == 3
    assert found["inter_token_latency_seconds_sum"] == 6.0


def test_a_fault_is_an_error_and_not_an_abort() -> None:
    class Failing(ToyModel):
        def forward(self, batch: Sequence[Segment]) -> NDArray[Any]:
            raise RuntimeError("no such luck")

    metrics = Metrics(NAME)

    async def main() -> None:
        async with observed(metrics, [], Failing(prose, VOCAB_SIZE, CONTEXT)) as engine:
            with pytest.raises(RuntimeError):
                await consume(engine, ENDLESS)

    asyncio.run(main())
    assert numbers(metrics)["request_success_total{error}"] == 1


def test_load_is_told_as_it_is_when_asked() -> None:
    metrics = Metrics(NAME)
    loads = iter(
        [
            Load(running=3, waiting=2, pages_used=5, pages_total=20, pages_cached=1, preemptions=7),
            Load(running=0, waiting=0, pages_used=5, pages_total=None, pages_cached=1, preemptions=8),
        ]
    )
    metrics.watch(lambda: next(loads))
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    first, second = numbers(metrics), numbers(metrics)
    assert [first[name] for name in names] == [3, 2, 0.25, 7]
    assert [second[name] for name in names] == [0, 0, 0, 8]


def test_two_servers_of_a_process_share_nothing() -> None:
    one, other = Metrics(NAME), Metrics(NAME)
    one.first_token(1.0)
    assert numbers(one)["time_to_first_token_seconds_count"] == 1
    assert numbers(other)["time_to_first_token_seconds_count"] == 0
