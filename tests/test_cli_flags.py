"""P1: every flag reaches the engine, and every parameter has a flag."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest

from surefoot.cli import main
from surefoot.commands.options import PRECISIONS, SAMPLING_FLAGS
from surefoot.commands.session import LOADING, RUNNING
from surefoot.engine import Engine
from surefoot.loading import load_model
from surefoot.models import build
from surefoot.results import Choice, Chunk, Result
from surefoot.sampling import TopLogprobs
from surefoot.trace import stats
from surefoot.types import Constraint, SamplingParams, Usage

SAMPLES: dict[str, tuple[list[str], Any]] = {
    "max_tokens": (["--max-tokens", "5"], 5),
    "temperature": (["--temperature", "0.25"], 0.25),
    "top_p": (["--top-p", "0.5"], 0.5),
    "top_k": (["--top-k", "7"], 7),
    "min_p": (["--min-p", "0.125"], 0.125),
    "repetition_penalty": (["--repetition-penalty", "1.5"], 1.5),
    "presence_penalty": (["--presence-penalty", "-0.5"], -0.5),
    "frequency_penalty": (["--frequency-penalty", "0.75"], 0.75),
    "logit_bias": (["--logit-bias", "3=-2.5", "--logit-bias", "4=1"], {3: -2.5, 4: 1.0}),
    "min_tokens": (["--min-tokens", "2"], 2),
    "bad_words": (["--bad-word", "one", "--bad-word", "two words"], ("one", "two words")),
    "stop": (["--stop", "END", "--stop", "###"], ("END", "###")),
    "stop_token_ids": (["--stop-token-id", "2", "--stop-token-id", "9"], (2, 9)),
    "ignore_eos": (["--ignore-eos"], True),
    "seed": (["--seed", "18446744073709551615"], 2**64 - 1),
    "n": (["--n", "3"], 3),
    "logprobs": (["--logprobs", "2", "--json"], 2),
    "prompt_logprobs": (["--prompt-logprobs", "3", "--json"], 3),
    "grammar": (["--regex", "a+"], Constraint("regex", "a+")),
}

SETTINGS: dict[str, tuple[list[str], object]] = {
    "draft": (["--draft", "smaller.gguf"], "smaller.gguf"),
    "draft_tokens": (["--draft-tokens", "3"], 3),
    "share_drafts": (["--draft", "suffix", "--share-drafts"], True),
    "verify": (["--verify", "block"], "block"),
    "precision": (["--precision", "fp32"], "fp32"),
    "threads": (["--threads", "2"], 2),
    "trace": (["--trace", "rounds.jsonl"], "rounds.jsonl"),
}


class Recorder:
    """Stands where the engine stands, and remembers."""

    inexact: str | None = None
    precision, kernels = "fp32", "pytorch"
    loaded: tuple[object, dict[str, Any]]
    settings: dict[str, Any]
    prompt: object
    params: SamplingParams
    chat: bool | None = None

    def load_model(self, name: object, **settings: Any) -> Recorder:
        self.loaded = name, settings
        return self

    def __call__(self, model: object, **settings: Any) -> Recorder:
        assert model is self
        self.settings = settings
        return self

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        pass

    def generate(self, prompt: object, params: SamplingParams, *, chat: bool = False) -> list[Result]:
        self.prompt, self.params, self.chat = prompt, params, chat
        return [result(params.n)]

    def stream(self, prompt: object, params: SamplingParams, *, chat: bool = False) -> Iterator[Chunk]:
        self.prompt, self.params, self.chat = prompt, params, chat
        yield Chunk(0, 0, "text", (1,), finish_reason="stop", result=result(1))


def result(n: int) -> Result:
    choices = tuple(Choice(index, "text", (1,), "stop") for index in range(n))
    return Result(None, (1, 2), choices, 5, Usage(2, n), stats([]))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr("surefoot.loading.load_model", recorder.load_model)
    monkeypatch.setattr("surefoot.engine.Engine", recorder)
    return recorder


def run(*arguments: str) -> None:
    assert main(["generate", "prompt", *arguments]) == 0


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
def test_p1_every_sampling_parameter_has_a_flag_that_reaches_the_engine(
    recorder: Recorder, name: str
) -> None:
    arguments, value = SAMPLES[name]
    assert value != getattr(SamplingParams(), name), "a default would arrive without any flag"
    run(*arguments)
    assert recorder.params == replace(SamplingParams(), **{name: value})


def test_a_schema_comes_from_a_file(
    recorder: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}', encoding="utf-8")
    run("--json-schema", str(file))
    assert recorder.params.grammar == Constraint("json_schema", '{"type": "integer"}')
    bad = tmp_path / "bad.json"
    bad.write_bytes(b'"\xff"')
    wrong = {
        ("--json-schema", str(tmp_path / "none.json")): "No such file",
        ("--json-schema", str(bad)): "byte 1 is not UTF-8",
        ("--json-schema", str(file), "--regex", "a"): "not allowed with",
    }
    for arguments, message in wrong.items():
        assert main(["generate", "prompt", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_probabilities_of_the_prompt_are_printed(
    recorder: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = TopLogprobs(-1.5, np.array([7, 8]), np.array([-0.5, -1.0]))
    scored = replace(result(1), prompt_logprobs=(None, entry))
    monkeypatch.setattr(recorder, "generate", lambda prompt, params, chat: [scored])
    run("--prompt-logprobs", "2", "--json")
    top = [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -1.0}]
    assert json.loads(capsys.readouterr().out)["prompt_logprobs"] == [None, {"logprob": -1.5, "top": top}]
    assert main(["generate", "prompt", "--prompt-logprobs", "2"]) == 2
    assert "--prompt-logprobs: 2 was given without --json" in capsys.readouterr().err


@pytest.mark.parametrize("name", SETTINGS)
def test_p1_every_engine_setting_reaches_the_engine(recorder: Recorder, name: str) -> None:
    arguments, value = SETTINGS[name]
    run(*arguments)
    draft = "suffix" if name == "share_drafts" else "ngram"
    assert recorder.settings == {"draft": draft} | ({} if name in LOADING else {name: value})
    assert recorder.loaded[1] == ({name: value} if name in LOADING else {})


@pytest.mark.parametrize("name", LOADING)
def test_a_draft_model_is_loaded_like_its_target(recorder: Recorder, name: str) -> None:
    arguments, value = SETTINGS[name]
    run(*arguments, "--draft", "some/model")
    assert recorder.settings == {"draft": "some/model", name: value}


def test_the_settings_are_the_engines_own() -> None:
    assert set(SETTINGS) == {*LOADING, *RUNNING}
    assert set(SETTINGS) <= set(inspect.signature(Engine.__init__).parameters)
    assert set(LOADING) <= set(inspect.signature(load_model).parameters)


def test_p1_the_model_and_the_template_reach_the_engine(recorder: Recorder) -> None:
    run("--model", "some/model")
    assert (recorder.loaded[0], recorder.prompt, recorder.chat) == ("some/model", "prompt", True)
    run("--raw")
    assert recorder.chat is False


def test_a_machine_where_the_promise_fails_is_told_so(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.inexact = "attention differs"
    run()
    captured = capsys.readouterr()
    assert captured.out == "text\n"
    assert "attention differs" in captured.err


def test_nothing_given_leaves_the_defaults(recorder: Recorder) -> None:
    run()
    assert recorder.params == SamplingParams()
    assert recorder.settings == {"draft": "ngram"}


def test_a_conversation_has_the_same_flags(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["hello"])
    monkeypatch.setattr("builtins.input", lambda prompt: _next(lines))
    alone = {"n", "logprobs", "prompt_logprobs"}
    given = [arguments for name, (arguments, _) in SAMPLES.items() if name not in alone]
    assert main(["chat", *(word for arguments in given for word in arguments)]) == 0
    expected = {name: value for name, (_, value) in SAMPLES.items() if name not in alone}
    assert recorder.params == replace(SamplingParams(), **expected)


def _next(lines: Iterator[str]) -> str:
    for line in lines:
        return line
    raise EOFError


def test_a_conversation_remembers(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["hello", "", "and?", "/exit", "unheard"])
    monkeypatch.setattr("builtins.input", lambda prompt: _next(lines))
    asked: list[Sequence[dict[str, str]]] = []
    seeds = []
    stream = recorder.stream

    def listening(messages: Any, params: SamplingParams, *, chat: bool = False) -> Iterator[Chunk]:
        asked.append(list(messages))
        seeds.append(params.seed)
        return stream(messages, params, chat=chat)

    monkeypatch.setattr(recorder, "stream", listening)
    assert main(["chat"]) == 0
    assert [[turn["content"] for turn in turns] for turns in asked] == [["hello"], ["hello", "text", "and?"]]
    assert [turn["role"] for turn in asked[-1]] == ["user", "assistant", "user"]
    assert len(set(seeds)) == 1
    assert seeds[0] is not None


def test_the_choices_offered_are_the_models() -> None:
    assert ("auto", *build.PRECISIONS) == PRECISIONS
    assert {flag.field for flag in SAMPLING_FLAGS} == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("command", ["generate", "chat", "pull", "models", "check-rule", "audit"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "usage: surefoot " + command in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{capsys.readouterr().out.split()[-1]}"' in pyproject
