"""Differences that the two servers' settings explain, and which setting it seems to be.

Pure. Each explanation must hold without exception for what it explains: a stop rule that one server keeps in
one answer and breaks in another is no other setting, it is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.audit.servers.answers import Answer
from surefoot.audit.servers.difference import Difference, common_length, text_bytes

_FEW = 3  # fewer differences than these make no pattern
_PENALIZED = 4
_MOST = 2 / 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """sentence: what differs, and what to look at. prompts: whose differences it explains."""

    sentence: str
    prompts: frozenset[int]


def explain(
    prompts: Sequence[str],
    plain: Sequence[Answer | None],
    other: Sequence[Answer | None],
    differences: Sequence[Difference],
    tie: float,
) -> list[Explanation]:
    """Everything that other settings explain; `differences` is the first difference of each prompt.

    Prompts that are counted differently are told even where they make no difference.

    tie: nats up to which two tokens count as equally likely.
    """
    pairs = [(mine, theirs) for mine, theirs in zip(plain, other, strict=True) if mine and theirs]
    beyond = [found for found in differences if found.kind(tie) != "near-tie"]
    found = [
        _from_the_start(pairs, beyond),
        _maximum(pairs, beyond, 0),
        _maximum(pairs, beyond, 1),
        _stop_rule(plain, other, beyond, "plain"),
        _stop_rule(plain, other, beyond, "other"),
        _penalty(prompts, plain, beyond),
        _not_the_likeliest(beyond, tie),
    ]
    told = [explanation for explanation in found if explanation is not None and explanation.prompts]
    counted = _prompt_lengths(pairs, beyond)
    return told if counted is None else [counted, *told]


def _all(differences: Sequence[Difference]) -> frozenset[int]:
    return frozenset(difference.prompt for difference in differences)


def _prompt_lengths(
    pairs: Sequence[tuple[Answer, Answer]], beyond: Sequence[Difference]
) -> Explanation | None:
    lengths = {(mine.prompt_tokens, theirs.prompt_tokens) for mine, theirs in pairs}
    unequal = sorted((a, b) for a, b in lengths if a is not None and b is not None and a != b)
    if not unequal or len(unequal) < len(lengths):
        return None
    mine, theirs = unequal[0]
    return Explanation(
        f"the same prompt has {mine} tokens on the plain server and {theirs} on the speculative one: another "
        "chat template, tokenizer or beginning-of-sequence token",
        _all(beyond),
    )


def _from_the_start(
    pairs: Sequence[tuple[Answer, Answer]], beyond: Sequence[Difference]
) -> Explanation | None:
    """Every answer differs, most from the first token on, which is the target's own choice by any rule."""
    if len(pairs) < _FEW or len(beyond) < len(pairs):
        return None
    at_once = sum(not found.ended and found.at <= _first_token(found) for found in beyond)
    if at_once < _MOST * len(pairs):
        return None
    return Explanation(
        "all answers differ, most from their first token on: another model or prompt", _all(beyond)
    )


def _first_token(found: Difference) -> int:
    """The last byte at which texts may part that differ in their first token."""
    return len(found.place.token.data or b"") - 1 if found.place is not None else 0


def _maximum(
    pairs: Sequence[tuple[Answer, Answer]], beyond: Sequence[Difference], side: int
) -> Explanation | None:
    """One side's answers that end early all end for their length, at one number of tokens."""
    names = ("plain", "other")
    cut = [found for found in beyond if found.ended == names[side]]
    lengths = {pair[side].tokens for pair in pairs if pair[side].finish == "length"}
    most = {pair[1 - side].tokens for pair in pairs if pair[1 - side].finish == "length"}
    if not cut or len(lengths) != 1 or None in lengths or lengths == most:
        return None
    [limit] = lengths
    assert limit is not None
    if any((pair[side].tokens or 0) > limit for pair in pairs):
        return None
    explained = frozenset(found.prompt for found in cut)
    server = ("plain", "speculative")[side]
    return Explanation(f"the {server} server's answers end at {limit} tokens: another maximum", explained)


def _stop_rule(
    plain: Sequence[Answer | None],
    other: Sequence[Answer | None],
    beyond: Sequence[Difference],
    side: str,
) -> Explanation | None:
    """One side stops where the other goes on: at every stop, or always before the same text."""
    stopping, going = (plain, other) if side == "plain" else (other, plain)
    cut = [
        found
        for found in beyond
        if found.ended == side and (answer := stopping[found.prompt]) and answer.finish == "stop"
    ]
    if len(cut) < _FEW:
        return None
    stopped = [number for number, answer in enumerate(stopping) if answer and answer.finish == "stop"]
    server = "plain" if side == "plain" else "speculative"
    prompts = frozenset(found.prompt for found in cut)
    if prompts == frozenset(stopped):
        over = ", or speculation that runs over every end" if side == "plain" else ""
        return Explanation(f"only the {server} server stops there: other stop rules{over}", prompts)
    rests = [text_bytes(answer)[found.at :] for found in cut if (answer := going[found.prompt])]
    stop = _common(rests)
    kept = [text_bytes(answer) for answer in stopping if answer]
    if not stop or any(stop in text for text in kept):
        return None
    shown = stop.decode(errors="replace")
    return Explanation(f"the {server} server always stops before {shown!r}: other stop rules", prompts)


def _common(texts: Sequence[bytes]) -> bytes:
    first, last = min(texts), max(texts)
    return first[: common_length(first, last)]


def _penalty(
    prompts: Sequence[str], plain: Sequence[Answer | None], beyond: Sequence[Difference]
) -> Explanation | None:
    """The speculative side turns from a token that was there before to the likeliest that was not."""
    avoided = []
    for found in beyond:
        answer = plain[found.prompt]
        if found.ended or found.place is None or found.candidate is None or answer is None:
            continue
        before = prompts[found.prompt].encode() + text_bytes(answer)[: found.at]
        unused = [choice for choice in found.place.top if choice.data and choice.data not in before]
        token = found.place.token.data
        repeats = bool(token) and token is not None and token in before
        if repeats and unused and unused[0].same(found.candidate):
            avoided.append(found.prompt)
    if len(avoided) < _PENALIZED or len(avoided) < sum(not found.ended for found in beyond):
        return None
    return Explanation(
        "the speculative server turns from tokens that were there before to the likeliest new one, every "
        "time: a repetition, presence or frequency penalty on that side only",
        frozenset(avoided),
    )


def _not_the_likeliest(beyond: Sequence[Difference], tie: float) -> Explanation | None:
    """The plain server passes over its own likeliest token, and the speculative one takes it."""
    passed = [
        found.prompt
        for found in beyond
        if found.place is not None
        and found.candidate is not None
        and found.candidate.same(found.place.top[0])
        and found.place.top[0].logprob - found.place.token.logprob > tie
    ]
    if not passed:
        return None
    return Explanation(
        "the plain server passes over the likeliest token of its own list at temperature 0, where the "
        "speculative one takes it: a penalty, a bias or bad words on the plain side only",
        frozenset(passed),
    )
