"""What `surefoot audit` prints, writes and returns, and every mistake in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surefoot.audit.report import EXIT_CODES, GRAVITY, Report, Verdict
from surefoot.cli import guarded, main, parser
from surefoot.commands.audit_flags import FIRST, GROUPS, LEADING, SAMPLED, form_of
from surefoot.commands.audit_forms import FORMS
from surefoot.commands.options import SAMPLING_FLAGS
from surefoot.types import SurefootError
from tests.audits import Audits, report, stand_in
from tests.test_cli_flags import SAMPLES
from tests.test_cli_mistakes import swap
from tests.threads import one_thread
from tests.tiny import tiny_checkpoint_folder, tiny_gguf

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


def assert_passes(model: str, *arguments: str) -> None:
    assert main(["audit", "--model", model, *arguments]) == 0


URL, BASELINE = ["--url", "http://a"], ["--baseline-url", "http://b"]


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
    assert_passes(model, "--html", str(page), *flags)
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
    assert_passes(model, "--html", str(tmp_path / "link.html"))
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
        (["--draft", "none"], ["draft", "none", "ngram", "suffix"]),
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
        (["--self-test", "--processes", "0"], ["processes", "0", "[1, 256]"]),
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
