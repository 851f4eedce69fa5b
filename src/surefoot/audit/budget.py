"""How long an audit may go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """Seconds, or output tokens, or both; whichever is spent first ends it.

    An audit asks `left` before it begins something, and says what it used. clock: seconds, for tests. whole:
    what this is a part of; tokens spent here are spent there too.
    """

    def __init__(
        self,
        seconds: float | None = None,
        tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        whole: Budget | None = None,
    ) -> None:
        self._seconds, self._tokens, self._clock, self._whole = seconds, tokens, clock, whole
        self._began = clock()
        self._spent = 0

    def part(self, share: float) -> Budget:
        """A budget of its own: that share of what is left here."""
        seconds = None if self._seconds is None else share * max(0.0, self._seconds - self.elapsed)
        tokens = None if self._tokens is None else int(share * max(0, self._tokens - self._spent))
        return Budget(seconds, tokens, self._clock, whole=self)

    def restart(self) -> None:
        """Begins now: what was done before, loading say, isn't counted."""
        self._began, self._spent = self._clock(), 0

    def spend(self, tokens: int) -> None:
        self._spent += tokens
        if self._whole is not None:
            self._whole.spend(tokens)

    @property
    def spent(self) -> int:
        """Output tokens so far."""
        return self._spent

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def used(self) -> float:
        """The share that is spent, from 0; 1 or more when nothing is left."""
        return max(_share(self.elapsed, self._seconds), _share(self._spent, self._tokens))

    @property
    def left(self) -> bool:
        return self.used < 1


def _share(spent: float, limit: float | None) -> float:
    if limit is None:
        return 0.0
    return spent / limit if limit > 0 else math.inf
