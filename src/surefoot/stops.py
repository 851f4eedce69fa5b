"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Lets text through up to the first stop string, and no character that may still be part of one.

    The first is the one complete first, and of those complete at the same character the longest, so the
    result is the same however the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str, *, armed: bool = True) -> str:
        """Takes the next piece of text and returns what is certain now.

        armed: whether a stop string completed by this piece counts. After one that did, `stopped` is true,
        and what was returned ends just before it.
        """
        text = self._held + piece
        if armed:
            found = self._first(text)
            if found is not None:
                self.stopped, self._held = True, ""
                return text[:found]
        certain = len(text) - self._maybe(text)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        rest, self._held = self._held, ""
        return rest

    def _first(self, text: str) -> int | None:
        """Where the first stop string that ends in the new piece begins."""
        found = []
        for stop in self._stops:
            begin = text.find(stop, max(0, len(self._held) - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), begin))
        return min(found)[1] if found else None

    def _maybe(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        longest = max((len(stop) for stop in self._stops), default=0) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
