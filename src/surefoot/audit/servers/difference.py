"""Where two answers at temperature 0 part, and how far apart the two tokens were there.

Pure: answers in, differences out. Texts are compared as bytes, so that half a character is no obstacle; the
plain server's own list of tokens at the place of the first difference says how close the other token was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from surefoot.audit.servers.answers import Answer, Choice, Place

Kind = Literal["near-tie", "loss", "unknown"]
_LOOK_BACK = 3  # tokens: "un·happy" parts from "unh·appily" earlier than it shows
_SPECIAL = re.compile(rb"<[^<>\s]*>")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two answers to one prompt.

    at: bytes of the common text. plain, other: what follows it, shortened; empty at an answer's end. gap:
    nats between the two tokens in the plain server's list; None where that isn't known. listed: whether the
    other token is in the list; where not, the gap is at least so large. place: the plain server's list there.
    candidate: the other token in it. ended: which answer is a beginning of the other, if one is.
    """

    prompt: int
    at: int
    plain: str
    other: str
    gap: float | None
    listed: bool
    place: Place | None = None
    candidate: Choice | None = None
    ended: Literal["plain", "other"] | None = None

    def kind(self, tie: float) -> Kind:
        """near-tie: either token may come first. unknown: too little is listed to say."""
        if self.gap is None:
            return "unknown"
        if self.listed:
            return "near-tie" if self.gap <= tie else "loss"
        return "loss" if self.gap > tie else "unknown"


def text_bytes(answer: Answer) -> bytes:
    """Its text without a last character that the cut left unfinished."""
    return answer.text.rstrip("�").encode("utf-8", errors="replace")


def common_length(one: bytes, other: bytes) -> int:
    """Bytes until they part."""
    ends = min(len(one), len(other))
    return next((at for at in range(ends) if one[at] != other[at]), ends)


def find_difference(
    prompt: int, plain: Answer, other: Answer, *, tie: float, shown: int
) -> Difference | None:
    """None for equal texts.

    tie: nats; a nearby place with a smaller gap is taken for where they parted. shown: as for `find_gap`.
    """
    ours, theirs = text_bytes(plain), text_bytes(other)
    at = common_length(ours, theirs)
    if ours == theirs or (at == min(len(ours), len(theirs)) and _cut_mid_character(plain, other, at)):
        return None
    ended: Literal["plain", "other"] | None = None
    if at == len(ours):
        ended = "plain"
    elif at == len(theirs):
        ended = "other"
    snippets = _snippet(ours, at), _snippet(theirs, at)
    offsets = None if plain.places is None else find_offsets(plain.places, ours)
    nothing = Difference(prompt, at, *snippets, None, False, ended=ended)
    shorter, longer = (plain, other) if ended == "plain" else (other, plain)
    if ended is not None and shorter.finish == "length":  # no token ended it, so no list can tell
        early = None not in (shorter.tokens, longer.tokens) and (shorter.tokens or 0) < (longer.tokens or 0)
        return replace(nothing, gap=math.inf) if early else nothing
    if not plain.places or not offsets:
        return nothing
    if ended == "plain" and offsets[-1] != at:  # the end of the sequence has no list
        return nothing
    lost = b" " if not ours.startswith(b" ") and (plain.places[0].token.data or b"").startswith(b" ") else b""
    best = nothing
    for number in _places_before(offsets, at):
        place = plain.places[number]
        rest = (lost if number == 0 else b"") + theirs[offsets[number] :]
        gap, candidate = find_gap(place, rest, shown)
        if best.place is None or (candidate is not None and gap <= tie):
            listed = candidate is not None
            best = replace(nothing, gap=gap, listed=listed, place=place, candidate=candidate)
    return best


def _cut_mid_character(plain: Answer, other: Answer, at: int) -> bool:
    """Whether one merely shows less of the same last character."""
    halves = [answer.text.endswith("�") for answer in (plain, other)]
    longer = max(text_bytes(plain), text_bytes(other), key=len)
    return any(halves) and len(longer[at:].decode(errors="replace")) <= 1 and plain.tokens == other.tokens


def _snippet(text: bytes, at: int) -> str:
    """Up to 24 characters from the one that holds byte `at` on."""
    while at and at < len(text) and text[at] & 0xC0 == 0x80:
        at -= 1
    return text[at:].decode(errors="replace")[:24]


def find_offsets(places: Sequence[Place], text: bytes) -> list[int] | None:
    """Where each token begins in the text; None where they don't spell it.

    Tokens that hold parts of characters may be unreadable: a run of them reaches to where the next readable
    one is found. Tokens behind the end of the text (an end of sequence) begin at its end. A first token may
    have lost its leading space.
    """
    offsets: list[int] = []
    end = 0
    unread = False
    for number, place in enumerate(places):
        data = place.token.data
        if data is None:
            offsets.append(end)
            unread = True
            continue
        begin = text.find(data, end + 1) if unread and data else end
        if number == 0 and not text.startswith(data) and text.startswith(data.lstrip(b" ")):
            data = data.lstrip(b" ")
        if begin < 0 or not text.startswith(data, begin):
            if end == len(text) or (_SPECIAL.fullmatch(data) and number == len(places) - 1):
                offsets.append(len(text))
                continue
            if unread or not text.startswith(data[: len(text) - begin], begin):
                return None
        offsets.append(begin)
        end, unread = min(begin + len(data), len(text)), False
    return offsets


def _places_before(offsets: Sequence[int], at: int) -> Iterable[int]:
    """The token that holds byte `at`, then a few before it; none where the tokens end earlier."""
    holding = [number for number, begin in enumerate(offsets) if begin <= at]
    if not holding:
        return ()
    # Several begin at one byte where they can't be read, or at the end; the first of them counts there.
    last = offsets.index(offsets[holding[-1]])
    return range(last, max(last - _LOOK_BACK - 1, -1), -1)


def find_gap(place: Place, rest: bytes, shown: int) -> tuple[float, Choice | None]:
    """Nats between the plain server's token and the likeliest listed one that the other text may go on with.

    Where none is listed, the distance from the likeliest to the list's end, behind which it must be. rest: of
    the other text; empty where it ends, so that an end of sequence is looked for. shown: how many tokens the
    list surely holds in their order; behind those there may be the plain server's token, alone.
    """
    for choice in place.top:
        if not choice.same(place.token) and begins(rest, choice):
            return abs(place.token.logprob - choice.logprob), choice
    likely = place.top[:shown]
    return (likely[0].logprob - likely[-1].logprob if likely else 0.0), None


def begins(text: bytes, choice: Choice) -> bool:
    """Whether a text may begin with the token; an empty one, with an end of sequence."""
    if choice.data is None:  # a part of a character
        return bool(text) and text[0] >= 0x80
    if not text:
        return is_end(choice)
    return bool(choice.data) and text.startswith(choice.data)


def is_end(choice: Choice) -> bool:
    """Whether it is written like an end of sequence: <|im_end|>, </s>, or nothing at all."""
    return not choice.name or (choice.data is not None and _SPECIAL.fullmatch(choice.data) is not None)
