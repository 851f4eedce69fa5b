"""The program, run for real on a small random model: answers, conversations, pipes and terminals."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from surefoot import trace
from surefoot.cli import main
from tests.threads import one_thread
from tests.tiny import tiny_gguf

OBJECT = ["text", "token_ids", "finish_reason", "seed", "precision", "kernels", "usage", "stats"]
STATS = [
    "rounds",
    "draft_tokens",
    "tested_tokens",
    "accepted_tokens",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_histogram",
    "ttft_ms",
    "decode_ms",
    "draft_ms",
    "verify_ms",
    "other_ms",
    "tokens_per_second",
    "peak_memory_bytes",
]

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose context an answer can fill for minutes."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(tiny_gguf("llama", path, max_position_embeddings=100_000))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


Capture = pytest.CaptureFixture[str]


def generate(capsys: Capture, model: str, *arguments: str) -> str:
    """What a prompt's answer is on standard output; nothing may stand beside it."""
    assert main(["generate", "--model", model, "--precision", "fp32", "--max-tokens", "24", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def generate_json(capsys: Capture, model: str, *arguments: str) -> dict[str, Any]:
    found = json.loads(generate(capsys, model, "--json", *arguments))
    assert isinstance(found, dict)
    return found


def test_the_object_has_what_is_promised(capsys: Capture, model: str) -> None:
    found = generate_json(capsys, model, "hello", "--seed", "3")
    assert list(found) == OBJECT
    assert list(found["stats"]) == STATS
    assert found["seed"] == 3
    assert (found["precision"], found["kernels"]) == ("fp32", "pytorch")
    assert found["usage"]["completion_tokens"] == len(found["token_ids"])
    assert found["usage"]["prompt_tokens"] > 0
    assert found["finish_reason"] in ("stop", "length")


def test_p1_the_ngram_drafter_drafts_by_default_and_none_does_not(capsys: Capture, model: str) -> None:
    asked = ("hello hello hello", "--seed", "3", "--ignore-eos")
    speculated = generate_json(capsys, model, *asked)
    plain = generate_json(capsys, model, *asked, "--draft", "none")
    assert speculated["stats"]["draft_tokens"] > 0
    assert plain["stats"]["draft_tokens"] == 0
    assert plain["stats"]["mean_acceptance_length"] == 1
    assert speculated["token_ids"] == plain["token_ids"]


def test_p1_a_draft_model_drafts(capsys: Capture, model: str) -> None:
    asked = ("hello", "--seed", "3", "--ignore-eos")
    found = generate_json(capsys, model, *asked, "--draft", model, "--draft-tokens", "3")
    stats = found["stats"]
    assert stats["accepted_tokens"] == stats["draft_tokens"] > 0  # it is the target itself
    assert stats["mean_acceptance_length"] > 3


def test_p1_suffix_drafts_are_drafted(capsys: Capture, model: str, tmp_path: Path) -> None:
    asked = ("hello hello hello", "--seed", "3", "--ignore-eos")
    trace = tmp_path / "trace.jsonl"
    found = generate_json(capsys, model, *asked, "--draft", "suffix", "--trace", str(trace))
    assert found["stats"]["draft_tokens"] > 0
    assert '"suffix"' in trace.read_text()
    assert found["token_ids"] == generate_json(capsys, model, *asked, "--draft", "none")["token_ids"]


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_p1_the_other_rules_run(capsys: Capture, model: str, verify: str) -> None:
    asked = ("hello", "--seed", "3", "--ignore-eos")
    found = generate_json(capsys, model, *asked, "--draft", model, "--verify", verify)
    assert found["stats"]["draft_tokens"] > 0


def test_a_seed_is_drawn_and_reported_so_that_a_run_can_be_repeated(capsys: Capture, model: str) -> None:
    first = generate_json(capsys, model, "hello", "--ignore-eos")
    other = generate_json(capsys, model, "hello", "--ignore-eos")
    again = generate_json(capsys, model, "hello", "--ignore-eos", "--seed", str(first["seed"]))
    assert again["token_ids"] == first["token_ids"] != other["token_ids"]


def test_a_pipe_gets_the_text_and_nothing_else(capsys: Capture, model: str) -> None:
    text = generate(capsys, model, "hello", "--seed", "3")
    assert text.removesuffix("\n") == generate_json(capsys, model, "hello", "--seed", "3")["text"]


def test_a_prompt_comes_from_a_file_or_from_standard_input(
    capsys: Capture, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("grüß dich 🙂\n")
    expected = generate_json(capsys, model, "grüß dich 🙂", "--seed", "3")["token_ids"]
    assert generate_json(capsys, model, f"@{file}", "--seed", "3")["token_ids"] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert generate_json(capsys, model, "-", "--seed", "3")["token_ids"] == expected


def test_raw_leaves_the_template_away(capsys: Capture, model: str) -> None:
    with_template = generate_json(capsys, model, "hello")["usage"]["prompt_tokens"]
    raw = generate_json(capsys, model, "hello", "--raw")["usage"]["prompt_tokens"]
    assert raw == 2  # "hell", "o"
    assert with_template > raw


def test_several_answers(capsys: Capture, model: str) -> None:
    found = generate_json(capsys, model, "hello", "--n", "3", "--seed", "3")
    assert list(found) == [*OBJECT, "choices"]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert found["choices"][0]["token_ids"] == found["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in found["choices"]}) == 3
    assert found["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in found["choices"])
    text = generate(capsys, model, "hello", "--n", "3", "--seed", "3")
    assert text == "---\n".join(choice["text"].removesuffix("\n") + "\n" for choice in found["choices"])


def test_logprobs_are_one_per_token(capsys: Capture, model: str) -> None:
    found = generate_json(capsys, model, "hello", "--seed", "3", "--logprobs", "2")
    assert len(found["logprobs"]) == len(found["token_ids"])
    for token, entry in zip(found["token_ids"], found["logprobs"], strict=True):
        assert len(entry["top"]) == 2
        assert entry["top"][0]["logprob"] >= entry["top"][1]["logprob"]
        for other in entry["top"]:
            assert other["token_id"] != token or other["logprob"] == entry["logprob"]


def test_a_trace_has_the_rounds_that_the_numbers_come_from(
    capsys: Capture, model: str, tmp_path: Path
) -> None:
    asked = ("hello hello hello", "--seed", "3", "--ignore-eos")
    found = generate_json(capsys, model, *asked, "--trace", str(tmp_path / "trace.jsonl"))
    events = trace.read(tmp_path / "trace.jsonl")
    assert sum(not event.prompt_rows for event in events) == found["stats"]["rounds"]
    assert sum(len(event.draft_tokens) for event in events) == found["stats"]["draft_tokens"]
    assert [token for event in events for token in event.emitted] == found["token_ids"]


def test_a_conversation_through_a_pipe(capsys: Capture, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nand then?\n/exit\nnever asked\n"))
    arguments = ["--model", model, "--precision", "fp32", "--max-tokens", "8", "--seed", "3"]
    assert main(["chat", *arguments, "--logit-bias", "10=100"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == "((((((((\n" * 2  # token 10 is "("


# --- in a process of its own


# Started from a script's background job, a process inherits that Ctrl-C is ignored.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from surefoot.cli import main
sys.exit(main())
"""


class Program:
    """The program in a process of its own, its streams being pipes, or all three a terminal."""

    def __init__(self, *arguments: str, terminal: bool = False) -> None:
        ours, theirs = pty.openpty() if terminal else (-1, subprocess.PIPE)
        self._ours = ours
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        if terminal:
            os.close(theirs)

    def read_until(self, pattern: str) -> str:
        """Reads the terminal until what came since the last call matches."""
        seen = ""
        while not re.search(pattern, seen):
            try:
                piece = os.read(self._ours, 4096)
            except OSError:  # the other end is closed
                piece = b""
            assert piece, f"it ended without {pattern!r}: {seen!r}"
            seen += piece.decode(errors="replace").replace("\r\n", "\n")
        return seen

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end_by_interrupt(self) -> int:
        """Presses Ctrl-C at a prompt until it is heard: readline misses one between showing its prompt and
        waiting for input."""
        while True:
            self.interrupt()
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=5)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        if self._ours >= 0:
            os.close(self._ours)


ENDLESS = ("--max-tokens", "90000", "--ignore-eos", "--seed", "3", "--precision", "fp32")


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.close()


def test_a_terminal_gets_a_line_with_speed_and_seed(programs: list[Program], model: str) -> None:
    programs.append(
        program := Program("generate", "hello", "--model", model, "--max-tokens", "5", terminal=True)
    )
    seen = program.read_until(r"seed \d+\n")
    assert "5 tokens · " in seen
    assert "mean acceptance length" in seen
    assert re.search(r" · int8 by (avx2|avx512|amx|neon|pytorch) · | · (bf16|fp32) by pytorch · ", seen)
    assert program.process.wait() == 0


def test_an_interrupt_ends_the_program_without_a_trace_of_python(programs: list[Program], model: str) -> None:
    programs.append(program := Program("generate", "hello", "--model", model, *ENDLESS))
    assert program.process.stdout is not None
    program.process.stdout.read(20)
    program.interrupt()
    _, errors = program.process.communicate()
    assert program.process.returncode == 130
    assert errors == b""


def test_a_reader_that_leaves_ends_the_program_quietly(programs: list[Program], model: str) -> None:
    programs.append(program := Program("generate", "hello", "--model", model, *ENDLESS))
    assert program.process.stdout is not None
    assert program.process.stderr is not None
    program.process.stdout.read(20)
    program.process.stdout.close()
    assert program.process.wait() == 141
    assert program.process.stderr.read() == b""


def test_an_interrupt_ends_an_answer_and_the_next_one_the_conversation(
    programs: list[Program], model: str
) -> None:
    prompt_only = ("--bad-word", ">")
    programs.append(program := Program("chat", "--model", model, *ENDLESS, *prompt_only, terminal=True))
    for message in ("hello", "and then?"):
        program.read_until("> $")
        program.type(message + "\n")
        program.read_until(re.escape(message) + r"\s+[^>]{20}")
        program.interrupt()
    program.read_until("> $")
    assert program.end_by_interrupt() == 130


def test_the_end_of_input_ends_a_conversation(programs: list[Program], model: str) -> None:
    programs.append(program := Program("chat", "--model", model, terminal=True))
    program.read_until("> $")
    program.type("\x04")
    assert program.process.wait() == 0
