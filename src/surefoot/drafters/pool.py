"""What all requests wrote lately, for each of them to draft from."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.drafters.automaton import ROOT, Automaton


class Pool:
    """The latest output tokens of all requests, `capacity` at most, in two automata. When the newer one has
    half of that it becomes the older one, and what was the older one is forgotten: so no token is moved, and
    no round pays for more than its own."""

    def __init__(self, capacity: int, depth: int) -> None:
        self._half = max(1, capacity // 2)
        self._depth = depth
        self._size = 0  # tokens in the newer one
        self.automata = [Automaton(depth)]  # the newer one first
        self._states: dict[int, int] = {}  # in the newer one, of the texts that are being written

    def extend(self, seq: int, tokens: Sequence[int]) -> None:
        """Adds what a request has written."""
        for token in tokens:
            if self._size == self._half:
                self.automata = [Automaton(self._depth), self.automata[0]]
                self._states.clear()
                self._size = 0
            self._states[seq] = self.automata[0].extend(self._states.get(seq, ROOT), token)
            self._size += 1

    def stop(self, seq: int) -> None:
        """A request ended; what it wrote stays."""
        self._states.pop(seq, None)
