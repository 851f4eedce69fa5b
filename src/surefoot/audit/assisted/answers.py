"""What a game of sampled tokens says: its verdict, in words and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from surefoot.audit.assisted.sampled import DRAFT, LIKELIEST, Game
from surefoot.audit.report import Check, Curve, Table, Verdict
from surefoot.evidence import Sight

_SHOWN = 5  # impossible tokens spelled out
_ROWS = 12  # of the table
_ALWAYS = 0.99  # how often a greedy draft takes its likeliest token, at least


@dataclass(frozen=True)
class Ending:
    """Why a game ended early. failure: what the mode raised, "" for nothing. control: why it wasn't begun."""

    failure: str = ""
    control: str = ""


def sampled_check(label: str, game: Game, detect: float, ending: Ending, *, assisted: bool) -> Check:
    """assisted: False for the control, in which plain `generate` plays."""
    verdict, summary = _answer(game, detect, ending, assisted)
    evidence = game.evidence
    return Check(
        label,
        verdict,
        summary,
        evidence.tokens,
        details=(*(f"impossible: {text}" for text in game.impossible[:_SHOWN]), *_lines(game)),
        tables=(_table(evidence.sights()[:_ROWS]),) if evidence.tokens else (),
        curves=(
            Curve(
                "evidence that the tokens follow other probabilities",
                tuple((tokens, log_e / math.log(10)) for tokens, log_e in evidence.curve),
                evidence.limit / math.log(10),
            ),
        ),
        facts={
            "log10_e": evidence.log_e / math.log(10),
            "impossible": len(game.impossible),
            "edge": game.edge,
            "drafted": game.drafted,
            "rounds": game.rounds,
            "failure": ending.failure or None,
        },
    )


def power_reached(game: Game, detect: float, *, assisted: bool) -> bool:
    """Whether a bias of `detect` would have been found by now.

    Of the likeliest token's frequency, and of the draft: either that share of tokens taken from it instead of
    from the target would have been found, or draft and target agree so closely that all of them taken from it
    would change less than that.
    """
    if game.evidence.sight(LIKELIEST).bias > detect:
        return False
    if not assisted:
        return True
    draft = game.evidence.sight(DRAFT)
    return draft.tokens > 0 and (_distance(draft) <= detect or (draft.share or math.inf) <= detect)


def _distance(draft: Sight) -> float:
    """The mean total variation between draft and target."""
    return draft.distance or 0.0


def _answer(game: Game, detect: float, ending: Ending, assisted: bool) -> tuple[Verdict, str]:
    scored = f"{game.evidence.tokens} tokens scored"
    if ending.control:
        return "undecided", ending.control
    found = _found(game)
    if found:
        also = f"; then it fails: {ending.failure}" if ending.failure else ""
        if not assisted:
            return "undecided", f"plain generate itself: {found}; {scored}, so nothing can be held against it"
        return "loss", f"{found}; {scored}{also}"
    if ending.failure:
        return "undecided", f"fails: {ending.failure}; {scored}"
    if not game.evidence.tokens:
        return "undecided", "the budget was spent before it began"
    if assisted and not game.drafted:
        return "undecided", f"nothing was ever drafted; {scored}"
    seen = f"{scored}; {_power(game, assisted)}"
    if game.drafts.found:
        return "undecided", f"drafts don't follow the q they come with, though no bias shows yet: {seen}"
    if not power_reached(game, detect, assisted=assisted):
        return "undecided", f"the budget ended it: {seen}"
    return "pass", f"nothing found in {seen}"


def _found(game: Game) -> str:
    if game.impossible:
        return f"{len(game.impossible)} tokens came that plain generate could not have drawn"
    if not game.evidence.found:
        return ""
    strongest = game.evidence.sights()[0]
    return (
        f"the tokens don't follow plain generate's probabilities: {strongest.suspicion} comes "
        f"{abs(strongest.excess):.1%} of tokens too {'often' if strongest.excess > 0 else 'rarely'}, "
        f"{strongest.place} (e-value 10^{_peak(game):.1f}, limit 10^{game.evidence.limit / math.log(10):.1f})"
    )


def _peak(game: Game) -> float:
    return max(log_e for _, log_e in game.evidence.curve) / math.log(10)


def _power(game: Game, assisted: bool) -> str:
    """What would have been seen by now."""
    sight = game.evidence.sight(LIKELIEST)
    text = f"a bias of {sight.bias:.1%} in how often the likeliest token comes"
    if assisted:
        draft = game.evidence.sight(DRAFT)
        if draft.share is not None and draft.share <= 1:
            text += f", or {draft.share:.1%} of drafted places taken from the draft's probabilities,"
        elif draft.tokens:
            text += f" (draft and target differ by {_distance(draft):.1%} only)"
    return f"{text} would have been seen"


def _lines(game: Game) -> tuple[str, ...]:
    lines = []
    if game.drafted:
        emitted = game.evidence.tokens + game.edge + len(game.impossible)
        lines.append(f"{game.drafted} tokens drafted in {game.rounds} rounds, {emitted} emitted")
    if game.edge:
        lines.append(f"{game.edge} tokens at the edge of the nucleus weren't scored")
    if game.drafts.found:
        lines.append(_lying_draft(game))
    return tuple(lines)


def _lying_draft(game: Game) -> str:
    """What it looks like when drafted tokens don't follow the q that verification is given for them."""
    taken, claimed = game.taken / game.drafts.tokens, game.claimed / game.drafts.tokens
    if taken >= _ALWAYS:
        cause = "a greedy draft with a sampled one's q, as in huggingface/transformers#32867"
    elif taken > claimed:
        cause = (
            "a draft drawn after its transforms, with the q before them, as in huggingface/transformers#47932"
        )
    else:
        cause = "a q that belongs to other tokens, as when ids are mapped wrongly"
    return (
        f"drafted tokens don't follow the q they come with: its likeliest token is {taken:.1%} of them where "
        f"q gives it {claimed:.1%}: it looks like {cause}"
    )


def _table(sights: list[Sight]) -> Table:
    rows = tuple(
        (
            sight.suspicion,
            sight.place,
            sight.tokens,
            f"{sight.excess:+.2%}",
            f"{sight.bias:.2%}",
            round(sight.log_e / math.log(10), 2),
        )
        for sight in sights
    )
    return Table(
        "where the tokens stood",
        ("suspicion", "place", "tokens", "too often by", "would be seen", "log10 e"),
        rows,
        bar="log10 e",
    )
