"""Evidence that tokens were not drawn from the probabilities they should have had, valid whenever one looks.

Every output token is held against a set A of tokens that a fault would favour or avoid, fixed before the
token was: with p(A) the probability of hitting it, Z = 1[hit] − p(A) is zero on average, for tokens drawn as
they should be. So a stake that multiplies itself by 1 + λZ after every token is a fair game, and by Ville's
inequality (1939) it ever grows a hundredfold with probability at most 1 / 100, however long one plays and
whenever one stops. Its size is an *e-value*; Ramdas et al. 2210.01948 is an introduction. Many games are
played at once, one for each suspicion, place and λ, each with its share of the stake: their sum is as fair.

No model and no generator in here: probabilities and hits are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SIZES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
LAMBDAS: NDArray[np.float64] = np.array([sign * size for size in _SIZES for sign in (1, -1)])
POWER = 0.9  # how often, at least, a bias of the size that is stated would have been seen
_QUANTILE = 1.2816  # of the normal distribution, at POWER
ANYWHERE = "anywhere"  # the place that takes every token


class Observation(NamedTuple):
    """One output token, held against one suspicion.

    suspicion: what the set A stands for. place: where the token stood, in the draft or behind it. prob: p(A),
    in [0, 1]. hit: whether the token is in A. pull: the probability of A under what is suspected to have
    taken p's place (the drafter's own, say), for sizes of bias; None where nothing particular is.
    """

    suspicion: str
    place: str
    prob: float
    hit: bool
    pull: float | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What could have been seen of one suspicion at one place by now.

    tokens: observations. log_e: the natural logarithm of its own e-value, before its share of the stake.
    excess: mean of 1[hit] − p(A), above 0 for a set that was favoured. bias: the smallest mean excess that
    the audit would have found with probability `POWER`, had the same share of misses everywhere become hits;
    infinite where none would have been. share: the smallest share of tokens taken from what is suspected
    instead of from p that it would have found so; above 1 or infinite where none would have been, None
    without a `pull`. distance: the mean excess if all were taken from there; None without a `pull`.
    """

    suspicion: str
    place: str
    tokens: int
    log_e: float
    excess: float
    bias: float
    share: float | None
    distance: float | None


class _Odds:
    """What some tokens mean to the stakes, [tokens, λ] each.

    won, lost: what a hit and a miss add to the logarithms. mean, variance: of what is added.
    """

    def __init__(self, probs: NDArray[np.float64], toll: NDArray[np.float64]) -> None:
        self._probs = probs[:, None]
        self.won = np.log1p(LAMBDAS * (1 - self._probs)) - toll
        self.lost = np.log1p(LAMBDAS * -self._probs) - toll
        self._stride = self.won - self.lost
        self.mean = self.lost + self._probs * self._stride
        self.variance = self._probs * (1 - self._probs) * self._stride**2

    def moved(self, excess: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much hits that are likelier by `excess`, [tokens], add to mean and variance in all, [2, λ];
        its square is neglected: it would take from the variance."""
        gain = excess[:, None] * self._stride
        return np.stack((gain.sum(0), (gain * (1 - 2 * self._probs) * self._stride).sum(0)))


def _nothing() -> NDArray[np.float64]:
    return np.zeros((2, len(LAMBDAS)))


@dataclass(slots=True)
class _Game:
    """One suspicion at one place: a stake for each λ.

    moments: mean and variance of what the logarithms of the stakes should be by now, [2, λ]. room, pull: what
    is added to them if every miss became a hit, and if every token were taken from what is suspected;
    `room_excess`, `pull_excess`: the sums of 1[hit] − p(A) to be expected then.
    """

    stake: float
    log_wealth: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(LAMBDAS)))
    moments: NDArray[np.float64] = field(default_factory=_nothing)
    room: NDArray[np.float64] = field(default_factory=_nothing)
    pull: NDArray[np.float64] = field(default_factory=_nothing)
    tokens: int = 0
    excess: float = 0.0
    room_excess: float = 0.0
    pull_excess: float = 0.0
    pulled: int = 0

    @property
    def log_e(self) -> float:
        return float(np.logaddexp.reduce(self.log_wealth)) - math.log(len(LAMBDAS))

    def add(self, seen: Sequence[Observation], toll: NDArray[np.float64]) -> None:
        probs = np.array([each.prob for each in seen])
        hits = np.array([each.hit for each in seen])
        odds = _Odds(probs, toll)
        self.log_wealth += np.where(hits[:, None], odds.won, odds.lost).sum(0)
        self.moments += odds.mean.sum(0), odds.variance.sum(0)
        self.room += odds.moved(1 - probs)
        self.tokens += len(seen)
        self.excess += float((hits - probs).sum())
        self.room_excess += float((1 - probs).sum())
        pulls = np.array([each.prob if each.pull is None else each.pull for each in seen]) - probs
        self.pull += odds.moved(pulls)
        self.pull_excess += float(np.abs(pulls).sum())
        self.pulled += sum(each.pull is not None for each in seen)


class Evidence:
    """Plays every game at once.

    suspicions, places: all there will be, fixed before the first token: half of the stake is divided among
    the suspicions, wherever their tokens stand, the other half among suspicions and places. alpha: the
    probability of a false alarm, at most, over the whole audit. tolerance: how far a given p(A) may be from
    the true one; a stake's expected factor is then at most 1 + |λ| · tolerance, and is divided by that.
    """

    def __init__(
        self, suspicions: Sequence[str], places: Sequence[str], alpha: float, tolerance: float = 0.0
    ) -> None:
        self.alpha = alpha
        self._toll = np.log1p(np.abs(LAMBDAS) * tolerance)
        self.tokens = 0
        self.curve: list[tuple[int, float]] = [(0, 0.0)]  # tokens so far, log of the e-value
        share = 1 / (2 * len(suspicions))
        self._games = {(suspicion, ANYWHERE): _Game(share) for suspicion in suspicions}
        self._games |= {
            (suspicion, place): _Game(share / len(places)) for suspicion in suspicions for place in places
        }

    def add(self, observations: Iterable[Observation], tokens: int) -> None:
        """Takes the next tokens: what each was held against, one suspicion or several; `tokens` of them.

        Raises KeyError for a suspicion or a place that wasn't announced, ValueError for a probability outside
        [0, 1].
        """
        grouped: dict[tuple[str, str], list[Observation]] = {}
        for seen in observations:
            if not 0 <= seen.prob <= 1:
                raise ValueError(f"the probability {seen.prob} of {seen.suspicion} is outside [0, 1]")
            for place in (ANYWHERE, seen.place):
                grouped.setdefault((seen.suspicion, place), []).append(seen)
        for game, group in [(self._games[key], group) for key, group in grouped.items()]:
            game.add(group, self._toll)
        self.tokens += tokens
        self.curve.append((self.tokens, self.log_e))

    @property
    def log_e(self) -> float:
        """The natural logarithm of the whole stake, which began as 1."""
        return float(
            np.logaddexp.reduce([game.log_e + math.log(game.stake) for game in self._games.values()])
        )

    @property
    def limit(self) -> float:
        """Where `log_e` shows a loss: log(1 / alpha)."""
        return -math.log(self.alpha)

    @property
    def found(self) -> bool:
        """Whether a loss is shown: once it was, it stays so, whatever follows."""
        return max(log_e for _, log_e in self.curve) >= self.limit

    def sights(self) -> list[Sight]:
        """Every suspicion at every place that had a token, the strongest evidence first."""
        seen = [self._sight(*key) for key, game in self._games.items() if game.tokens]
        return sorted(seen, key=lambda sight: -sight.log_e)

    def sight(self, suspicion: str, place: str = ANYWHERE) -> Sight:
        return self._sight(suspicion, place)

    def _sight(self, suspicion: str, place: str) -> Sight:
        game = self._games[suspicion, place]
        needed = self.limit - math.log(game.stake)
        tokens, share = max(game.tokens, 1), smallest_share(needed, game.moments, game.room)
        pulled = game.tokens > 0 and game.pulled == game.tokens
        return Sight(
            suspicion,
            place,
            game.tokens,
            game.log_e,
            game.excess / tokens,
            share * game.room_excess / tokens if share <= 1 else math.inf,
            smallest_share(needed, game.moments, game.pull) if pulled else None,
            game.pull_excess / tokens if pulled else None,
        )


def smallest_share(log_needed: float, moments: NDArray[np.float64], moved: NDArray[np.float64]) -> float:
    """The smallest share of a fault that one game would have shown with probability `POWER`; more than 1, or
    infinite, for none.

    log_needed: what the game's log e-value must reach. moments: mean and variance of the logarithm of each of
    its stakes where there is no fault, [2, λ]. moved: what the whole fault adds to them. Each logarithm is a
    sum, and taken for a normal variable; the best λ counts, and the logarithm of the grid's size is added,
    since the stake is divided among its λ.
    """
    (mean, variance), (gain, widening) = moments, moved
    gaining = gain > 0
    if not gaining.any():
        return math.inf
    # The share s at which needed − mean − s · gain = −quantile · √(variance + s · widening).
    gain = gain[gaining]
    lacking = (log_needed + math.log(len(LAMBDAS)) - mean)[gaining]
    half = lacking * gain + _QUANTILE**2 * widening[gaining] / 2
    rest = lacking**2 - _QUANTILE**2 * variance[gaining]
    return float(((half + np.sqrt(np.maximum(half**2 - gain**2 * rest, 0))) / gain**2).min())
