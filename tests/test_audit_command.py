"""`surefoot audit`: which audit is run, with what; what is printed and written; every mistake in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.audit import prompts as audit_prompts
from surefoot.audit.assisted import AssistedPlan
from surefoot.audit.budget import Budget
from surefoot.audit.report import EXIT_CODES, GRAVITY, Check, Report, Verdict
from surefoot.audit.servers.audit import Recording
from surefoot.audit.servers.plan import ServerPlan, Side
from surefoot.audit.subject import Plan, Subject
from surefoot.cli import guarded, main, parser
from surefoot.commands.audit_flags import FIRST, GROUPS, LEADING, MAX_TOKENS, SAMPLED, form_of
from surefoot.commands.audit_forms import FORMS
from surefoot.commands.options import SAMPLING_FLAGS
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.types import VERIFY_MODES, SamplingParams, SurefootError, VerifyMode
from tests.test_cli_flags import SAMPLES
from tests.test_cli_mistakes import swap
from tests.threads import one_thread
from tests.tiny import tiny_checkpoint_folder, tiny_gguf

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_gguf("llama", tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_HOME", str(tmp_path / "home"))


def report(verdict: Verdict = "pass") -> Report:
    return Report("a pair", {}, (Check("a question", verdict, "An answer <b>.", 12),), 1.5)


@dataclass
class Audits:
    """Stands where the audits stand, and remembers what they were asked."""

    report: Report = field(default_factory=report)
    asked: tuple[Any, ...] = ()

    def __call__(self, *asked: Any) -> Report:
        self.asked = asked
        return self.report


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> Audits:
    audits = Audits()
    monkeypatch.setattr("surefoot.audit.own.audit_engine", audits)
    monkeypatch.setattr("surefoot.audit.assisted.audit_transformers", audits)
    monkeypatch.setattr("surefoot.audit.servers.audit.audit_servers", audits)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return audits


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
    assert isinstance(asked.subject.drafter(), NgramDrafter)
    assert len(asked.plan.prompts) == len(audit_prompts.PROMPTS)
    assert asked.plan == Plan(asked.plan.prompts, SamplingParams(max_tokens=MAX_TOKENS))


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


# --- what is printed, written and returned


@pytest.mark.parametrize("verdict", GRAVITY)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_exit_code_is_the_verdicts(
    audits: Audits, model: str, capsys: Capture, verdict: Verdict, flags: list[str]
) -> None:
    audits.report = report(verdict)
    assert main(["audit", "--model", model, *flags]) == EXIT_CODES[verdict]
    captured = capsys.readouterr()
    assert captured.err == ""
    if flags:
        assert json.loads(captured.out)["verdict"] == verdict
        assert captured.out.count("\n") == 1
    else:
        assert f"exit code {EXIT_CODES[verdict]}" in captured.out.splitlines()[-1]


def test_a_program_returns_its_code_or_0() -> None:
    assert guarded(lambda: 3) == 3
    assert guarded(lambda: None) == 0


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_page_is_written_whole_and_alone(
    audits: Audits, model: str, tmp_path: Path, capsys: Capture, flags: list[str]
) -> None:
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    page.write_text("an older page")
    own(audits, model, "--html", str(page), *flags)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "An answer &lt;b&gt;." in page.read_text()
    assert os.listdir(page.parent) == ["page.html"]
    assert capsys.readouterr().out


def test_an_audit_that_breaks_off_leaves_the_older_page(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*asked: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.audit.own.audit_engine", broken)
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    page.write_text("an older page")
    assert main(["audit", "--model", model, "--html", str(page)]) == 130
    assert page.read_text() == "an older page"
    assert os.listdir(page.parent) == ["page.html"]


def test_a_page_behind_a_link_is_written_there(audits: Audits, model: str, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    own(audits, model, "--html", str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_reader_that_left_is_no_loss(audits: Audits, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["audit", "--model", model]) == 141


# --- mistakes


def complaint(capsys: Capture, *arguments: str) -> str:
    """The line that a command line is refused with."""
    assert main(["audit", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("surefoot: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "soon"], ["--budget", "'soon'", "60s"]),
        (["--budget", "0"], ["--budget", "'0'", "above 0"]),
        (["--budget", "-5s"], ["--budget"]),
        (["--budget", "60 s"], ["--budget", "'60 s'"]),
        (["--budget", "infs"], ["--budget", "'infs'"]),
        (["--alpha", "0"], ["--alpha", "'0'", "(0, 1)"]),
        (["--alpha", "nan"], ["--alpha", "'nan'", "(0, 1)"]),
        (["--detect", "1"], ["--detect", "'1'", "(0, 1)"]),
        (["--detect", "much"], ["--detect", "'much'"]),
        (["--seed", "-1"], ["seed", "-1", "18446744073709551615"]),
        (["--draft", "none"], ["draft", "none", "ngram"]),
        (["--draft-tokens", "0"], ["draft_tokens", "0", "1 or more"]),
        (["--draft-tokens", "512"], ["draft_tokens", "512", "511"]),
        (["--verify", "faith"], ["--verify", "'faith'", "coupled"]),
        (["--temperature", "-1"], ["temperature", "-1", "[0, 100]"]),
        (["--max-tokens", "0"], ["max_tokens", "0", "1 or more"]),
        (["--model", "nowhere"], ["unknown model 'nowhere'"]),
        (["--prompts", "no/such.txt"], ["prompts", "no/such.txt", "No such file"]),
        (["--html", "no/such/page.html"], ["--html", "no/such/page.html", "No such file"]),
        (["--html", "."], ["--html", "no file"]),
        (["--html", "/dev/null"], ["--html", "/dev/null", "no file"]),
        (["--html", ""], ["--html", "no file"]),
        (["--n", "2"], ["--n"]),
        (["--logprobs", "2"], ["--logprobs"]),
        (["--url", "http://a"], ["--url", "--baseline-url", "--replay"]),
        (["--baseline-url", "http://a"], ["--url", "--baseline-url", "--replay"]),
        ([*URL, *BASELINE, "--replay", "f"], ["--replay", "--url", "--baseline-url"]),
        (["--record", "f"], ["--record", "--url", "--baseline-url"]),
        ([*URL, "--record", "f", "--html", "p.html"], ["--html", "--record", "p.html"]),
        (["--url", "ftp://a", *BASELINE], ["url", "ftp://a", "http://"]),
        ([*URL, *BASELINE, "--concurrency", "0"], ["concurrency", "0", "1 or more"]),
        ([*URL, "--replay", "no/such.jsonl"], ["no/such.jsonl", "no such file"]),
        (["--transformers", "nowhere"], ["unknown model 'nowhere'"]),
        (["--transformers", "nowhere", "--draft-tokens", "65"], ["draft_tokens", "65", "64"]),
    ],
)
def test_a_command_line_that_makes_no_sense(
    arguments: list[str], words: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = complaint(capsys, *arguments)
    for word in words:
        assert word in line
    assert os.listdir(tmp_path) in ([], ["home"])


def test_another_tokenizer_is_refused_before_the_audit(
    audits: Audits, tmp_path: Path, capsys: Capture
) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    other = tiny_checkpoint_folder("qwen2", tmp_path)
    swap(other / "tokenizer.json", '"A":', '"B":')
    capsys.readouterr()  # transformers tells what it saves
    line = complaint(capsys, "--model", str(folder), "--draft", str(other))
    assert "tokenizers" in line
    assert audits.asked == ()


def test_a_page_that_cannot_be_written_is_refused_before_the_audit(audits: Audits, capsys: Capture) -> None:
    complaint(capsys, "--html", "no/such/page.html")
    assert audits.asked == ()


VALUES = {"--verify": "block", "--precision": "fp32", "--budget": "9", "--alpha": "0.5", "--detect": "0.5"}
FLAGS = {flag.name: flag for flags in GROUPS.values() for flag in flags}


def written(name: str) -> list[str]:
    return [name] if FLAGS[name].parse is None else [name, VALUES.get(name, "1")]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("lead", [None, *LEADING])
def test_a_flag_is_taken_by_its_forms_and_named_by_the_others(name: str, lead: str | None) -> None:
    form = LEADING[name][0] if lead is None and name in LEADING else LEADING[lead][0] if lead else "own"
    line = ["audit", *(written(lead) if lead and lead != name else []), *written(name)]
    args = parser().parse_args(line)
    if form in FLAGS[name].forms:
        assert form_of(args) == form
        return
    with pytest.raises(SurefootError) as refused:
        form_of(args)
    assert name in str(refused.value)
    assert lead is None or lead in str(refused.value)


@pytest.mark.parametrize(
    "flag", [flag for flag in SAMPLING_FLAGS if flag.field in SAMPLED["own"]], ids=lambda flag: flag.name
)
@pytest.mark.parametrize("form", FIRST)
def test_a_sampling_flag_that_a_form_lacks_is_refused_by_name(flag: Any, form: Any) -> None:
    args = parser().parse_args(["audit", *written(FIRST[form]), *SAMPLES[flag.field][0]])
    if flag.field in SAMPLED[form]:
        assert form_of(args) == form
        return
    with pytest.raises(SurefootError, match=flag.name):
        form_of(args)


def test_every_form_has_an_audit() -> None:
    assert set(FORMS) == set(SAMPLED)
