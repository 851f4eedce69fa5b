"""What is counted, in Prometheus's format, under vLLM's names with a prefix of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from surefoot.trace import Event

if TYPE_CHECKING:
    from surefoot.results import Load, Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "surefoot:"
_FIRST_TOKEN = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80, 160)  # seconds
_BETWEEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 960, 1920)


class Metrics:
    """Counts rounds as the trace tells them and requests as their consumers see them, in a registry of its
    own. model_name: the label that every number bears.

    An instance is a target for `Engine(trace=…)`; any thread may call it.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model_name = model_name
        counter, histogram = self._counter, self._histogram
        self._drafts = counter("spec_decode_num_drafts", "Drafts verified.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their place in the draft.",
            "position",
        )
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens computed.")
        self._generated = counter("generation_tokens", "Output tokens.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked for in the prefix cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._ended = counter("request_success", "Answers ended, by the reason.", "finished_reason")
        self._first_token = histogram(
            "time_to_first_token_seconds", "From a request to its first token.", _FIRST_TOKEN
        )
        self._between = histogram(
            "inter_token_latency_seconds", "Between tokens, those that came together sharing.", _BETWEEN
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean over a request, the first token aside.", _BETWEEN
        )
        self._whole = histogram("e2e_request_latency_seconds", "From a request to its end.", _WHOLE)

    def watch(self, load: Callable[[], Load]) -> None:
        """From now on also tells what an engine holds, asked when the metrics are."""
        self._registry.register(_LoadCollector(load, self._model_name))

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def __call__(self, event: Event) -> None:
        """Counts one request's part of a round."""
        self._prompt_tokens.inc(event.prompt_rows)
        self._queries.inc(event.prompt_rows + event.cached_tokens)
        self._hits.inc(event.cached_tokens)
        self._generated.inc(len(event.emitted))
        if not event.draft_tokens:
            return
        self._drafts.inc()
        self._draft_tokens.inc(len(event.draft_tokens))
        self._accepted.inc(len(event.path))
        for position in range(len(event.path)):
            self._accepted_at.labels(self._model_name, str(position)).inc()

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def later_tokens(self, seconds: float, count: int) -> None:
        """So many tokens came together, so long after those before them."""
        for _ in range(count):
            self._between.observe(seconds / count)

    def end(self, reason: str, seconds: float) -> None:
        """A request that gave no result: reason is abort or error."""
        self._ended.labels(self._model_name, reason).inc()
        self._whole.observe(seconds)

    def finish(self, result: Result, seconds: float) -> None:
        for choice in result.choices:
            self._ended.labels(self._model_name, choice.finish_reason).inc()
        if result.stats.tokens_per_second:
            self._per_token.observe(1 / result.stats.tokens_per_second)
        self._whole.observe(seconds)

    def _counter(self, name: str, told: str, *labels: str) -> Any:
        made = Counter(_PREFIX + name, told, ("model_name", *labels), registry=self._registry)
        return made if labels else made.labels(self._model_name)

    def _histogram(self, name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(_PREFIX + name, told, ("model_name",), registry=self._registry, buckets=buckets)
        return made.labels(self._model_name)


class _LoadCollector(Collector):
    """What an engine holds, read when it is asked for."""

    def __init__(self, load: Callable[[], Load], model_name: str) -> None:
        self._load, self._model_name = load, model_name

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        usage = load.pages_used / load.pages_total if load.pages_total else 0.0
        for name, told, value in (
            ("num_requests_running", "Requests in flight, choices counted singly.", load.running),
            ("num_requests_waiting", "Requests that wait, choices counted singly.", load.waiting),
            ("kv_cache_usage_perc", "Pages of the cache in use, from 0 to 1; 0 without a limit.", usage),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, told, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge
        told = "Times that a request gave up its pages to others."
        preemptions = CounterMetricFamily(_PREFIX + "num_preemptions", told, labels=("model_name",))
        preemptions.add_metric((self._model_name,), load.preemptions)
        yield preemptions
