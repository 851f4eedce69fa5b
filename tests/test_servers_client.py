"""Servers that drop connections, are busy or refuse; journals that go on where a run broke off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.audit.budget import Budget
from surefoot.audit.servers.audit import audit_servers, record_server
from surefoot.audit.servers.client import Client, RefusedError
from surefoot.audit.servers.journal import Journal
from surefoot.audit.servers.plan import ServerPlan, Side
from surefoot.types import SurefootError
from tests.scripted_server import WORDS, Running, Script, serving

BODY = {"prompt": "tell me", "max_tokens": 8, "temperature": 0.0}
PLAN = ServerPlan(tuple(f"tell me about{word}" for word in WORDS[:6]), max_tokens=8, samples=2)
EVERY = frozenset(range(1000))


def never(seconds: float) -> None:
    """Takes the place of waiting."""


def client(running: Running, retries: int = 3) -> Client:
    return Client(running.url, api_key=None, retries=retries, timeout=60.0, wait=never)


def faulty(fault: str, requests: frozenset[int]) -> Script:
    return Script(drop=requests) if fault == "drop" else Script(busy=requests)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["drop", "busy"])
def test_a_call_that_breaks_off_is_made_again(stream: bool, fault: str) -> None:
    with serving(Script()) as honest:
        expected = client(honest).ask("/v1/completions", BODY | {"stream": stream})["choices"][0]["text"]
    script = faulty(fault, frozenset({0, 1}))
    waits: list[float] = []
    with serving(script) as running:
        asking = Client(running.url + "/v1/", api_key="key", retries=2, timeout=60.0, wait=waits.append)
        answer = asking.ask("/v1/completions", BODY | {"stream": stream})
        asking.close()
    assert answer["choices"][0]["text"] == expected
    assert waits == [0.5, 1.0]


@pytest.mark.parametrize(
    ("fault", "stream", "said"),
    [("busy", False, "503"), ("drop", False, "RemoteProtocolError"), ("drop", True, "broke off")],
)
def test_a_server_that_never_answers_is_named(fault: str, stream: bool, said: str) -> None:
    with serving(faulty(fault, EVERY)) as running:
        with pytest.raises(SurefootError, match=rf"{running.url}/v1/completions: .*{said}.*after 3 attempts"):
            client(running, retries=2).ask("/v1/completions", BODY | {"stream": stream})
        assert len(running.bodies) == 3


def test_a_refusal_is_not_asked_again() -> None:
    with serving(Script(strict=True)) as running:
        with pytest.raises(RefusedError, match=r"status 400.*unknown fields \['top_k'\]"):
            client(running).ask("/v1/completions", BODY | {"top_k": 1})
        assert len(running.bodies) == 1


def test_nobody_listening_is_named() -> None:
    with serving(Script()) as running:
        gone = running.url
    with pytest.raises(SurefootError, match=f"{gone}/v1/models: ConnectError"):
        audit_servers(Side(gone), Side(gone), PLAN, Budget(), never)


def test_the_only_model_is_taken_and_others_are_listed() -> None:
    with serving(Script(models=("one", "two"))) as running:
        with pytest.raises(SurefootError, match=r"serves 2 models \(one, two\); name one"):
            audit_servers(Side(running.url), Side(running.url), PLAN, Budget(), never)
        audit_servers(Side(running.url), Side(running.url), replace(PLAN, model="two"), Budget(), never)
        assert {body["model"] for body in running.bodies} == {"two"}


def test_an_audit_survives_dropped_connections() -> None:
    flaky = Script(drop=frozenset(range(0, 1000, 3)), busy=frozenset(range(1, 1000, 7)))
    with serving(flaky) as plain, serving(flaky) as other:
        report = audit_servers(Side(other.url), Side(plain.url), replace(PLAN, retries=20), Budget(), never)
    assert [check.verdict for check in report.checks[:2]] == ["pass", "pass"]


def test_a_run_that_broke_off_goes_on_from_its_journal(tmp_path: Path) -> None:
    """What was answered is not asked again, and the report is the one of a run in one piece."""
    path = tmp_path / "journal.jsonl"
    plan = replace(PLAN, samples=1)  # so that no request is made twice: what is drawn depends on how often
    with serving(Script()) as plain, serving(Script(seed=1)) as other:
        whole = audit_servers(Side(other.url), Side(plain.url), plan, Budget(), never)
        asked = len(plain.bodies) + len(other.bodies)
    with serving(Script()) as plain, serving(Script(seed=1, drop=frozenset(range(12, 100)))) as other:
        with pytest.raises(SurefootError, match="RemoteProtocolError"):
            audit_servers(
                Side(other.url, path), Side(plain.url, path), replace(plan, retries=0), Budget(), never
            )
        before = len(plain.bodies) + 12
    kept = path.read_text()
    path.write_text(kept + '{"key": "half a li')
    with serving(Script()) as plain, serving(Script(seed=1)) as other:
        again = audit_servers(Side(other.url, path), Side(plain.url, path), plan, Budget(), never)
        after = len(plain.bodies) + len(other.bodies)
    assert before > 30
    assert before + after == asked
    assert path.read_text().startswith(kept)
    assert [json.loads(line) for line in path.read_text().splitlines()]
    assert again.checks == whole.checks


def test_a_recorded_server_takes_part_without_its_server(tmp_path: Path) -> None:
    path = tmp_path / "speculative.jsonl"
    with serving(Script(seed=1)) as other:
        recording = record_server("speculative", Side(other.url, path), PLAN, Budget(), never)
    assert (recording.calls, recording.answered) == (18, 18)
    with serving(Script()) as plain:
        report = audit_servers(Side(journal=path), Side(plain.url), PLAN, Budget(), never)
    assert [check.verdict for check in report.checks[:2]] == ["pass", "pass"]
    assert [check.name for check in report.checks[2:]] == [
        "the plain server's own samples",
        "sampled tokens, scored",
    ]
    with pytest.raises(SurefootError, match="holds no answers of a plain server"):
        audit_servers(Side(journal=path), Side(journal=path), PLAN, Budget(), never)


def test_a_recorded_plain_server_leaves_texts_to_compare(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    with serving(Script()) as plain:
        recording = record_server("plain", Side(plain.url, path), PLAN, Budget(), never)
        assert recording.answered == recording.calls == 36
    with serving(Script(seed=1)) as other:
        report = audit_servers(Side(other.url), Side(journal=path), PLAN, Budget(), never)
    assert report.checks[1].verdict == "pass"
    assert "compared as texts: the plain server is only a recording" in report.checks[3].details


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": 9}, "max_tokens 8, this run has 9"),
        ({"chat": True}, "api 'completions', this run has 'chat'"),
        ({"temperature": 0.5}, "temperature 1.0, this run has 0.5"),
        ({"prompts": ("other",)}, "prompts"),
        ({"model": "other"}, "model None, this run has 'other'"),
    ],
)
def test_a_journal_of_other_settings_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    path = tmp_path / "journal.jsonl"
    with serving(Script()) as running:
        record_server("plain", Side(running.url, path), PLAN, Budget(), never)
        with pytest.raises(SurefootError, match=f"{path}: recorded with {named}"):
            record_server("plain", Side(running.url, path), replace(PLAN, **changes), Budget(), never)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "named"), [('{"a": 1}\n', "not a journal"), ("hello\n", "not JSON")])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(SurefootError, match=named):
        Journal(path, {})
    assert path.read_text() == text


def test_journals_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(SurefootError, match="no such file"):
        audit_servers(Side(journal=tmp_path / "none"), Side(journal=tmp_path / "none"), PLAN, Budget(), never)
    with pytest.raises(SurefootError, match=f"journal {tmp_path}: "):
        Journal(tmp_path, {})
    journal = Journal(tmp_path / "missing" / "journal", {})
    with pytest.raises(SurefootError, match="No such file or directory"):
        journal.add("key", 1)


def test_a_side_needs_a_server_or_a_journal(tmp_path: Path) -> None:
    with pytest.raises(SurefootError, match="needs a url, or the journal"):
        Side()
    with pytest.raises(SurefootError, match="'localhost:8000' starts with neither"):
        Side("localhost:8000")
    with pytest.raises(SurefootError, match="its url and a journal are needed"):
        record_server("plain", Side("http://localhost:1"), PLAN, Budget(), never)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"prompts": ()}, "prompts: none given"),
        ({"concurrency": 0}, "concurrency: 0"),
        ({"samples": -1}, "samples: -1"),
        ({"alpha": 1.0}, "alpha: 1.0"),
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"tie_gap": float("nan")}, "tie_gap: nan"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(SurefootError, match=named):
        replace(PLAN, **changes)  # type: ignore[arg-type]


def test_a_spent_budget_ends_the_asking() -> None:
    """Nothing more is asked, and the verdict says that too little was seen."""
    with serving(Script()) as plain, serving(Script()) as other:
        report = audit_servers(Side(other.url), Side(plain.url), PLAN, Budget(tokens=60), never)
        # Ordinary answers have 8 tokens each; what was under way when the budget ended still comes.
        answers = [body for body in plain.bodies + other.bodies if body.get("max_tokens") == 8]
    assert len(answers) <= 60 // 8 + 1 + PLAN.concurrency
    assert report.verdict == "undecided"
