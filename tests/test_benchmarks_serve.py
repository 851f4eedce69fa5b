"""The benchmark of servers runs against one, and ends with the JSON that others read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from surefoot.trace import Event
from surefoot.types import SurefootError
from tests.api import Api, serving

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
Benchmark = Callable[[Sequence[str]], dict[str, Any]]


EVENTS: list[Event] = []


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(trace=EVENTS.append) as started:
        yield started


@pytest.fixture
def measured(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Benchmark:
    """What the benchmark says of the toy server, whose context is short."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"abcabc {n}"]}) + "\n" for n in range(3)))

    def run(arguments: Sequence[str]) -> dict[str, Any]:
        given = ["--url", api.url, "--workload", str(prompts), "--repetitions", "2", *arguments]
        import_module("serve").main(given)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert isinstance(found, dict)
        return found

    return run


def test_every_load_meets_every_server(measured: Benchmark, api: Api) -> None:
    arguments = ["--concurrency", "1,3", "--rate", "200", "--requests", "4", "--max-tokens", "6"]
    found = measured([*arguments, "--temperature", "0.8", "--peer", f"peer={api.url}/"])["measured"]
    assert [(one["load"], one["subject"]) for one in found] == [
        (load, subject)
        for load in ("1 at once", "3 at once", "200 a second")
        for subject in ("plain", "speculated", "peer")
    ]
    for one in found:
        assert one["requests"] == 8
        assert one["tokens_per_second"]["min"] <= one["tokens_per_second"]["median"]
        assert one["equal"] is (True if one["subject"] == "speculated" else None)
        for times in (one["ttft_ms"], one["gap_ms"], one["token_ms"]):
            assert times == sorted(times)


def test_plain_requests_draft_nothing_and_prompts_are_cold(measured: Benchmark) -> None:
    EVENTS.clear()
    measured(["--concurrency", "2", "--requests", "2", "--max-tokens", "6"])
    assert sum(len(event.emitted) for event in EVENTS) == 2 * 2 * 3 * 6  # servers, requests, rounds, tokens
    assert not any(event.cached_tokens for event in EVENTS)
    runs = [event.request // 2 for event in EVENTS if event.draft_tokens]
    assert {run % 2 for run in runs} == {1}  # plain and speculated take turns


def test_no_server_is_said(measured: Benchmark) -> None:
    with pytest.raises(SurefootError, match=r"^http://127\.0\.0\.1:9: no OpenAI-compatible server answers"):
        measured(["--peer", "gone=http://127.0.0.1:9"])


def test_a_refusal_is_said_in_the_servers_own_words(measured: Benchmark) -> None:
    with pytest.raises(SurefootError, match=r"^plain: 400: .*temperature: 101"):
        measured(["--temperature", "101", "--concurrency", "2", "--requests", "3"])
