"""`surefoot audit`: which audit is run, and with what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.audit import prompts as audit_prompts
from surefoot.audit.assisted import AssistedPlan
from surefoot.audit.budget import Budget
from surefoot.audit.report import EXIT_CODES, Verdict
from surefoot.audit.servers.audit import Recording
from surefoot.audit.servers.plan import ServerPlan, Side
from surefoot.audit.subject import Plan, Subject
from surefoot.cli import main, parser
from surefoot.commands.audit_flags import MAX_TOKENS, SAMPLED
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.types import VERIFY_MODES, SamplingParams, VerifyMode
from tests.audits import Audits, report, stand_in
from tests.scripted_server import CHOSEN, Place, Script, honest, serving
from tests.test_cli_flags import SAMPLES
from tests.threads import one_thread
from tests.tiny import tiny_gguf

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf("llama", tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Audits:
    return stand_in(monkeypatch)


@dataclass(frozen=True)
class Own:
    subject: Subject
    plan: Plan
    budget: Budget


def own(audits: Audits, model: str, *arguments: str) -> Own:
    """What the audit of our own engine is asked for."""
    assert main(["audit", "--model", model, "--precision", "fp32", *arguments]) == 0
    return Own(*audits.asked)


# --- our own engine


def test_nothing_given_audits_coupled_ngram_with_the_built_in_prompts(audits: Audits, model: str) -> None:
    asked = own(audits, model)
    assert asked.subject.verify == "coupled"
    assert asked.subject.name == f"{model} (fp32 by pytorch), drafts by ngram"
    assert isinstance(asked.subject.drafter(), NgramDrafter)
    assert len(asked.plan.prompts) == len(audit_prompts.PROMPTS)
    assert asked.plan == Plan(asked.plan.prompts, SamplingParams(max_tokens=MAX_TOKENS))


def test_suffix_drafts_are_audited_as_they_are_named(audits: Audits, model: str) -> None:
    asked = own(audits, model, "--draft", "suffix")
    assert asked.subject.name == f"{model} (fp32 by pytorch), drafts by suffix"
    assert isinstance(asked.subject.drafter(), SuffixDrafter)


def test_a_draft_model_is_loaded_once_and_drafted_with_anew(audits: Audits, model: str) -> None:
    asked = own(audits, model, "--draft", model)
    one, other = asked.subject.drafter(), asked.subject.drafter()
    assert isinstance(one, ModelDrafter)
    assert isinstance(other, ModelDrafter)
    assert one is not other
    assert one.model is other.model


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_the_rule_reaches_the_audit(audits: Audits, model: str, mode: VerifyMode) -> None:
    assert own(audits, model, "--verify", mode).subject.verify == mode


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["--draft-tokens", "3"], {"draft_tokens": (3,)}),
        (["--alpha", "0.05"], {"alpha": 0.05}),
        (["--detect", "0.02"], {"detect": 0.02}),
        (["--seed", "18446744073709551615"], {"seed": 2**64 - 1}),
    ],
)
def test_a_setting_reaches_the_plan(
    audits: Audits, model: str, arguments: list[str], change: dict[str, Any]
) -> None:
    plan = own(audits, model, *arguments).plan
    assert plan == replace(Plan(plan.prompts, SamplingParams(max_tokens=MAX_TOKENS)), **change)


@pytest.mark.parametrize("name", SAMPLED["own"])
def test_a_sampling_parameter_reaches_the_plan(audits: Audits, model: str, name: str) -> None:
    arguments, value = SAMPLES[name]
    expected = replace(SamplingParams(max_tokens=MAX_TOKENS), **{name: value})
    assert own(audits, model, *arguments).plan.params == expected


def test_prompts_come_from_a_file_as_messages(audits: Audits, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello"}\n"two\\nlines"\n')
    asked = own(audits, model, "--prompts", str(file))
    tokenizer = asked.subject.tokenizer
    assert tokenizer is not None
    assert asked.plan.prompts == audit_prompts.encode(("hello", "two\nlines"), tokenizer, chat=True)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("60s", 60), ("2m", 120), ("1.5h", 5400)])
def test_a_budget(text: str, seconds: float) -> None:
    assert parser().parse_args(["audit", "--budget", text]).budget == seconds


def test_the_budget_is_the_one_given(audits: Audits, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 145.0])
    monkeypatch.setattr(
        "surefoot.commands.audit_progress.Budget", lambda seconds: Budget(seconds, clock=lambda: next(clock))
    )
    assert own(audits, model, "--budget", "90s").budget.used == 0.5


def test_a_machine_where_the_promise_fails_is_told_so(
    audits: Audits, model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import surefoot.loading

    load = surefoot.loading.load_model
    monkeypatch.setattr(
        "surefoot.loading.load_model",
        lambda *a, **k: replace(load(*a, **k), inexact="attention differs"),
    )
    own(audits, model, "--json")
    captured = capsys.readouterr()
    assert captured.err.count("attention differs") == 1
    json.loads(captured.out)


@pytest.mark.parametrize("mode", VERIFY_MODES)
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_real_audit_finds_nothing(model: str, mode: str, temperature: str, capsys: Capture) -> None:
    arguments = ["--model", model, "--draft", model, "--precision", "fp32", "--verify", mode]
    short = ["--budget", "0.5s", "--max-tokens", "6", "--temperature", temperature, "--json"]
    code = main(["audit", *arguments, *short])
    found = json.loads(capsys.readouterr().out)
    assert code == found["exit_code"]
    assert code in (0, 3)
    assert len(found["checks"]) == (1 if temperature == "0" else 2)
    assert found["settings"]["verify"] == mode


# --- transformers


def transformers(audits: Audits, *arguments: str) -> tuple[str, str | None, AssistedPlan, Budget]:
    assert main(["audit", "--transformers", "some/model", *arguments]) == 0
    target, assistant, plan, budget = audits.asked
    return target, assistant, plan, budget


def test_transformers_is_asked_for_both_models(audits: Audits) -> None:
    target, assistant, plan, _ = transformers(audits, "--assistant", "smaller")
    assert (target, assistant) == ("some/model", "smaller")
    assert plan == AssistedPlan(audit_prompts.PROMPTS, max_tokens=MAX_TOKENS)
    assert transformers(audits)[1] is None


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["--max-tokens", "5"], {"max_tokens": 5}),
        (["--temperature", "0.25"], {"temperature": 0.25}),
        (["--top-p", "0.5"], {"top_p": 0.5}),
        (["--top-k", "7"], {"top_k": 7}),
        (["--draft-tokens", "3"], {"draft_tokens": 3}),
        (["--alpha", "0.05"], {"alpha": 0.05}),
        (["--detect", "0.02"], {"detect": 0.02}),
        (["--tie-gap", "0.5"], {"tie_gap": 0.5}),
        (["--seed", "9"], {"seed": 9}),
    ],
)
def test_a_setting_reaches_transformers(audits: Audits, arguments: list[str], change: dict[str, Any]) -> None:
    plan = transformers(audits, *arguments)[2]
    assert plan == replace(AssistedPlan(audit_prompts.PROMPTS, max_tokens=MAX_TOKENS), **change)


# --- the audit itself


def test_the_self_test_uses_every_core_or_as_many_as_it_is_told(audits: Audits) -> None:
    assert main(["audit", "--self-test"]) == 0
    assert audits.asked == (os.cpu_count(),)
    assert main(["audit", "--self-test", "--processes", "3"]) == 0
    assert audits.asked == (3,)


@pytest.mark.parametrize(("verdict", "said"), [("pass", "caught every broken engine"), ("loss", "missed")])
def test_the_self_test_speaks_of_the_audit(
    audits: Audits, verdict: Verdict, said: str, capsys: Capture
) -> None:
    audits.report = report(verdict)
    assert main(["audit", "--self-test"]) == EXIT_CODES[verdict]
    assert said in capsys.readouterr().out.splitlines()[-1]


# --- servers


def servers(audits: Audits, *arguments: str) -> tuple[Side, Side, ServerPlan, Budget]:
    assert main(["audit", *arguments]) == 0
    speculative, baseline, plan, budget = audits.asked
    return speculative, baseline, plan, budget


URL, BASELINE = ["--url", "http://a"], ["--baseline-url", "http://b"]
PLAN = ServerPlan(audit_prompts.PROMPTS, max_tokens=MAX_TOKENS)


@pytest.mark.parametrize(
    ("arguments", "speculative", "baseline"),
    [
        ([*URL, *BASELINE], Side("http://a"), Side("http://b")),
        ([*URL, *BASELINE, "--record", "f"], Side("http://a", Path("f")), Side("http://b", Path("f"))),
        ([*URL, "--replay", "f"], Side("http://a"), Side(None, Path("f"))),
        ([*BASELINE, "--replay", "f"], Side(None, Path("f")), Side("http://b")),
        ([*URL, "--replay", "f", "--record", "g"], Side("http://a", Path("g")), Side(None, Path("f"))),
        (["--replay", "f"], Side(None, Path("f")), Side(None, Path("f"))),
    ],
)
def test_the_servers_and_the_recordings_are_those_given(
    audits: Audits, arguments: list[str], speculative: Side, baseline: Side
) -> None:
    assert servers(audits, *arguments)[:3] == (speculative, baseline, PLAN)


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (["--model", "m"], {"model": "m"}),
        (["--chat"], {"chat": True}),
        (["--stream"], {"stream": True}),
        (["--concurrency", "9"], {"concurrency": 9}),
        (["--samples", "3"], {"samples": 3}),
        (["--tie-gap", "0.5"], {"tie_gap": 0.5}),
        (["--max-tokens", "5"], {"max_tokens": 5}),
        (["--temperature", "0.25"], {"temperature": 0.25}),
        (["--top-k", "7"], {"top_k": 7}),
        (["--alpha", "0.05"], {"alpha": 0.05}),
        (["--detect", "0.02"], {"detect": 0.02}),
        (["--seed", "9"], {"seed": 9}),
        (["--api-key", "secret"], {"api_key": "secret"}),
    ],
)
def test_a_setting_reaches_the_servers(audits: Audits, arguments: list[str], change: dict[str, Any]) -> None:
    assert servers(audits, *URL, *BASELINE, *arguments)[2] == replace(PLAN, **change)


def test_the_key_of_the_environment_is_taken_where_none_is_given(
    audits: Audits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    assert servers(audits, *URL, *BASELINE)[2].api_key == "from outside"
    assert servers(audits, *URL, *BASELINE, "--api-key", "given")[2].api_key == "given"


@pytest.mark.parametrize(("server", "role"), [(URL, "speculative"), (BASELINE, "plain")])
@pytest.mark.parametrize(("answered", "code"), [(7, 0), (5, 3)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_one_server_is_recorded(
    server: list[str],
    role: str,
    answered: int,
    code: int,
    flags: list[str],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def recording(*arguments: Any) -> Recording:
        asked.extend(arguments)
        return Recording(arguments[0], arguments[1].journal, 7, answered)

    monkeypatch.setattr("surefoot.audit.servers.audit.record_server", recording)
    assert main(["audit", *server, "--record", "f", *flags]) == code
    assert asked[:3] == [role, Side(server[1], Path("f")), PLAN]
    text = capsys.readouterr().out
    if flags:
        assert json.loads(text) == {"role": role, "path": "f", "calls": 7, "answered": answered}
    else:
        assert f"{answered} of 7 answers of the {role} server are in f" in text
        assert ("goes on with the rest" in text) == (code == 3)


@pytest.mark.parametrize("loss", [False, True])
def test_real_servers_are_audited(loss: bool, tmp_path: Path, capsys: Capture) -> None:
    def wrong_in_the_middle(place: Place) -> int:
        return int(place.logits[:CHOSEN].argmin()) if len(place.output) == 3 else honest(place)

    texts = tmp_path / "prompts.txt"
    texts.write_text("bo da\nfa ka la\n")
    short = ["--prompts", str(texts), "--max-tokens", "8", "--samples", "2", "--json"]
    with serving(Script()) as plain, serving(Script(choose=wrong_in_the_middle if loss else honest)) as other:
        url, baseline = ["--url", other.url], ["--baseline-url", plain.url]
        recorded = ["--record", str(tmp_path / "answers.jsonl")]
        assert main(["audit", *url, *recorded, *short]) == 0
        assert json.loads(capsys.readouterr().out)["role"] == "speculative"
        codes = [main(["audit", *url, *baseline, *short])]
        codes.append(main(["audit", "--replay", recorded[1], *baseline, *short]))
    verdicts = [json.loads(line)["verdict"] for line in capsys.readouterr().out.splitlines()]
    assert codes == [EXIT_CODES[verdict] for verdict in verdicts]
    assert all((verdict == "loss") == loss for verdict in verdicts)
