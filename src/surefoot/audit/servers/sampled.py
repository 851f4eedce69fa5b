"""Sampled answers: scored token by token where the plain server can, else held against its own as texts."""

from __future__ import annotations

from surefoot.audit.budget import Budget
from surefoot.audit.report import Check
from surefoot.audit.servers.asking import Server
from surefoot.audit.servers.compared import check_texts
from surefoot.audit.servers.plan import ServerPlan
from surefoot.audit.servers.samples import ask_samples
from surefoot.audit.servers.scored import check_scored
from surefoot.audit.servers.scoring import Scorer


def check_sampled(plain: Server, other: Server, plan: ServerPlan, budget: Budget) -> tuple[Check, ...]:
    """One check for the plain server itself and one for the speculative one, scored or compared."""
    if not plan.samples or not plan.temperature:
        return ()
    scorer = Scorer(plain, plan.prompts)
    mine, theirs = ask_samples(plain, plan, 0), ask_samples(other, plan, 0)
    if not mine or not theirs:
        nothing = "no sampled answers: the budget was spent, or none were recorded"
        return (Check("sampled answers", "undecided", nothing, 0),)
    scorer.learn(mine)
    reasons = [scorer.possible(sample.answer) for sample in (*mine, *theirs)]
    reason = next((found for found in (_refused(plain, plan), *reasons) if found is not None), None)
    if reason is None:
        return check_scored(plain, other, plan, budget, scorer)
    return check_texts(plain, other, plan, reason)


def _refused(plain: Server, plan: ServerPlan) -> str | None:
    """Why the lists aren't the distribution that is sampled from; None if they are."""
    shown = plain.dialect.shown
    if plan.top_k and plan.top_k > shown:
        return f"top_k is {plan.top_k}, and the plain server lists {shown} tokens"
    if plan.temperature != 1 and not plan.top_k:
        return (
            f"at temperature {plan.temperature} the lists say too little without a top_k of {shown} or less"
        )
    return None
