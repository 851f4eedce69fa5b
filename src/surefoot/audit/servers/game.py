"""What a sampled token is held against, given the plain server's list for its place.

Pure. Every suspicion is fixed before the token is: it depends on the list and on the tokens before alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.servers.answers import Choice, Place
from surefoot.evidence import Evidence, Observation

LIKELIEST = "the likeliest token"
HALF = "the likelier half"
UNLISTED = "a token not listed"
GUESS = "the n-gram guess"
SUSPICIONS = (LIKELIEST, HALF, UNLISTED, GUESS)
PLACES = ("first token", "later tokens")
_LONGEST = 2  # tokens that an n-gram guess looks back on


def new_evidence(alpha: float, tolerance: float) -> Evidence:
    """A game that nothing was played of."""
    return Evidence(SUSPICIONS, PLACES, alpha, tolerance)


def play(evidence: Evidence, places: Sequence[Place], *, shown: int, temperature: float, top_k: int) -> None:
    """Plays one answer's tokens.

    shown: how many tokens every list holds at least, which is how many are looked at. temperature, top_k:
    what was sampled with; a temperature other than 1 needs a top_k of `shown` or less, so that the list is
    all of the distribution.
    """
    before: list[Choice] = []
    for number, place in enumerate(places):
        top = place.top[: top_k or shown]
        if top:
            where = PLACES[number > 0]
            top, probs = _merged(top, _probs(top, temperature, complete=bool(top_k)))
            evidence.add(_observations(place.token, top, probs, where, before), 1)
        before.append(place.token)


def _probs(top: Sequence[Choice], temperature: float, *, complete: bool) -> NDArray[np.float64]:
    """What the tokens are drawn with; a list that is complete sums to 1."""
    logprobs = np.array([choice.logprob for choice in top])
    if complete:
        weights = np.exp((logprobs - logprobs.max()) / temperature)
        return np.asarray(weights / weights.sum())
    probs = np.exp(logprobs)
    return np.asarray(probs / max(1.0, probs.sum()))


def _merged(
    top: Sequence[Choice], probs: NDArray[np.float64]
) -> tuple[tuple[Choice, ...], NDArray[np.float64]]:
    """Tokens that can't be told apart (parts of characters, by name) count as one; the likeliest first."""
    sums: list[tuple[Choice, float]] = []
    for choice, prob in zip(top, probs, strict=True):
        at = next((number for number, (other, _) in enumerate(sums) if choice.same(other)), None)
        if at is None:
            sums.append((choice, float(prob)))
        else:
            sums[at] = sums[at][0], sums[at][1] + float(prob)
    sums.sort(key=lambda pair: -pair[1])
    return tuple(choice for choice, _ in sums), np.array([prob for _, prob in sums])


def _observations(
    token: Choice, top: Sequence[Choice], probs: NDArray[np.float64], where: str, before: Sequence[Choice]
) -> Iterator[Observation]:
    at = next((number for number, choice in enumerate(top) if choice.same(token)), len(top))
    sums = np.cumsum(probs)
    yield Observation(LIKELIEST, where, _unit(probs[0]), at == 0, 1.0)
    half = int(np.searchsorted(sums, 0.5))
    if half < len(top):
        yield Observation(HALF, where, _unit(sums[half]), at <= half, 1.0)
    yield Observation(UNLISTED, where, _unit(1 - sums[-1]), at == len(top), 1.0)
    guess = _guess(before)
    for number, choice in enumerate(top):
        if guess is not None and choice.same(guess):
            yield Observation(GUESS, where, _unit(probs[number]), at == number, 1.0)
            return


def _unit(prob: float) -> float:
    return min(1.0, max(0.0, float(prob)))


def _guess(before: Sequence[Choice]) -> Choice | None:
    """What followed the last tokens when they stood there last: two of them if they did, else one."""
    for length in range(_LONGEST, 0, -1):
        last = before[len(before) - length :]
        for start in range(len(before) - length - 1, -1, -1):
            if len(before) > length and all(
                one.same(other) for one, other in zip(before[start : start + length], last, strict=True)
            ):
                return before[start + length]
    return None


def share_seen(evidence: Evidence) -> float:
    """The smallest share of tokens that would have been seen if the likeliest had been taken instead."""
    share = evidence.sight(LIKELIEST).share
    return math.inf if share is None else share
