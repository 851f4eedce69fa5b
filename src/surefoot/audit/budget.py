"""How long an audit may go on."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Seconds, or output tokens, or both; whichever is spent first ends it.

    An audit asks `left` before it begins something, and says what it used. clock: seconds, for tests.
    """

    def __init__(
        self,
        seconds: float | None = None,
        tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._tokens, self._clock = seconds, tokens, clock
        self._began = clock()
        self._spent = 0

    def spend(self, tokens: int) -> None:
        self._spent += tokens

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def used(self) -> float:
        """The share that is spent, from 0; 1 or more when nothing is left."""
        of_time = self.elapsed / self._seconds if self._seconds else 0.0
        of_tokens = self._spent / self._tokens if self._tokens else 0.0
        return max(of_time, of_tokens)

    @property
    def left(self) -> bool:
        return self.used < 1
