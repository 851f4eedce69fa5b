"""Bad input: exit code 2 and one line that names the thing, the value and the limit."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from surefoot.cli import main
from surefoot.models import pull
from tests.threads import one_thread
from tests.tiny import tiny_checkpoint_folder, tiny_gguf

HERE = Path(__file__)
FULL = Path("/dev/full")

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good model in each format, and with what can be wrong with them."""
    shelf = tmp_path_factory.mktemp("shelf")
    good = tiny_gguf("llama", shelf / "good.gguf").read_bytes()
    (shelf / "truncated.gguf").write_bytes(good[: len(good) * 2 // 3])
    (shelf / "damaged.gguf").write_bytes(good[:24] + b"\xff" * 200 + good[224:])
    (shelf / "noise.gguf").write_bytes(b"no model at all" * 100)
    folder = tiny_checkpoint_folder("llama", shelf)
    for name in ("truncated", "damaged", "pickled", "unsupported", "other-tokenizer", "no-template"):
        shutil.copytree(folder, shelf / name)
    weights = (folder / "model.safetensors").read_bytes()
    (shelf / "truncated" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    (shelf / "damaged" / "model.safetensors").write_bytes(b"\x10" * 8 + weights[8:])
    (shelf / "pickled" / "model.safetensors").rename(shelf / "pickled" / "pytorch_model.bin")
    swap(shelf / "unsupported" / "config.json", "LlamaForCausalLM", "MambaForCausalLM")
    swap(shelf / "unsupported" / "config.json", '"llama"', '"mamba"')
    swap(shelf / "other-tokenizer" / "tokenizer.json", '"A":', '"B":')
    (shelf / "no-template" / "chat_template.jinja").unlink()
    (shelf / "pickled.pt").write_bytes(b"\x80\x02}q\x00.")
    (shelf / "latin1.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (shelf / "empty.txt").touch()
    return shelf


def swap(path: Path, one: str, other: str) -> None:
    """Writes each of two texts where the other one stood."""
    text = path.read_text()
    assert one in text
    path.write_text(other.join(part.replace(other, one) for part in text.split(one)))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that a command line is refused with."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.startswith("surefoot: ")
    assert captured.err.count("\n") == 1
    return captured.err


MODELS = {
    "nowhere": ["unknown model 'nowhere'", "smollm2-135m-instruct"],
    "smollm2-135m-instruct": ["smollm2-135m-instruct is not here", "surefoot pull"],
    "truncated.gguf": ["truncated.gguf", "truncated"],
    "damaged.gguf": ["damaged.gguf"],
    "noise.gguf": ["noise.gguf"],
    "truncated": ["truncated"],
    "damaged": ["damaged"],
    "pickled": ["pytorch_model.bin", "refused", "safetensors"],
    "pickled.pt": ["pickled.pt", "refused", "safetensors"],
    "unsupported": ["Mamba", "llama", "qwen2"],
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_cannot_be_loaded(shelf: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = shelf / name
    line = complaint(capsys, "generate", "hello", "--model", str(path) if path.exists() else name)
    for word in MODELS[name]:
        assert word.lower() in line.lower()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draft", "other-tokenizer"], ["tokenizers", "'A'", "'B'"]),
        (["--draft", "nowhere"], ["unknown model 'nowhere'"]),
        (["--draft-tokens", "-1"], ["draft_tokens", "-1", "0 or more"]),
        (["--threads", "0"], ["threads: 0", "[1, 1024]"]),
        (["--threads", "99999999999"], ["threads: 99999999999", "[1, 1024]"]),
        (["--trace", "no/such/folder/file"], ["trace", "no/such/folder/file"]),
        (["--raw", "--stop-token-id", "100000"], ["stop_token_ids", "100000", "262"]),
        (["--raw", "--logit-bias", "100000=1"], ["logit_bias", "100000", "262"]),
    ],
)
def test_a_setting_that_does_not_fit_the_model(
    shelf: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    placed = [str(shelf / word) if (shelf / word).is_dir() else word for word in arguments]
    line = complaint(capsys, "generate", "hello", "--model", str(shelf / "tiny-llama"), *placed)
    for word in words:
        assert word in line


def test_a_prompt_longer_than_the_context(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "generate", "x" * 300, "--raw", "--model", str(shelf / "good.gguf"))
    assert "prompt: 300 tokens" in line
    assert "256" in line


def test_a_model_without_a_template(shelf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "generate", "hello", "--model", str(shelf / "no-template"))
    assert "no chat template" in line
    assert "--raw" in line


@pytest.mark.parametrize(
    ("flag", "value", "limit"),
    [
        ("--max-tokens", "0", "1"),
        ("--temperature", "-0.5", "100"),
        ("--temperature", "nan", "100"),
        ("--top-p", "0", "1"),
        ("--top-p", "1.5", "1"),
        ("--top-k", "-1", "0"),
        ("--min-p", "2", "1"),
        ("--repetition-penalty", "0", "100"),
        ("--presence-penalty", "3", "2"),
        ("--frequency-penalty", "-3", "2"),
        ("--logit-bias", "5=1000", "100"),
        ("--min-tokens", "-1", "256"),
        ("--seed", "-1", "18446744073709551615"),
        ("--n", "0", "128"),
        ("--logprobs", "50", "20"),
    ],
)
def test_a_parameter_out_of_range(
    flag: str, value: str, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "generate", "hello", "--json", f"{flag}={value}")
    assert flag.removeprefix("--").replace("-", "_") in line
    assert value.rpartition("=")[2] in line
    assert limit in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND", "--help"]),
        (["translate"], ["translate", "generate"]),
        (["generate"], ["PROMPT"]),
        (["generate", "hello", "--top-k", "many"], ["--top-k", "'many'", "whole number"]),
        (["generate", "hello", "--top-p", "most"], ["--top-p", "'most'", "number"]),
        (["generate", "hello", "--logit-bias", "7"], ["--logit-bias", "'7'", "ID=BIAS"]),
        (
            ["generate", "hello", "--model", "nowhere", "--draft-tokens", "-1"],
            ["draft_tokens: -1", "0 or more"],
        ),
        (["generate", "hello", "--model", "nowhere", "--draft-tokens", "512"], ["draft_tokens: 512", "511"]),
        (["generate", "hello", "--verify", "hope"], ["--verify", "hope", "coupled"]),
        (["generate", "hello", "--precision", "int3"], ["--precision", "int3", "int8"]),
        (["generate", "hello", "--max-tok", "5"], ["--max-tok", "surefoot generate --help"]),
        (["generate", "hello", "--stop="], ["stop", "at least 1"]),
        (["generate", "hello", "--logprobs", "3"], ["--logprobs", "3", "--json"]),
        (["generate", ""], ["prompt", "at least 1"]),
        (["generate", "@no/such/file"], ["no/such/file", "No such file"]),
        (
            ["generate", "@alice says hi"],
            ["'alice says hi'", "if it is the prompt", "use - and standard input"],
        ),
        (["generate", f"@{HERE.parent}"], [HERE.parent.name, "directory"]),
        (["chat", "--n", "2"], ["--n"]),
        (["pull", "nowhere"], ["unknown model 'nowhere'"]),
        (["check-rule", "0.5,0.4", "0.5,0.5"], ["target", "9/10", "1"]),
        (["check-rule", "-0.5,1.5", ".5,.5"], ["target: -1/2 is negative"]),
        (["check-rule", ".5,.5", "-.5,1.5"], ["draft: -1/2 is negative"]),
        (["check-rule", "0.5,half", "0.5,0.5"], ["target", "'half'"]),
        (["check-rule", "1", "0.5,0.5"], ["draft", "2", "1"]),
    ],
)
def test_a_command_line_that_makes_no_sense(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, *arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("name", "words"), [("latin1.txt", ["byte 3", "0xe9", "UTF-8"]), ("empty.txt", ["empty"])]
)
def test_a_prompt_file_that_is_no_prompt(
    shelf: Path, name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "generate", f"@{shelf / name}")
    for word in words:
        assert word in line


def test_a_prompt_that_is_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert "UTF-8" in complaint(capsys, "generate", "caf\udce9")  # as Python hands on a Latin-1 argument


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ["disk", "full"]),
        (PermissionError(errno.EACCES, "Permission denied"), ["Permission denied"]),
    ],
)
def test_a_disk_that_fails_while_pulling(
    error: OSError, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing:
        def snapshot(self, repository: str, folder: Path, expect: Callable[[int], None]) -> None:
            raise error

    monkeypatch.setattr(pull, "NetworkDownloads", Failing)
    line = complaint(capsys, "pull", "smollm2-135m-instruct")
    for word in ["smollm2-135m-instruct", *words]:
        assert word in line


def test_a_cache_that_cannot_be_written(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREFOOT_HOME", str(shelf / "empty.txt"))
    assert "empty.txt" in complaint(capsys, "pull", "smollm2-135m-instruct")


def test_a_message_of_many_lines_becomes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str, progress: object) -> Path:
        raise OSError("first\nsecond")

    monkeypatch.setattr(pull, "pull", fail)
    assert complaint(capsys, "pull", "anything") == "surefoot: first second\n"


def onto_a_full_disk(*arguments: str) -> subprocess.CompletedProcess[str]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "surefoot", *arguments]
        return subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=buffered)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [["models"], ["check-rule", "1", "1"]])
def test_standard_output_on_a_full_disk_is_named(arguments: list[str]) -> None:
    ran = onto_a_full_disk(*arguments)
    assert ran.returncode == 2
    assert ran.stderr == "surefoot: standard output: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_text_that_comes_bit_by_bit_on_a_full_disk(shelf: Path) -> None:
    ran = onto_a_full_disk(
        "generate", "hello", "--raw", "--max-tokens", "9", "--ignore-eos", "--model", str(shelf / "good.gguf")
    )
    assert ran.returncode == 2
    assert ran.stderr.endswith("surefoot: standard output: No space left on device\n")
    assert "Traceback" not in ran.stderr
