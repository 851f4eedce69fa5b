"""What the documents say is true: their examples run, their links lead somewhere, their flags exist."""

from __future__ import annotations

import functools
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

import surefoot.loading
from surefoot.cli import main, parser
from surefoot.commands.options import SAMPLING_FLAGS
from surefoot.trace import Stats
from tests.models_fixture import smollm2_path
from tests.threads import one_thread

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGER = "qwen"
SERVE = "surefoot serve"  # these run in tests/test_server_examples.py, with what asks a server
SERVER = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Command:
    """A line after `$`, and what stands under it."""

    document: str
    line: str
    output: str

    def __str__(self) -> str:
        return f"{self.document}: {self.line}"


def blocks(document: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(document.read_text()) if found == language]


def commands() -> Iterator[Command]:
    for document in DOCUMENTS:
        for block in blocks(document, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                yield Command(document.name, line, output)


def parameter(command: Command) -> object:
    marks = [pytest.mark.models] if LARGER in command.line else []
    return pytest.param(command, id=str(command), marks=marks)


def is_run(command: Command) -> bool:
    return "surefoot " in command.line and SERVE not in command.line


def examples(document: Path) -> list[str]:
    """Those in Python that need no server; server.md's lean on one another."""
    found = [] if document.name == "server.md" else blocks(document, "python")
    return [block for block in found if SERVER not in block]


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Examples share what they load."""
    smollm2_path()
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(surefoot.loading, "load_model", functools.cache(surefoot.loading.load_model))
        yield


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that examples read."""
    (tmp_path / "notes.txt").write_text("Name three rivers.\n")
    (tmp_path / "README.md").write_text("# A short file\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", [parameter(c) for c in commands() if is_run(c)])
def test_a_command_runs(
    command: Command, desk: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feeder, _, line = command.line.rpartition(" | ")
    fed = subprocess.run(["bash", "-c", feeder], capture_output=True, check=True).stdout
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(fed)))
    program, *arguments = shlex.split(line)
    assert Path(program).name == "surefoot"
    assert main(arguments) == 0
    if command.output:
        assert capsys.readouterr().out.strip() == command.output.strip()


def test_a_script_that_is_named_can_be_run() -> None:
    named = [command.line for command in commands() if command.line.startswith("scripts/")]
    assert named == ["scripts/demo", "scripts/test", "scripts/build-wheels"]
    assert all(os.access(ROOT / name, os.X_OK) for name in named)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if examples(d)], ids=lambda d: d.name)
def test_the_python_examples_run(document: Path) -> None:
    names: dict[str, object] = {}
    for block in examples(document):
        exec(compile(block, str(document), "exec"), names)


def test_the_first_python_example_is_five_lines() -> None:
    example = blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in example.splitlines() if line]) <= 5


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_a_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_flag_that_is_named_exists() -> None:
    known = {flag.name for flag in SAMPLING_FLAGS} | set(re.findall(r"--[a-z-]+", help_of_everything()))
    elsewhere = {"--strict", "--models"}  # of mypy and scripts/test
    elsewhere |= {"--peer", "--requests", "--repetitions", "--rate"}  # of benchmarks
    elsewhere |= {"--port", "--spec-type", "--speculative-config"}  # of llama-server and vLLM
    for document in DOCUMENTS:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", document.read_text()))
        assert named <= known | elsewhere, document.name


def help_of_everything() -> str:
    top = parser()
    assert top._subparsers is not None
    [action] = [a for a in top._subparsers._group_actions if a.dest == "command"]
    assert isinstance(action.choices, dict)
    return "".join([top.format_help(), *(command.format_help() for command in action.choices.values())])


def test_every_number_of_the_object_is_explained() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for field in fields(Stats):
        assert f"`{field.name}`" in text, field.name
