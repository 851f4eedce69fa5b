"""The examples that ask a server run: commands start one, and clients get answers of it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from surefoot.cli import parser
from tests.models_fixture import SMOLLM2, smollm2_path
from tests.server_tables import DOCUMENT
from tests.test_docs import LARGER, ROOT, SERVE, blocks, commands
from tests.test_docs import SERVER as URL

README = ROOT / "README.md"
CODER = "qwen2.5-coder-0.5b-instruct"
LINES = [
    command.line
    for command in commands()
    if command.document == DOCUMENT.name or SERVE in command.line or URL in command.line
]
FIRST, *EXAMPLES = blocks(DOCUMENT, "python")


@contextmanager
def server(model: str, *names: str) -> Iterator[str]:
    """The program itself, with a model by several names; it must end well when it is told to."""
    flags = [part for name in names for part in ("--served-model-name", name)]
    command = [sys.executable, "-m", "surefoot", "serve", "--model", model, "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            told = (re.search(r"serving .* on (http:\S+)", line) for line in running.stderr)
            url = next((found[1] for found in told if found), None)
            assert url, f"the server ended with {running.wait()}"
            yield url
            running.send_signal(signal.SIGTERM)
            assert "Traceback" not in running.communicate(timeout=60)[1]
            assert running.returncode == 0
        finally:
            running.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    smollm2_path()
    with server(SMOLLM2, SMOLLM2) as started:
        yield started


@pytest.mark.parametrize("line", [line for line in LINES if SERVE in line])
def test_a_server_is_started_by_flags_that_exist(line: str) -> None:
    parser().parse_args(shlex.split(line)[1:])


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("curl ")])
def test_a_request_by_curl_is_answered(line: str, url: str) -> None:
    ran = subprocess.run(["bash", "-c", line.replace(URL, url)], capture_output=True, check=True, timeout=60)
    [choice] = json.loads(ran.stdout)["choices"]
    assert choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("example", [block for block in blocks(README, "python") if URL in block])
def test_an_example_of_the_readme_runs(example: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(example, url=url)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("example", [block for block in EXAMPLES if LARGER not in block])
def test_a_python_example_runs(example: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(FIRST, example, url=url)
    assert capsys.readouterr().out.strip()


@pytest.mark.models
@pytest.mark.parametrize("example", [block for block in EXAMPLES if LARGER in block])
def test_a_python_example_of_a_larger_model_runs(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with server(CODER, CODER, SMOLLM2) as url:
        run(FIRST, example, url=url)
    said = capsys.readouterr().out
    assert isinstance(json.loads(said[said.rindex("{") :])["city"], str)


def run(*examples: str, url: str) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for example in examples:
        exec(compile(example.replace(URL, url), str(DOCUMENT), "exec"), names)


def test_the_document_names_the_places_of_the_default() -> None:
    text = DOCUMENT.read_text()
    assert text.count(URL) >= 3
    assert len(LINES) == 5  # three of server.md, two of the README
