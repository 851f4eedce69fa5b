"""What a fault would pull tokens towards: sets of tokens that are fixed before the token is.

A suspicion may know everything that came before the token, and the rows that draft tokens were drawn from,
but not the draft tokens at or behind its place: whether one of those is emitted depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.evidence import Observation
from surefoot.sampling import Candidates
from surefoot.tree import ROOT, children, parents_of
from surefoot.types import Draft

THE_DRAFT = "the draft"
UNTRANSFORMED = "the target before the transforms"
LIKELIEST = "the likeliest token"
LIKELY = "the likely tokens"
NEIGHBOUR = "the neighbour's token"
SUSPICIONS = (THE_DRAFT, UNTRANSFORMED, LIKELIEST, LIKELY, NEIGHBOUR)

_SINGLE = 8  # places in the draft that are looked at one by one
FARTHER = f"draft {_SINGLE + 1}+"
BEHIND = "after the draft"
ALONE = "without a draft"
FIRST = "at the start"  # behind the prompt, where there is no draft yet
PLACES = (*(f"draft {depth}" for depth in range(1, _SINGLE + 1)), FARTHER, BEHIND, ALONE, FIRST)

_LIKELY = 0.1  # of the likeliest token's probability
_SAME = 1e-9  # probabilities this close differ by rounding


@dataclass(frozen=True, slots=True)
class Guess:
    """What the drafter said about a token before it was known: its distribution, or its one token when it
    drew from none."""

    token: int
    probs: NDArray[np.float64] | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an output token stood. place: one of `PLACES`. guess: None where no draft reached."""

    place: str
    guess: Guess | None = None


def standings(prompt_length: int, output: Sequence[int], rounds: Mapping[int, Draft]) -> list[Standing]:
    """Where each output token stood, by the drafts alone: what the engine made of them isn't asked.

    rounds: committed tokens when a draft was made → the draft, as `Recorder.rounds` has them. A token stands
    in a draft as long as all before it since the draft was made are on a path of it. Of siblings the eldest
    speaks, whose row knows none of the others.
    """
    result: list[Standing] = []
    draft, node, depth = Draft(), ROOT, 0
    below: Mapping[int, Sequence[int]] = {ROOT: ()}
    place = FIRST  # of a token that no draft reaches
    for position, token in enumerate(output, start=prompt_length):
        if position in rounds:
            draft, node, depth = rounds[position], ROOT, 0
            below = children(parents_of(draft.parents, len(draft.tokens)))
            place = BEHIND if draft.tokens else place
        siblings = below[node]
        if not siblings:
            result.append(Standing(place))
            place = ALONE
            continue
        depth += 1
        eldest = siblings[0]
        probs = None if draft.probs is None else draft.probs[eldest]
        where = f"draft {depth}" if depth <= _SINGLE else FARTHER
        result.append(Standing(where, Guess(draft.tokens[eldest], probs)))
        following = [child for child in siblings if draft.tokens[child] == token]
        if following:
            node = following[0]
        else:
            below, node, place = {ROOT: ()}, ROOT, ALONE
    return result


def observations(
    token: int,
    target: Candidates,
    logits: NDArray[np.float32],
    standing: Standing,
    neighbour: int | None,
) -> Iterator[Observation]:
    """One output token against every suspicion that says something about it.

    target: what it is to be chosen from. logits: the target's row, [vocabulary], padding excluded. neighbour:
    what another request with the same prompt emitted at the same place, if one did.
    """
    if standing.guess is not None:
        yield _by_draft(token, target, standing.guess, standing.place)
    raw = _softmax(logits)
    probs = target.dense(len(raw))
    if np.abs(raw - probs).max() > _SAME:
        yield _favoured(UNTRANSFORMED, standing.place, token, probs, raw)
    likeliest = int(target.ids[target.probs.argmax()])
    for suspicion, suspect in ((LIKELIEST, likeliest), (NEIGHBOUR, neighbour)):
        if suspect is not None:
            yield _single(suspicion, standing.place, token, target, suspect)
    likely = target.probs >= _LIKELY * target.probs.max()
    if not likely.all():
        total = _probability(target.probs[likely].sum())
        yield Observation(LIKELY, standing.place, total, token in target.ids[likely], 1.0)


def prob_of(target: Candidates, token: int) -> float:
    """The probability of a token; 0 for one that can't be chosen."""
    return float(target.probs[target.ids == token].sum())


def _by_draft(token: int, target: Candidates, guess: Guess, place: str) -> Observation:
    if guess.probs is None:
        return _single(THE_DRAFT, place, token, target, guess.token)
    return _favoured(THE_DRAFT, place, token, target.dense(len(guess.probs)), guess.probs)


def _favoured(
    suspicion: str, place: str, token: int, probs: NDArray[np.float64], suspect: NDArray[np.float64]
) -> Observation:
    """Against the tokens that are likelier under what is suspected."""
    favoured = suspect > probs
    return Observation(
        suspicion,
        place,
        _probability(probs[favoured].sum()),
        bool(favoured[token]),
        _probability(suspect[favoured].sum()),
    )


def _single(suspicion: str, place: str, token: int, target: Candidates, suspect: int) -> Observation:
    """Against one token, which what is suspected would always choose."""
    return Observation(suspicion, place, _probability(prob_of(target, suspect)), token == suspect, 1.0)


def _probability(total: float) -> float:
    """A sum of probabilities: rounding may have brought it past 1."""
    return min(float(total), 1.0)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = logits.astype(np.float64)
    weights -= weights.max()
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return weights
