"""Two texts that part, followed by the plain server: how close the two tokens were there.

For servers whose answers told too little on the way. Either the list of tokens behind the common text is
asked for, or, where there are no lists, some sampled continuations of it are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from surefoot.audit.servers.answers import Answer, Place, parse
from surefoot.audit.servers.difference import Difference, begins, find_gap, text_bytes

_STEPS = 8  # tokens from the last space before the difference
_WORD = 4  # tokens of a sampled continuation

Continue = Callable[[str, int, int], Sequence[dict[str, Any] | None]]
"""Asks the plain server to go on from a text for so many tokens, so many times; None: no budget."""


def follow_lists(
    difference: Difference, prompt: str, plain: Answer, other: Answer, go_on: Continue, *, shown: int
) -> Difference:
    """The same with its gap, where the server's lists told it.

    The text is fed from the last space before the difference on, token by token, since a prompt that ends
    within a token is read as other tokens. shown: as for `find_gap`.
    """
    ours, theirs = text_bytes(plain), text_bytes(other)
    begin = _last_space(ours, difference.at)
    for _ in range(_STEPS):
        [payload] = go_on(prompt + ours[:begin].decode(errors="replace"), 1, 1)
        places = None if payload is None else parse(payload).places
        if not places or not places[0].top:
            return difference
        top = places[0].top
        mine = next((choice for choice in top if begins(ours[begin:], choice)), None)
        if mine is None:
            return difference
        if not begins(theirs[begin:], mine):
            place = Place(mine, top)
            gap, candidate = find_gap(place, theirs[begin:], shown)
            return replace(
                difference, gap=gap, listed=candidate is not None, place=place, candidate=candidate
            )
        if not mine.data or begin + len(mine.data) > difference.at:
            return difference
        begin += len(mine.data)
    return difference


def _last_space(text: bytes, at: int) -> int:
    found = text.rfind(b" ", 0, at)
    return max(found, 0)


def follow_draws(
    difference: Difference,
    prompt: str,
    plain: Answer,
    other: Answer,
    go_on: Continue,
    *,
    draws: int,
    tie: float,
    alpha: float,
) -> Difference:
    """The same with an infinite gap, where sampled continuations show that no near-tie can explain it.

    If the other side's token were within `tie` nats of the plain one's, it would be drawn at least e^−tie
    times as often. Of the draws, those that go on with all of the plain answer's next word are counted, which
    are at most as many as have its token, and those that go on with the other's next character, which are at
    least as many as have its. So among both the second kind has a share of 1 / (1 + e^tie) or more, and fewer
    than that with probability `alpha` at most.
    """
    ours, theirs = text_bytes(plain), text_bytes(other)
    if difference.ended is not None:
        return difference
    begin = _last_space(ours, difference.at)
    word = ours[begin : _word_end(ours, difference.at)]
    letter = theirs[begin : difference.at + 1]
    base = prompt + ours[:begin].decode(errors="replace")
    drawn = [text_bytes(parse(payload)) for payload in go_on(base, _WORD, draws) if payload is not None]
    mine = sum(text.startswith(word) for text in drawn)
    yours = sum(text.startswith(letter) for text in drawn)
    share = 1 / (1 + math.exp(tie))
    total = mine + yours
    chance = sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(yours + 1))
    return replace(difference, gap=math.inf) if chance <= alpha else difference


def _word_end(text: bytes, at: int) -> int:
    end = text.find(b" ", at + 1)
    return len(text) if end < 0 else end
