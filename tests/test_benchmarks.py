"""The benchmarks run, and end with the JSON that others read. What they measure is nobody's business here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.models_fixture import SMOLLM2, smollm2_path
from tests.threads import one_thread

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
Benchmark = Callable[[str, Sequence[str]], dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    smollm2_path()
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.syspath_prepend(BENCHMARKS)
        patch.setattr(import_module("machine"), "read_bandwidth", lambda: 1e9)
        yield


@pytest.fixture
def last_line(capsys: pytest.CaptureFixture[str]) -> Benchmark:
    def run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
        import_module(name).main(arguments)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert isinstance(found, dict)
        return found

    return run


def test_generate_measures_passes_and_answers(last_line: Benchmark) -> None:
    arguments = ["--kind", "code", "--temperature", "0.8", "--max-tokens", "6", "--repetitions", "2"]
    found = last_line("generate", arguments)
    assert found["read_bandwidth"] == 1e9
    assert found["machine"]["threads"] == 1
    [model] = found["models"]
    assert model["model"] == SMOLLM2
    assert list(model["pass_ms"]) == ["1", "2", "4", "8", "16", "32"]
    assert model["limit_ms"] == model["weight_bytes"] / 1e6
    assert [answers["draft"] for answers in model["answers"]] == ["none", "ngram"]
    for answers in model["answers"]:
        assert answers["equal"] is True
        assert answers["tokens"] == 6
        assert answers["tokens_per_second"]["low"] <= answers["tokens_per_second"]["high"]
    assert model["answers"][0]["ratio"] == {"low": 1, "median": 1, "high": 1}


def test_generate_leaves_out_what_is_not_asked_for(last_line: Benchmark) -> None:
    [model] = last_line("generate", ["--only", "passes", "--repetitions", "1"])["models"]
    assert "answers" not in model
    assert model["32_over_16_rows"] > 0


def test_quality_compares_every_precision_with_fp32(last_line: Benchmark) -> None:
    found = last_line("quality", ["--tokens", "80"])
    rows = {row["precision"]: row for row in found["quality"]}
    assert set(rows) <= {"bf16", "int8"}
    for row in rows.values():
        assert row["tokens"] == 80
        assert 0 < row["mean_kl"] < 0.05
        assert row["top_agreement"] > 0.8


def test_there_are_prompts_of_every_kind() -> None:
    answers = import_module("answers")
    for kind in answers.KINDS:
        prompts = answers.prompts_of(kind, 3)
        assert len(set(prompts)) == 3
        assert all("```" in prompt for prompt in prompts) or kind != "edit"
