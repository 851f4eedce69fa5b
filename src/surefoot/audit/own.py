"""The audit of our own engine: everything a mode promises, one check each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from surefoot.audit.budget import Budget
from surefoot.audit.equality import same_tokens
from surefoot.audit.law import same_distribution
from surefoot.audit.report import Check, Report
from surefoot.audit.subject import Plan, Subject
from surefoot.types import SurefootError

_GREEDY = 0.25  # of the budget, where there is another check: its tokens vary less


def audit_engine(subject: Subject, plan: Plan, budget: Budget) -> Report:
    """Whether speculation changes what `subject` says.

    At temperature 0 the tokens must be plain decoding's, in every mode. At the temperature of `plan.params`
    they must be in coupled mode; in the others each must have the probability it has in plain decoding.
    Raises SurefootError for a plan that can't be carried out, or that plain decoding can't answer.
    """
    if not plan.prompts:
        raise SurefootError("prompts: there are none; an audit needs at least 1")
    if plan.params.grammar is not None:
        raise SurefootError("grammar: the reference of an audit is computed without one; audit without it")
    began = budget.elapsed
    checks = _checks(subject, plan, budget)
    return Report(subject.name, _settings(subject, plan), checks, budget.elapsed - began)


def _checks(subject: Subject, plan: Plan, budget: Budget) -> tuple[Check, ...]:
    greedy = replace(plan, params=replace(plan.params, temperature=0))
    if plan.params.temperature == 0:
        return (same_tokens(subject, greedy, budget),)
    first = same_tokens(subject, greedy, budget.part(_GREEDY))
    sampled = same_tokens if subject.verify == "coupled" else same_distribution
    return first, sampled(subject, plan, budget)


def _settings(subject: Subject, plan: Plan) -> Mapping[str, str]:
    return {
        "verify": subject.verify,
        "prompts": str(len(plan.prompts)),
        "temperature": f"{plan.params.temperature:g}",
        "top-p": f"{plan.params.top_p:g}",
        "top-k": str(plan.params.top_k),
        "min-p": f"{plan.params.min_p:g}",
        "output tokens": f"at most {plan.params.max_tokens}",
        "draft tokens": _listed(plan.draft_tokens),
        "companions": _listed(plan.companions),
        "rows of a pass": _listed(plan.chunks),
        "false alarms": f"with probability {plan.alpha:g} at most",
        "bias to be seen": f"{plan.detect:g} of the tokens",
        "seed": str(plan.seed),
    }


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
