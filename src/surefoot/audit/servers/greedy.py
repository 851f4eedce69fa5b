"""Both servers at temperature 0, held against what the plain one does to itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefoot.audit.report import Check, Verdict
from surefoot.audit.servers.answers import Answer, parse
from surefoot.audit.servers.asking import Call, Server
from surefoot.audit.servers.difference import Difference, find_difference
from surefoot.audit.servers.follow import follow_draws, follow_lists
from surefoot.audit.servers.plan import ServerPlan
from surefoot.audit.servers.settings import Explanation, explain

_SHOWN = 5  # differences in a report
_DRAWS = 48  # sampled continuations that stand in for a list of tokens
_POWER = 0.9
_ROUNDING = 0.5  # nats: the furthest that rounding is believed to move a server's tokens against each other


@dataclass(frozen=True)
class Floor:
    """What the plain server does to itself. tie: nats up to which its tokens take each other's place."""

    check: Check
    plain: tuple[Answer | None, ...]
    compared: int
    near_ties: int
    losses: int
    tie: float


def greedy_calls(server: Server, plan: ServerPlan, purpose: str, *, logprobs: bool) -> list[Call]:
    """A call for every prompt at temperature 0."""
    dialect = server.dialect
    return [
        Call(
            purpose,
            number,
            0,
            dialect.path,
            dialect.request(prompt, max_tokens=plan.max_tokens, temperature=0.0, logprobs=logprobs),
        )
        for number, prompt in enumerate(plan.prompts)
    ]


def again_calls(server: Server, plan: ServerPlan) -> list[Call]:
    """The same in another order, so that every prompt has other company."""
    calls = greedy_calls(server, plan, "again", logprobs=False)
    return [calls[at] for at in np.random.default_rng(plan.seed).permutation(len(calls))]


def find_floor(plain: Server, plan: ServerPlan) -> Floor:
    """Asks the plain server twice."""
    first = _parsed(plain.answers(greedy_calls(plain, plan, "greedy", logprobs=True)))
    calls = again_calls(plain, plan)
    answered = zip(calls, plain.answers(calls), strict=True)
    by_prompt = {call.prompt: payload for call, payload in answered}
    second = _parsed([by_prompt[number] for number in range(len(plan.prompts))])
    found = _differences(plain, plan, first, second, plan.tie_gap)
    tie = _widened(found, plan.tie_gap)
    losses = sum(difference.kind(tie) != "near-tie" for difference in found)
    compared = _compared(first, second)
    tokens = _tokens(first, second, found)
    verdict: Verdict = "undecided" if losses or not compared else "pass"
    summary = f"{len(found)} of {compared} answers changed when the plain server was asked again"
    if found and not losses:
        summary += ", all of them near-ties"
    if tie > plan.tie_gap:
        summary += f"; some are wider than {plan.tie_gap} nats, so up to {tie:.2f} count as one from here on"
    if losses:
        summary += f"; {losses} of them beyond a near-tie: it is not reproducible at temperature 0"
    facts = {"answers": compared, "changed": len(found), "beyond_near_tie": losses, "tie_gap": tie}
    name = "the plain server against itself"
    check = Check(name, verdict, summary, tokens, _lines(found, tie), facts=facts)
    return Floor(check, first, compared, len(found) - losses, losses, tie)


def _widened(found: Sequence[Difference], tie: float) -> float:
    """Twice the widest gap that the plain server jumps by itself, if that is wider than a near-tie.

    Twice, since the widest of a few is not the widest there is. What is further apart than any rounding puts
    two tokens is left to count as a loss of its own.
    """
    gaps = [difference.gap for difference in found if difference.listed and difference.gap is not None]
    widest = max((gap for gap in gaps if gap <= _ROUNDING), default=0.0)
    return tie if widest <= tie else 2 * widest


def check_greedy(plain: Server, other: Server, plan: ServerPlan, floor: Floor) -> Check:
    """The speculative server's answers against the plain one's: same, near-tie, other settings, or loss."""
    theirs = _parsed(other.answers(greedy_calls(other, plan, "greedy", logprobs=False)))
    found = _differences(plain, plan, floor.plain, theirs, floor.tie)
    explanations = explain(plan.prompts, floor.plain, theirs, found, floor.tie)
    compared = _compared(floor.plain, theirs)
    tokens = _tokens(floor.plain, theirs, found)
    return _judge(found, explanations, floor, plan, compared, tokens)


def _judge(
    found: Sequence[Difference],
    explanations: Sequence[Explanation],
    floor: Floor,
    plan: ServerPlan,
    compared: int,
    tokens: int,
) -> Check:
    kinds = {difference.prompt: difference.kind(floor.tie) for difference in found}
    explained = frozenset[int]().union(*(explanation.prompts for explanation in explanations))
    left = {prompt: kind for prompt, kind in kinds.items() if prompt not in explained and kind != "near-tie"}
    losses = sum(kind == "loss" for kind in left.values())
    unknown = len(left) - losses
    near_ties = sum(kind == "near-tie" for kind in kinds.values())
    beyond = not floor.losses or _tail(losses, compared, floor.losses, floor.compared) <= plan.alpha
    smallest = 1 - (1 - _POWER) ** (1 / tokens) if tokens else 1.0
    details = [explanation.sentence for explanation in explanations]
    same = f"{compared - len(found)} of {compared} answers are the same"
    verdict: Verdict
    if losses and beyond:
        verdict = "loss"
        summary = f"{losses} of {compared} answers differ by more than a near-tie ({floor.tie:.2f} nats)"
    elif explained and not left:
        verdict, summary = "settings", f"{same}; other settings explain the other {len(explained)}"
    elif left:
        verdict = "undecided"
        summary = f"{same}; {len(left)} differ in a way that may be a near-tie or not"
        if losses:
            summary = f"{same}; {losses} differ by more than a near-tie, as the plain server does from itself"
        elif unknown:
            details.append("the plain server lists too few tokens to tell a near-tie from a loss")
    else:
        verdict = "pass" if smallest <= plan.detect else "undecided"
        summary = f"{same}, {near_ties} part at a near-tie ({floor.tie:.2f} nats or less)"
    if _tail(near_ties, compared, floor.near_ties, floor.compared) <= plan.alpha:
        details.append(
            f"{near_ties} near-ties against {floor.near_ties} of the plain server with itself: speculation "
            "runs other kernels, which is no loss"
        )
    details += _lines([difference for difference in found if difference.prompt in left] or found, floor.tie)
    facts: Mapping[str, Any] = {
        "answers": compared,
        "differ": len(found),
        "near_ties": near_ties,
        "losses": losses,
        "unknown": unknown,
        "explained": len(explained),
        "smallest_share_seen": smallest,
    }
    return Check("same answers at temperature 0", verdict, summary, tokens, tuple(details), facts=facts)


def _parsed(payloads: Sequence[dict[str, Any] | None]) -> tuple[Answer | None, ...]:
    return tuple(None if payload is None else parse(payload) for payload in payloads)


def _differences(
    plain: Server,
    plan: ServerPlan,
    ours: Sequence[Answer | None],
    theirs: Sequence[Answer | None],
    tie: float,
) -> list[Difference]:
    shown = plain.dialect.shown
    found = [
        find_difference(number, mine, other, tie=tie, shown=shown)
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True))
        if mine is not None and other is not None
    ]
    parted = [difference for difference in found if difference is not None]
    return _followed(plain, plan, ours, theirs, parted, tie)


def _followed(
    plain: Server,
    plan: ServerPlan,
    ours: Sequence[Answer | None],
    theirs: Sequence[Answer | None],
    found: Sequence[Difference],
    tie: float,
) -> list[Difference]:
    """The differences, where the answers themselves told too little after asking the plain server more."""
    if not plain.live or plan.chat:
        return list(found)
    unknown = max(1, sum(difference.kind(tie) == "unknown" for difference in found))
    followed = []
    for difference in found:
        mine, other = ours[difference.prompt], theirs[difference.prompt]
        assert mine is not None
        assert other is not None
        prompt = plan.prompts[difference.prompt]

        def go_on(text: str, tokens: int, times: int, number: int = difference.prompt) -> list[Any]:
            body = plain.dialect.continuation(text, tokens)
            return plain.answers([Call("follow", number, i, "/v1/completions", body) for i in range(times)])

        if difference.kind(tie) == "unknown" and plain.dialect.listed:
            difference = follow_lists(difference, prompt, mine, other, go_on, shown=plain.dialect.shown)
        if difference.kind(tie) == "unknown":
            alpha = plan.alpha / unknown
            difference = follow_draws(
                difference, prompt, mine, other, go_on, draws=_DRAWS, tie=tie, alpha=alpha
            )
        followed.append(difference)
    return followed


def _compared(plain: Sequence[Answer | None], other: Sequence[Answer | None]) -> int:
    return sum(a is not None and b is not None for a, b in zip(plain, other, strict=True))


def _tokens(
    plain: Sequence[Answer | None], other: Sequence[Answer | None], found: Sequence[Difference]
) -> int:
    """Output tokens before the first difference of each answer, and the one that differs."""
    parted = {difference.prompt: difference.at for difference in found}
    total = 0
    for number, (mine, theirs) in enumerate(zip(plain, other, strict=True)):
        if mine is None or theirs is None:
            continue
        tokens = mine.tokens or len(mine.places or mine.text.split())
        size = len(mine.text.encode()) or 1
        total += min(tokens, math.floor(tokens * parted[number] / size) + 1) if number in parted else tokens
    return total


def _tail(hits: int, of: int, others: int, of_others: int) -> float:
    """Fisher's exact test: the probability of so many of all hits, or more, among the first, by chance."""
    total, drawn = of + of_others, hits + others
    ways = [math.comb(of, k) * math.comb(of_others, drawn - k) for k in range(hits, min(of, drawn) + 1)]
    return sum(ways) / math.comb(total, drawn)


def _lines(found: Sequence[Difference], tie: float) -> tuple[str, ...]:
    worst = sorted(found, key=lambda difference: -(difference.gap or 0.0))[:_SHOWN]
    return tuple(_line(difference, tie) for difference in worst)


def _line(difference: Difference, tie: float) -> str:
    far = "an unknown distance apart"
    if difference.gap is not None and math.isfinite(difference.gap):
        far = (
            f"{'' if difference.listed else 'more than '}{difference.gap:.2f} nats apart for the plain server"
        )
    elif difference.gap is not None:
        far = "too far apart for a near-tie"
    plain = repr(difference.plain) if difference.ended != "plain" else "the end"
    other = repr(difference.other) if difference.ended != "other" else "the end"
    kind = difference.kind(tie)
    return f"prompt {difference.prompt}, byte {difference.at}: {plain} became {other}, {far} ({kind})"
