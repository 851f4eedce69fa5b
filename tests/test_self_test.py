"""The audit finds every engine that is broken on purpose, and nothing in the same engines unbroken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import binom

from surefoot.audit import selftest
from surefoot.audit.broken.controls import CONTROLS, Control
from surefoot.audit.selftest import Outcome, most_by_chance, run_control, run_self_test, run_twin
from surefoot.engine import Engine
from surefoot.types import VERIFY_MODES, SurefootError
from tests.conftest import Caught


def named(control: Control) -> str:
    return f"{control.name}, {control.mode}"


def settings() -> list[Control]:
    """One control for each setting and mode."""
    different: list[Control] = []
    for control in CONTROLS:
        if not any(control.mode == other.mode and control.setting == other.setting for other in different):
            different.append(control)
    return different


@pytest.mark.parametrize("control", CONTROLS, ids=named)
def test_a_broken_engine_is_caught(control: Control, caught: Caught) -> None:
    outcome = run_control(control)
    assert outcome.caught
    assert outcome.evidence != "an exception"  # it would say nothing about the fault
    assert outcome.tokens <= 0.8 * control.setting.audited  # with something to spare
    caught(named(control), "audit", outcome.evidence)


@pytest.mark.parametrize("control", settings(), ids=named)
def test_the_same_engine_without_the_fault_is_not(control: Control) -> None:
    setting = replace(control.setting, audited=min(control.setting.audited, 1000))  # the whole takes minutes
    outcome = run_twin(replace(control, setting=setting), seed=len(control.name))
    assert not outcome.caught
    assert outcome.tokens >= setting.audited


def test_the_controls_are_many_and_differ() -> None:
    assert len({control.name for control in CONTROLS}) >= 34
    assert len(set(map(named, CONTROLS))) == len(CONTROLS)
    assert {control.mode for control in CONTROLS} == set(VERIFY_MODES)
    assert {control.setting.drafter for control in CONTROLS} == {"model", "tree", "ngram"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> tuple[Control, ...]:
    """A self-test of one quick fault in every mode."""
    quick = [min(_in(mode), key=lambda control: control.setting.audited) for mode in VERIFY_MODES]
    monkeypatch.setattr(selftest, "CONTROLS", tuple(quick))
    return tuple(quick)


def _in(mode: str) -> list[Control]:
    return [control for control in CONTROLS if control.mode == mode]


def test_the_report_lists_every_control_and_counts_the_alarms(few: tuple[Control, ...]) -> None:
    report = run_self_test(1, false_alarm_audits=6)
    faults, alarms = report.checks
    assert report.verdict == "pass"
    assert [row[:2] for row in faults.tables[0].rows] == [(control.name, control.mode) for control in few]
    assert faults.facts == {"controls": 3, "caught": 3}
    assert alarms.facts == {"audits": 6, "alarms": 0, "limit": most_by_chance(6, 0.01)}


def test_a_fault_that_escapes_fails_the_self_test(
    few: tuple[Control, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    escaping = replace(few[1], name="no fault at all", engine=lambda: Engine)
    monkeypatch.setattr(selftest, "CONTROLS", (few[0], escaping, few[2]))
    report = run_self_test(1, false_alarm_audits=1)
    assert report.exit_code == 1
    assert report.checks[0].verdict == "loss"
    assert report.checks[0].details == (f"not caught: no fault at all, {escaping.mode}",)
    assert "NOT CAUGHT" in report.checks[0].tables[0].rows[1]


def test_an_engine_that_breaks_where_it_should_be_sound_fails_the_self_test(
    few: tuple[Control, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "twin", Control.subject)
    report = run_self_test(1, false_alarm_audits=6)
    assert report.checks[0].verdict == "pass"
    assert report.checks[1].verdict == "loss"
    assert report.checks[1].facts["alarms"] == 6


@pytest.mark.parametrize(
    ("evidence", "alarms", "verdict"),
    [
        ("e-value 120 after 600 tokens", 11, "pass"),
        ("e-value 120 after 600 tokens", 12, "loss"),
        ("difference at token 3", 1, "loss"),
    ],
)
def test_only_alarms_about_probabilities_may_be_chance(evidence: str, alarms: int, verdict: str) -> None:
    raised = [Outcome("a fault", "block", True, "a check", evidence, 600)] * alarms
    quiet = [Outcome("a fault", "block", False, "", "", 800)] * (500 - alarms)
    check = selftest._false_alarms([*raised, *quiet])
    assert check.verdict == verdict
    assert len(check.details) == alarms


@pytest.mark.parametrize("trials", [1, 6, 100, 500, 20_000])
@pytest.mark.parametrize("probability", [0.01, 0.3])
def test_the_most_by_chance_is_the_binomial_quantile(trials: int, probability: float) -> None:
    assert most_by_chance(trials, probability) == binom.ppf(0.99, trials, probability)


def test_sound_audits_are_spread_over_modes_and_settings() -> None:
    tasks = selftest._sound(120)
    modes = [CONTROLS[number].mode for number, _, _ in tasks]
    assert all(modes.count(mode) == 40 for mode in VERIFY_MODES)
    assert len({seed for _, _, seed in tasks}) == 120
    drafters = {(CONTROLS[number].mode, CONTROLS[number].setting.drafter) for number, _, _ in tasks}
    assert {
        ("coupled", "ngram"),
        ("rejection", "tree"),
        ("rejection", "ngram"),
        ("block", "model"),
    } <= drafters


def test_the_number_of_processes_changes_nothing() -> None:
    tasks = [(number, sound, 3) for number in (4, 5) for sound in (False, True)]
    alone = selftest._side_by_side(selftest._run, tasks, 1)
    assert alone == selftest._side_by_side(selftest._run, tasks, 2)


def test_none_at_all_is_refused() -> None:
    with pytest.raises(SurefootError, match="processes: 0"):
        run_self_test(0)
    with pytest.raises(SurefootError, match="false_alarm_audits: 0"):
        run_self_test(1, false_alarm_audits=0)
