"""`surefoot serve` as a process: it starts, says so, and ends as it is told."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot import trace
from surefoot.cli import main
from tests.models_fixture import smollm2_path
from tests.tiny import tiny_gguf

PATIENCE = 120  # seconds; only a hang takes so long
COMPLETIONS = "/v1/completions"
SHORT = {"prompt": "hello", "max_tokens": 5, "seed": 1}
ENDLESS = {"prompt": "hello", "max_tokens": 90_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose context an answer can fill for minutes."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return str(tiny_gguf("llama", path, max_position_embeddings=100_000))


@dataclass
class Running:
    """A server that serves. printed: its standard error until it did. logged: the lines from then on, which
    are read as they come: a full pipe would hold up the server."""

    process: subprocess.Popen[str]
    url: str
    printed: str
    logged: Future[list[str]]

    def ask(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + COMPLETIONS, json=body, timeout=PATIENCE)

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code, and the log."""
        log = [json.loads(line) for line in self.logged.result(PATIENCE)]
        return self.process.wait(PATIENCE), log


@contextmanager
def serving(*flags: str, port: int = 0) -> Iterator[Running]:
    command = [sys.executable, "-m", "surefoot", "serve", "--port", str(port), "--threads", "1", *flags]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(1) as reader,
    ):
        clock = threading.Timer(PATIENCE, process.kill)
        clock.start()
        try:
            assert process.stderr
            printed, found = "", None
            while found is None:
                line = process.stderr.readline()
                assert line, f"it ended: {printed}"
                printed += line
                found = re.fullmatch(r"surefoot: serving .+ on (http://127\.0\.0\.1:\d+)\n", line)
            yield Running(process, found[1], printed, reader.submit(process.stderr.readlines))
        finally:
            clock.cancel()
            process.kill()


@contextmanager
def streaming(running: Running, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The lines of a stream, of which the first has come."""
    asked = {**body, "stream": True}
    with httpx.stream("POST", running.url + COMPLETIONS, json=asked, timeout=PATIENCE) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def test_it_serves_smollm2_and_lets_an_answer_finish(tmp_path: Path) -> None:
    smollm2_path()
    with serving("--trace", str(tmp_path / "trace")) as running:
        assert 'model = "smollm2-135m-instruct"' in running.printed
        asked = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=asked, timeout=PATIENCE).json()
        assert answer["usage"]["completion_tokens"] > 0
        with streaming(running, {"prompt": "Once", "max_tokens": 40, "ignore_eos": True}) as lines:
            running.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        code, log = running.end()
    assert code == 0
    assert [line["event"] for line in log] == ["request", "closing", "request"]
    assert len({event.request for event in trace.read(tmp_path / "trace")}) == 2


def test_what_goes_on_past_the_grace_gets_an_end(model: str) -> None:
    with (
        serving("--model", model, "--grace", "0") as running,
        ThreadPoolExecutor() as threads,
        streaming(running, ENDLESS) as lines,
    ):
        whole = threads.submit(running.ask, ENDLESS)
        metrics = ""
        while 'num_requests_running{model_name="' + model + '"} 2.0' not in metrics:
            metrics = httpx.get(f"{running.url}/metrics", timeout=PATIENCE).text
        running.process.send_signal(signal.SIGINT)
        last = [line for line in lines if line][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503
        assert whole.result(PATIENCE).status_code == 503
        code, log = running.end()
    assert code == 0
    [closing] = [line for line in log if line["event"] == "closing"]
    assert (closing["reason"], closing["running"], closing["grace"]) == ("SIGINT", 2, 0)


def test_a_log_longer_than_a_pipe_holds_up_nobody(model: str) -> None:
    """Of this file's own `serving`."""
    with serving("--model", model) as running, httpx.Client(timeout=PATIENCE) as client:
        for _ in range(20):
            path = "/" + "a" * 10_000
            assert client.get(running.url + path).status_code == 404
        running.process.send_signal(signal.SIGTERM)
        code, log = running.end()
    assert code == 0
    assert sum(len(line.get("path", "")) for line in log) > 2 * 65_536


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(model: str, number: signal.Signals) -> None:
    with serving("--model", model, "--grace", "1000") as running, streaming(running, ENDLESS) as lines:
        running.process.send_signal(number)
        while httpx.get(f"{running.url}/health", timeout=PATIENCE).status_code != 503:
            pass
        running.process.send_signal(number)
        assert running.process.wait(PATIENCE) == -number
        with pytest.raises(httpx.TransportError):
            list(lines)


def test_killed_under_load_its_clients_are_told_and_the_next_one_serves(model: str) -> None:
    with serving("--model", model) as running:
        port = int(running.url.rpartition(":")[2])
        with ThreadPoolExecutor(8) as threads, streaming(running, ENDLESS) as lines:
            asked = [threads.submit(running.ask, ENDLESS) for _ in range(6)]
            running.process.kill()
            for each in asked:
                assert isinstance(each.exception(PATIENCE), httpx.TransportError)
            with pytest.raises(httpx.TransportError):
                list(lines)
    with serving("--model", model, port=port) as again:
        assert again.ask(SHORT).status_code == 200
        again.process.send_signal(signal.SIGTERM)
        assert again.end()[0] == 0


def test_settings_come_from_a_file_and_are_printed_without_the_key(model: str, tmp_path: Path) -> None:
    config, key = tmp_path / "serve.toml", tmp_path / "key"
    key.write_text("hush-hush\n")
    config.write_text(
        f'model = "{model}"\nserved_model_name = ["tiny", "small"]\nmax_requests = 3\ngrace = 0\n'
        f'api_key_file = "{key}"\n'
    )
    with serving("--config", str(config), "--max-requests", "2") as running:
        for line in ('served_model_name = ["tiny", "small"]', "max_requests = 2", 'api_key = "(given)"'):
            assert f"  {line}\n" in running.printed
        assert "hush-hush" not in running.printed
        assert "surefoot: serving tiny, small on " in running.printed
        [told] = re.findall(r"^surefoot: .*; context .*$", running.printed, re.MULTILINE)
        assert re.search(
            r"precision \w+ by \w+; context \d+ tokens; drafts by ngram, 15 tokens at most; ", told
        )
        [started] = [json.loads(line) for line in running.printed.splitlines() if line.startswith("{")]
        assert (started["event"], started["url"]) == ("started", running.url)
        assert told.endswith(f" for keys and values, {started['kv_tokens']} tokens")
        assert running.ask(SHORT).status_code == 401
        running.process.send_signal(signal.SIGTERM)
        assert running.end()[0] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "no.such.host.invalid"], "surefoot: host: 'no.such.host.invalid' is unknown: "),
        (["--host", "203.0.113.1"], "surefoot: port: 8000 of 203.0.113.1 can't be had: "),
        (["--port", "70000"], "surefoot: port: 70000 is out of range; allowed is [0, 65535]"),
        (["--max-queue", "-1"], "surefoot: max_queue: -1 is out of range; allowed is 0 or more"),
        (["--draft-tokens", "600"], "surefoot: draft_tokens: 600 is out of range; 512 rows allow 511"),
        (["--config", "/no/such/file"], "surefoot: config: /no/such/file can't be read: "),
    ],
)
def test_a_mistake_is_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    assert main(["serve", "--model", model, *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str], model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--model", model, "--port", str(port)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"surefoot: port: {port} of 127.0.0.1 can't be had: Address already in use")
