"""The audit of our own engine: what is sound passes, in every mode, and what can't be asked is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy.stats import binom

from surefoot.audit.budget import Budget
from surefoot.audit.law import same_distribution
from surefoot.audit.own import audit_engine
from surefoot.audit.subject import Plan
from surefoot.loop import Loop
from surefoot.request import Request
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, SurefootError, VerifyMode
from tests.audited import DRAFTERS, Trusting, plan, subject, target
from tests.harness import Scripted


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_a_sound_engine_passes(mode: VerifyMode, drafter: str) -> None:
    report = audit_engine(subject(mode, drafter), plan(), Budget(tokens=4000))
    assert [check.verdict for check in report.checks] == ["pass", "pass"], report
    assert report.exit_code == 0
    asked = "tokens" if mode == "coupled" else "distribution"
    assert [check.name for check in report.checks] == [
        "same tokens at temperature 0",
        f"same {asked} at temperature 0.9",
    ]


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_at_temperature_0_there_is_one_check_and_it_has_the_whole_budget(mode: VerifyMode) -> None:
    report = audit_engine(subject(mode), plan(temperature=0), Budget(tokens=2000))
    (check,) = report.checks
    assert check.name == "same tokens at temperature 0"
    assert check.verdict == "pass"
    assert check.tokens > 1200


def test_the_greedy_check_takes_a_quarter_where_another_follows() -> None:
    greedy, sampled = audit_engine(subject("coupled"), plan(), Budget(tokens=4000)).checks
    assert 800 < greedy.tokens < 1100  # at temperature 0 plain decoding has few answers
    assert 1700 < sampled.tokens < 2000  # 60% of three thousand


def test_a_budget_of_seconds_is_kept_too() -> None:
    """On a clock that ticks whenever it is read."""
    now = iter(range(10**6))
    budget = Budget(seconds=80, clock=lambda: float(next(now)))
    report = audit_engine(subject("rejection"), plan(), budget)
    greedy, sampled = report.checks
    assert 75 <= report.seconds < 100
    assert 0 < greedy.tokens < sampled.tokens


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_a_loss_in_one_check_does_not_keep_the_other_from_being_asked(mode: VerifyMode) -> None:
    report = audit_engine(subject(mode, loop=Trusting), plan(), Budget(tokens=8000))
    assert [check.verdict for check in report.checks] == ["loss", "loss"]
    assert report.exit_code == 1


def test_every_audit_of_one_plan_is_the_same() -> None:
    one, other = (audit_engine(subject("block"), plan(), Budget(tokens=600)) for _ in range(2))
    assert one.checks == other.checks
    changed = audit_engine(subject("block"), plan(seed=1), Budget(tokens=600))
    assert changed.checks[1].curves != one.checks[1].curves


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_a_drafter_that_never_drafts_leaves_it_undecided(mode: VerifyMode) -> None:
    idle = subject(mode, lambda: Scripted(lambda tokens, budget: Draft()))
    report = audit_engine(idle, plan(), Budget(tokens=1500))
    assert [check.verdict for check in report.checks] == ["undecided", "undecided"]
    assert all("never drafted" in check.summary for check in report.checks)


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_too_little_is_undecided(mode: VerifyMode) -> None:
    report = audit_engine(subject(mode), plan(detect=1e-4), Budget(tokens=800))
    assert [check.verdict for check in report.checks] == ["undecided", "undecided"]
    assert report.exit_code == 3


def test_a_plan_that_cannot_be_carried_out_is_refused() -> None:
    with pytest.raises(SurefootError, match=r"prompts: there are none"):
        audit_engine(subject("coupled"), Plan((), SamplingParams()), Budget(tokens=10))
    with pytest.raises(SurefootError, match=r"draft_tokens: 16 are too many for passes of 16 rows"):
        audit_engine(subject("coupled"), plan(draft_tokens=(16,), chunks=(16,)), Budget(tokens=10))


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_what_plain_decoding_cannot_answer_is_no_loss(mode: VerifyMode) -> None:
    with pytest.raises(SurefootError, match="token 99 is out of range"):
        audit_engine(subject(mode), Plan(((99,),), SamplingParams(temperature=1)), Budget(tokens=10))
    with pytest.raises(SurefootError, match="token 99 is out of range"):
        same_distribution(subject(mode), Plan(((99,),), SamplingParams(temperature=1)), Budget(tokens=10))


@pytest.mark.parametrize(("mode", "drafter"), [("rejection", "tree"), ("block", "shortened")])
def test_the_evidence_is_fair_however_short_the_audit(mode: VerifyMode, drafter: str) -> None:
    """The e-value is 1 on average, at most, and large as rarely as Ville's inequality says."""
    runs, alpha = 40, 0.1
    sound = subject(mode, drafter)
    checks = [
        same_distribution(sound, plan(seed=seed, alpha=alpha), Budget(tokens=60 + 4 * seed))
        for seed in range(runs)
    ]
    alarms = sum(check.verdict == "loss" for check in checks)
    assert alarms <= binom.ppf(0.999, runs, alpha)
    sizes = [10 ** check.facts["log10_e"] for check in checks]
    assert math.fsum(sizes) / runs < 1.5


class Latecomers(Loop):
    """Takes the likeliest tokens for a request that joins a batch under way in the place of another one."""

    def release(self, request: Request) -> None:
        super().release(request)
        self._freed = True

    def _start(self, request: Request) -> None:
        if not request.started and getattr(self, "_freed", False):
            request.params = replace(request.params, temperature=0)
        super()._start(request)


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_requests_that_join_a_batch_under_way_are_audited(mode: VerifyMode) -> None:
    report = audit_engine(subject(mode, loop=Latecomers, model=target(end=None)), plan(), Budget(tokens=8000))
    assert [check.verdict for check in report.checks] == ["pass", "loss"]


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_the_last_trial_has_no_more_companions_than_the_budget_is_enough_for(mode: VerifyMode) -> None:
    """A whole batch of 20 would take 480 tokens."""
    few, budget = plan(companions=(0, 1, 19)), Budget(tokens=150)
    report = audit_engine(subject(mode, model=target(end=None)), few, budget)
    assert report.verdict != "loss"
    assert 150 <= budget.spent < 250


def test_a_budget_that_is_used_before_anything_is_scored_is_said_to_be() -> None:
    report = audit_engine(subject("rejection"), plan(), Budget(seconds=0))
    assert report.verdict == "undecided"
    assert report.checks[1].summary == "the budget was used before any token could be scored"
    seen = audit_engine(subject("coupled"), plan(), Budget(seconds=0))
    assert {check.summary for check in seen.checks} == {
        "the budget was used before anything could be compared"
    }
