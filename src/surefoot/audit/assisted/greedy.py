"""Greedy: the same tokens as plain `generate`, except where rounding decides between equals.

A draft is verified in a forward pass of several rows, plain decoding in passes of one, and other shapes round
otherwise. So the logits of the common prefix are computed once more, alone: where both tokens lie within a
small gap of the largest, either side took one by rounding; anywhere else the mode took a token that the
target doesn't prefer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from surefoot.audit.assisted.modes import Assistance
from surefoot.audit.assisted.plain import Generation, ModeFailedError, processed
from surefoot.audit.assisted.plan import AssistedPlan
from surefoot.audit.assisted.record import rounds_of
from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Verdict

_SHOWN = 5  # differences spelled out; the rest is counted


@dataclass(frozen=True)
class Difference:
    """Where two texts part. at: output tokens before it. plain, assisted: the token there, None for an end.
    gap: how far the lower of the two lies below the largest logit; None where one text just ends."""

    prompt: int
    at: int
    plain: int | None
    assisted: int | None
    gap: float | None

    def is_tie(self, tie_gap: float) -> bool:
        return self.gap is not None and self.gap <= tie_gap

    def __str__(self) -> str:
        if self.gap is None:
            shorter = "assisted" if self.assisted is None else "plain"
            return f"prompt {self.prompt}: {shorter} generate ends after {self.at} tokens, the other goes on"
        return (
            f"prompt {self.prompt}, token {self.at}: plain takes {self.plain}, assisted {self.assisted}; "
            f"the lower one's logit is {self.gap:.2g} below the largest"
        )


def greedy_check(generation: Generation, mode: Assistance, plan: AssistedPlan, budget: Budget) -> Check:
    """One prompt after the other, while there is budget."""
    differences: list[Difference] = []
    tokens = done = drafted = 0
    failure = ""
    for number, prompt in enumerate(generation.prompts):
        if not budget.left:
            break
        plain = generation.plain_greedy(prompt)
        try:
            with rounds_of(generation.model) as rounds:
                assisted = generation.assisted(prompt, mode, sampled=False)
        except ModeFailedError as error:
            failure = f"fails: {error}"
            break
        drafted += sum(len(draft.tokens) for draft in rounds)
        difference = first_difference(generation, number, prompt, plain, assisted)
        differences += [difference] if difference else []
        tokens += difference.at + 1 if difference else len(plain)
        done += 1
        budget.spend(len(plain) + len(assisted))
    losses = [found for found in differences if not found.is_tie(plan.tie_gap)]
    ties = [found for found in differences if found.is_tie(plan.tie_gap)]
    verdict, summary = _answer(plan, tokens, done, drafted, len(losses), len(ties), failure)
    return Check(
        f"{mode.label}: greedy",
        verdict,
        summary,
        tokens,
        details=(
            *(f"loss: {loss}" for loss in losses[:_SHOWN]),
            *(f"near-tie: {tie}" for tie in ties[:_SHOWN]),
        ),
        facts={
            "prompts": done,
            "drafted": drafted,
            "losses": len(losses),
            "near_ties": len(ties),
            "failure": failure or None,
        },
    )


def first_difference(
    generation: Generation,
    number: int,
    prompt: tuple[int, ...],
    plain: tuple[int, ...],
    assisted: tuple[int, ...],
) -> Difference | None:
    """None for equal texts."""
    at = next((i for i, pair in enumerate(zip(plain, assisted, strict=False)) if len(set(pair)) > 1), None)
    if at is None:
        if len(plain) == len(assisted):
            return None
        at = min(len(plain), len(assisted))
        ends = [(text[at] if at < len(text) else None) for text in (plain, assisted)]
        return Difference(number, at, ends[0], ends[1], None)
    prefix = [*prompt, *plain[:at]]
    row = processed(generation.processors(prompt, False), prefix, generation.logits(prefix, ())[0])
    lower = min(row[plain[at]], row[assisted[at]])
    return Difference(number, at, plain[at], assisted[at], float(row.max() - lower))


def _answer(
    plan: AssistedPlan, tokens: int, done: int, drafted: int, losses: int, ties: int, failure: str
) -> tuple[Verdict, str]:
    asked = len(plan.prompts)
    compared = f"{tokens} tokens of {done} of {asked} prompts compared"
    near = f", {ties} near-tie{'s' * (ties != 1)} (gap ≤ {plan.tie_gap:g})" if ties else ""
    if losses:
        also = f"; then it {failure}" if failure else ""
        return (
            "loss",
            f"{losses} of {done} texts differ where no rounding explains it; {compared}{near}{also}",
        )
    if failure:
        return "undecided", f"{failure}; {compared}"
    if not tokens:
        return "undecided", "the budget was spent before it began"
    if not drafted:
        return "undecided", f"nothing was ever drafted; {compared}"
    bound = math.log(1 / plan.alpha) / tokens
    seen = f"a difference in one token of {1 / bound:,.0f} would have been found"
    verdict: Verdict = "pass" if bound <= plan.detect else "undecided"
    return verdict, f"the same tokens as plain generate; {compared}{near}; {seen}"
