"""The benchmarks run, and end with the JSON that others read. What they measure is nobody's business here."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from surefoot.engine import Engine
from surefoot.models.build import PRECISIONS
from surefoot.types import SamplingParams, SurefootError
from tests.models_fixture import SMOLLM2, smollm2_path
from tests.threads import one_thread

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
Benchmark = Callable[[str, Sequence[str]], dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    smollm2_path()
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.syspath_prepend(BENCHMARKS)
        machine = import_module("machine")
        patch.setattr(machine, "read_bandwidth", lambda: machine.Bandwidth(1e9, "hand"))
        yield


@pytest.fixture
def last_line(capsys: pytest.CaptureFixture[str]) -> Benchmark:
    def run(name: str, arguments: Sequence[str]) -> dict[str, Any]:
        import_module(name).main(arguments)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert isinstance(found, dict)
        return found

    return run


def test_generate_measures_answers_plain_and_speculated(last_line: Benchmark) -> None:
    arguments = ["--kind", "code", "--temperature", "0.8", "--max-tokens", "6", "--repetitions", "2"]
    found = last_line("generate", arguments)
    assert found["machine"]["threads"] == 1
    [model] = found["models"]
    assert model["model"] == SMOLLM2
    assert [answers["draft"] for answers in model["answers"]] == ["none", "ngram"]
    for answers in model["answers"]:
        assert answers["equal"] is True
        assert answers["tokens"] == 6
        assert answers["tokens_per_second"]["min"] <= answers["tokens_per_second"]["max"]
    assert model["answers"][0]["ratio"] == {"min": 1, "median": 1, "max": 1}


def test_llama_answers_the_same_prompts_at_temperature_0(last_line: Benchmark, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    peer = interpreter(
        tmp_path,
        f"""
log = open({str(log)!r}, "w")
print(json.dumps(sys.argv[1:]), file=log, flush=True)
print(json.dumps({{"peer": "fake", "system": "none"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    timings = {{"predicted_n": 7, "predicted_ms": 12.0}}
    if asked["speculation"]["type"] != "none":
        timings |= {{"draft_n": 8, "draft_n_accepted": 4}}
    odd = asked["speculation"]["type"] == "ngram_mod"
    print(json.dumps(asked), file=log, flush=True)
    print(json.dumps({{"tokens": [0] * 6 + [odd], "timings": timings}}), flush=True)
""",
    )
    arguments = ["--kind", "story", "--max-tokens", "7", "--repetitions", "1", "--draft", SMOLLM2]
    [model] = last_line("generate", [*arguments, "--peer", peer])["models"]
    assert (model["peer"], model["peer_system"]) == ("fake", "none")
    found = {(one["temperature"], one["draft"]): one for one in model["answers"]}
    ways = {
        "llama.cpp": {"type": "none"},
        "llama.cpp ngram-simple": {"type": "ngram_simple"},
        "llama.cpp ngram-simple 3/8": {"type": "ngram_simple", "size_n": 3, "size_m": 8},
        "llama.cpp ngram-mod": {"type": "ngram_mod"},
        f"llama.cpp {SMOLLM2}": {"type": "draft_simple", "model": str(smollm2_path())},
    }
    ours = ["none", SMOLLM2]
    assert list(found) == [(0, name) for name in [*ours, *ways]] + [(0.8, name) for name in ours]

    plain = found[0, "none"]["tokens_per_second"]["median"]
    for name in ways:
        assert found[0, name]["tokens"] == 7
        assert found[0, name]["tokens_per_second"]["median"] == 500  # the first token is not among the timed
        assert found[0, name]["ratio"]["median"] == 500 / plain
        assert found[0, name]["other_share"] is None
    # Ours wrote something else; ngram-mod alone wrote something else than llama.cpp by itself.
    assert [found[0, name]["equal"] for name in ways] == [False, True, True, False, True]
    assert found[0, "llama.cpp"]["mean_acceptance_length"] == 1
    assert found[0, "llama.cpp ngram-mod"]["mean_acceptance_length"] == 3
    assert found[0, "llama.cpp ngram-mod"]["acceptance_rate"] == 0.5

    argv, *asked = map(json.loads, log.read_text().splitlines())
    assert argv == [str(BENCHMARKS / "llama_answers.py"), str(smollm2_path()), "1"]
    assert [one["speculation"] for one in asked] == list(ways.values())
    [prompt] = import_module("answers").prompts_of("story", 1)
    ids = Engine(SMOLLM2, draft=None).generate(prompt, SamplingParams(max_tokens=1), chat=True)
    for one in asked:
        assert one["prompt"] == list(ids[0].prompt_token_ids)
        assert one["max_tokens"] == 7


PASS = ["--model", SMOLLM2, "--threads", "1", "--runs", "1", "--prompt", "8"]
KEYS = ["1", "2", "4", "8", "16", "32", "prompt"]


def test_a_pass_is_timed_by_its_rows(last_line: Benchmark) -> None:
    found = last_line("pass", PASS)
    assert found["prompt"] == 8
    [model] = found["models"]
    assert model["model"] == SMOLLM2
    assert model["precision"] in PRECISIONS  # which one is the machine's choice
    assert list(model["pass_ms"]) == ["ours"]
    ours = model["pass_ms"]["ours"]
    assert list(ours) == KEYS
    assert model["limit_ms"] == model["weight_bytes"] / 1e6
    assert model["one_row_over_limit"] == ours["1"]["median"] / model["limit_ms"]
    assert model["16_over_1_rows"] == {"ours": ours["16"]["median"] / ours["1"]["median"]}
    assert "peer" not in model


def interpreter(folder: Path, body: str) -> str:
    """What stands in for the interpreter of a peer's environment: it is given script, file and threads."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}")
    path.chmod(0o755)
    return str(path)


def test_a_peer_is_timed_beside(last_line: Benchmark, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    peer = interpreter(
        tmp_path,
        f"""
log = open({str(log)!r}, "w")
print(json.dumps(sys.argv[1:]), file=log)
print(json.dumps({{"peer": "fake", "system": "none"}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {{"ms": 2.0 * len(asked["rows"])}} if "rows" in asked else {{}}
    print(json.dumps(asked), file=log)
    print(json.dumps(answer), flush=True)
""",
    )
    [model] = last_line("pass", [*PASS, "--peer", peer])["models"]
    assert (model["peer"], model["peer_system"]) == ("fake", "none")
    theirs = model["pass_ms"]["peer"]
    assert {key: ms["median"] for key, ms in theirs.items()} == dict(
        zip(KEYS, (2, 4, 8, 16, 32, 64, 16), strict=True)
    )
    assert model["16_over_1_rows"]["peer"] == 16
    assert model["peer_over_ours"]["4"] == 8 / model["pass_ms"]["ours"]["4"]["median"]
    arguments, *asked = map(json.loads, log.read_text().splitlines())
    assert arguments == [str(BENCHMARKS / "llama_peer.py"), str(smollm2_path()), "1"]
    contexts = [len(one["context"]) for one in asked if "context" in one]
    assert contexts == [300, 0]
    rows = [(len(one["rows"]), one["wanted"]) for one in asked if "rows" in one]
    assert rows == [(n, n) for n in (1, 2, 4, 8, 16, 32) for _ in range(2)] + [(8, 1)] * 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('no llama.cpp')", "the peer ended: no llama.cpp"),
        ("sys.exit(3)", "the peer ended: exit code 3"),
    ],
)
def test_why_a_peer_ended_is_said(last_line: Benchmark, tmp_path: Path, body: str, reason: str) -> None:
    with pytest.raises(SurefootError, match=f"^{reason}$"):
        last_line("pass", [*PASS, "--peer", interpreter(tmp_path, body)])


def test_a_peer_that_is_not_there_is_said(last_line: Benchmark) -> None:
    with pytest.raises(SurefootError, match=r"^--peer /no/such: No such file or directory$"):
        last_line("pass", [*PASS, "--peer", "/no/such"])


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in ("xllamacpp", "llama_cpp")), reason="llama.cpp is here"
)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["pass", *PASS], "neither xllamacpp nor llama-cpp-python is installed here"),
        (["generate", "--model", SMOLLM2], "xllamacpp is not installed here"),
    ],
)
def test_an_environment_without_llama_is_said(
    last_line: Benchmark, arguments: Sequence[str], reason: str
) -> None:
    with pytest.raises(SurefootError, match=rf"^the peer ended: no llama\.cpp: {reason}$"):
        last_line(arguments[0], [*arguments[1:], "--peer", sys.executable])


@pytest.mark.parametrize("benchmark", ["pass", "generate"])
def test_llama_is_not_asked_for_a_folder(last_line: Benchmark, tmp_path: Path, benchmark: str) -> None:
    with pytest.raises(SurefootError, match=f"^llama.cpp reads GGUF files alone; {tmp_path} is a folder$"):
        last_line(benchmark, ["--model", str(tmp_path), "--peer", sys.executable])


def test_quality_compares_every_precision_with_fp32(last_line: Benchmark) -> None:
    found = last_line("quality", ["--tokens", "80"])
    rows = {row["precision"]: row for row in found["quality"]}
    assert set(rows) <= {"file", "int8", "bf16"}
    for row in rows.values():
        assert row["tokens"] == 80
        assert 0 <= row["mean_kl"] < 0.05
        assert row["top_agreement"] > 0.8


def test_there_are_prompts_of_every_kind() -> None:
    answers = import_module("answers")
    for kind in answers.KINDS:
        prompts = answers.prompts_of(kind, 3)
        assert len(set(prompts)) == 3
        assert all("```" in prompt for prompt in prompts) or kind != "edit"
