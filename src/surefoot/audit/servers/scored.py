"""Sampled tokens against the plain server's probabilities: its own first, then the speculative one's."""

from __future__ import annotations

import math
from typing import Any

from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Curve, Table, Verdict
from surefoot.audit.servers.asking import Server
from surefoot.audit.servers.game import HALF, SUSPICIONS, UNLISTED, new_evidence, play, share_seen
from surefoot.audit.servers.plan import ServerPlan
from surefoot.audit.servers.samples import ask_samples
from surefoot.audit.servers.scoring import Scorer
from surefoot.evidence import Evidence

_LOG10 = math.log(10)


def check_scored(
    plain: Server, other: Server, plan: ServerPlan, budget: Budget, scorer: Scorer
) -> tuple[Check, ...]:
    """Plays both servers' samples, until one game is won, the samples are used up, or the budget is."""
    own, evidence = (new_evidence(plan.alpha, plan.tolerance) for _ in range(2))
    for number in range(plan.samples):
        for server, game in ((plain, own), (other, evidence)):
            samples = ask_samples(server, plan, number)
            for places in scorer.score(samples):
                shown = plain.dialect.shown
                play(game, places, shown=shown, temperature=plan.temperature, top_k=plan.top_k)
        if own.found or evidence.found or not budget.left:
            break
    return _own_check(own, plan), _scored_check(evidence, own, plan, other)


def _own_check(own: Evidence, plan: ServerPlan) -> Check:
    verdict: Verdict = "pass"
    summary = f"{own.tokens} of its own tokens fit the probabilities that it reports"
    if own.found:
        verdict = "settings"
        summary = "the log probabilities that the plain server reports aren't those it samples from"
    elif not own.tokens:
        verdict, summary = "undecided", "none of its own tokens could be scored"
    return _evidence_check("the plain server's own samples", verdict, summary, own, ())


def _scored_check(evidence: Evidence, own: Evidence, plan: ServerPlan, other: Server) -> Check:
    share = share_seen(evidence)
    verdict: Verdict
    if own.found:
        verdict, summary = "settings", "not judged: the plain server's own samples don't fit its report"
    elif evidence.found:
        sight = evidence.sights()[0]
        verdict = "loss"
        summary = (
            f"the tokens aren't drawn from the plain server's probabilities: {sight.suspicion} came up "
            f"{abs(sight.excess):.1%} too {'often' if sight.excess > 0 else 'seldom'}"
        )
    elif not evidence.tokens:
        verdict, summary = "undecided", "none of its tokens could be scored"
    else:
        verdict = "pass" if share <= plan.detect else "undecided"
        seen = (
            f"a share of {share:.1%} of likeliest tokens put in would have been seen"
            if share <= 1
            else ("no share of foreign tokens would have been seen")
        )
        summary = f"{evidence.tokens} tokens fit the plain server's probabilities; {seen}"
    details = []
    if not other.dialect.ids:
        details.append(
            "asked with log probabilities: a server that doesn't speculate then wasn't seen doing it"
        )
    if verdict == "loss" and evidence.sight(HALF).excess > 0 > evidence.sight(UNLISTED).excess:
        details.append("likely tokens too often, unlikely ones too seldom: look at its temperature and top-p")
    return _evidence_check("sampled tokens, scored", verdict, summary, evidence, tuple(details))


def _evidence_check(
    name: str, verdict: Verdict, summary: str, evidence: Evidence, details: tuple[str, ...]
) -> Check:
    sights = [evidence.sight(suspicion) for suspicion in SUSPICIONS]
    rows = tuple(
        (sight.suspicion, sight.tokens, round(sight.excess, 4), round(sight.log_e / _LOG10, 2))
        for sight in sights
    )
    table = Table("suspicions", ("suspicion", "tokens", "excess", "log10 e"), rows, bar="log10 e")
    points = tuple((tokens, log_e / _LOG10) for tokens, log_e in evidence.curve)
    curve = Curve("evidence", points, evidence.limit / _LOG10)
    share = share_seen(evidence)
    facts: dict[str, Any] = {
        "log10_e": evidence.log_e / _LOG10,
        "smallest_share_seen": share if math.isfinite(share) else None,
    }
    return Check(name, verdict, summary, evidence.tokens, details, (table,), (curve,), facts)
