"""What the engine asks of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from surefoot.types import Draft, Verdict

Draw = Callable[[NDArray[np.float32], Sequence[int]], tuple[int, NDArray[np.float64] | None]]
"""`draw(logits, drafted)`: the engine's own way of drawing one draft token of a request.

logits: the drafter's, [its vocabulary]. drafted: the draft tokens before this one, this round.
Returns the token, and the distribution it was drawn from, [target vocabulary] float64, or None when it
counts as a point mass (coupled verification: drawn with the very noise of the target's own choice).
Raises SurefootError when every token is banned.
"""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence's share of a round of drafting.

    seq: as given to `start`. tokens: every committed token, prompt included, the last of which no model
    has computed yet. budget: the most tokens to propose, at least 1.
    """

    seq: int
    tokens: Sequence[int]
    budget: int
    draw: Draw


class Drafter(Protocol):
    """Guesses tokens. Nothing it does can change the output, only the speed."""

    @property
    def name(self) -> str:
        """As it stands in traces and `Draft.source`."""

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        """A sequence begins; `tokens` is its prompt, followed by its output so far where it is taken up again
        after it was stopped."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, in order, each of at most `budget` tokens; an empty one is fine.

        A drafter that keeps computed state feeds itself `tokens[num_computed:]`, whatever that is: the
        catch-up after a fully accepted draft then needs no case of its own.
        """

    def observe(self, seq: int, verdict: Verdict) -> None:
        """What became of the last draft of `seq`: roll back what was dropped."""

    def stop(self, seq: int) -> None:
        """A sequence ended: forget it."""
