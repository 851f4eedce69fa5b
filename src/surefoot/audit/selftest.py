"""The audit, audited: it has to find every known fault, and to leave sound engines alone.

Everything is deterministic, and the same with any number of processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

from surefoot.audit.broken.controls import CONTROLS, Control
from surefoot.audit.budget import Budget
from surefoot.audit.own import audit_engine
from surefoot.audit.report import Check, Report, Table
from surefoot.audit.words import counted, power_of_ten
from surefoot.types import VERIFY_MODES, VerifyMode, whole

ALPHA = 0.01  # of every audit here
_CERTAIN = 0.99  # how often chance alone keeps the false alarms within their limit

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an audit made of an engine.

    name, mode: of the control. caught: whether it found a loss. by: the check that did, or nothing. evidence:
    what it saw. tokens: that the engine and plain decoding had given by then.
    """

    name: str
    mode: VerifyMode
    caught: bool
    by: str
    evidence: str
    tokens: int


def run_control(control: Control) -> Outcome:
    """Audits a broken engine until it is caught, or for as long as its setting says."""
    return _audited(control, sound=False, seed=0)


def run_twin(control: Control, seed: int) -> Outcome:
    """The same audit of a sound engine, with other choices for every seed."""
    return _audited(control, sound=True, seed=seed)


def run_self_test(processes: int, false_alarm_audits: int = 500) -> Report:
    """Audits every broken engine, and sound ones in the same settings.

    processes: at work at once. Raises SurefootError when it or the number of audits is below 1.
    """
    whole("processes", processes, 1)
    whole("false_alarm_audits", false_alarm_audits, 1)
    began = time.monotonic()
    tasks = [(number, False, 0) for number in range(len(CONTROLS))] + _sound(false_alarm_audits)
    outcomes = _side_by_side(_run, tasks, processes)
    broken, sound = outcomes[: len(CONTROLS)], outcomes[len(CONTROLS) :]
    return Report(
        "the audit itself",
        {"broken engines": str(len(broken)), "sound engines": str(len(sound)), "alpha": f"{ALPHA:g}"},
        (_faults(broken), _false_alarms(sound)),
        time.monotonic() - began,
    )


def most_by_chance(trials: int, probability: float) -> int:
    """What a binomial variable exceeds with a probability of at most 1%."""
    total, count = 0.0, -1
    while total < _CERTAIN:
        count += 1
        ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
        total += math.exp(ways + count * math.log(probability) + (trials - count) * math.log1p(-probability))
    return count


def _audited(control: Control, *, sound: bool, seed: int) -> Outcome:
    setting = control.setting
    budget = Budget(tokens=setting.audited)
    subject = control.twin() if sound else control.subject()
    report = audit_engine(subject, setting.plan(seed, ALPHA), budget)
    found = next((check for check in report.checks if check.verdict == "loss"), None)
    by, evidence = (found.name, _evidence(found)) if found else ("", "")
    return Outcome(control.name, control.mode, found is not None, by, evidence, budget.spent)


def _evidence(check: Check) -> str:
    """What a check saw, in a few words."""
    facts = check.facts
    if "suspicion" in facts:
        return f"e-value {power_of_ten(facts['log10_e'])} after {counted(check.tokens, 'token')}"
    if facts["differs"] == "exception":
        return "an exception"
    names = {"token": "difference", "impossible token": "token of probability 0", "end": "wrong end"}
    return f"{names.get(facts['differs'], facts['differs'])} at token {facts['index'] + 1}"


_Task = tuple[int, bool, int]
"""(number of the control, whether its sound twin is audited, seed)."""


def _sound(audits: int) -> list[_Task]:
    """As many audits in every mode; within it about as many tokens in the setting of every control."""
    tasks: list[_Task] = []
    spent = [0] * len(CONTROLS)
    for seed in range(audits):
        mode = VERIFY_MODES[seed % len(VERIFY_MODES)]
        numbers = [number for number, control in enumerate(CONTROLS) if control.mode == mode]
        number = min(numbers, key=spent.__getitem__)
        spent[number] += CONTROLS[number].setting.audited
        tasks.append((number, True, seed))
    return tasks


def _run(task: _Task) -> Outcome:
    number, sound, seed = task
    return run_twin(CONTROLS[number], seed) if sound else run_control(CONTROLS[number])


def _side_by_side(work: Callable[[T], R], tasks: Sequence[T], processes: int) -> list[R]:
    """Results in the order of the tasks."""
    if processes == 1:
        return [work(task) for task in tasks]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(work, tasks))


def _faults(outcomes: Sequence[Outcome]) -> Check:
    escaped = [outcome for outcome in outcomes if not outcome.caught]
    rows = tuple(
        (each.name, each.mode, each.by or "NOT CAUGHT", each.evidence, each.tokens) for each in outcomes
    )
    return Check(
        "broken engines are caught",
        "loss" if escaped else "pass",
        f"{len(outcomes) - len(escaped)} of {len(outcomes)} caught",
        sum(outcome.tokens for outcome in outcomes),
        tuple(f"not caught: {each.name}, {each.mode}" for each in escaped),
        (Table("broken engines", ("fault", "mode", "caught by", "evidence", "tokens"), rows),),
        facts={"controls": len(outcomes), "caught": len(outcomes) - len(escaped)},
    )


def _false_alarms(outcomes: Sequence[Outcome]) -> Check:
    """An alarm about probabilities may be chance; one about tokens that differ can't be."""
    raised = [outcome for outcome in outcomes if outcome.caught]
    certain = [outcome for outcome in raised if not outcome.evidence.startswith("e-value")]
    limit = most_by_chance(len(outcomes), ALPHA)
    return Check(
        "false alarms",
        "loss" if certain or len(raised) > limit else "pass",
        f"{counted(len(raised), 'alarm')} in {counted(len(outcomes), 'audit')} of sound engines at alpha "
        f"{ALPHA:g}; up to {limit} are chance",
        sum(outcome.tokens for outcome in outcomes),
        tuple(f"{each.by}, {each.mode}, beside {each.name!r}: {each.evidence}" for each in raised),
        facts={"audits": len(outcomes), "alarms": len(raised), "limit": limit},
    )
