"""How long to draft.

A draft's length may depend on what is fixed before its first token is drawn, and on nothing else: then it
is a stopping time and even the rejection rules stay exact (Leviathan et al. 2211.17192 assume a constant;
the sufficient condition is in docs/design.md).
"""

from __future__ import annotations

from typing import Protocol

from surefoot.types import Verdict, whole


class Controller(Protocol):
    """Decides the draft length of every sequence, from that sequence's own history."""

    def budget(self, seq: int, load: int) -> int:
        """The most tokens to draft for `seq` this round, at least 0. `load`: requests running beside it,
        which only a controller for coupled verification may look at."""

    def observe(self, seq: int, draft_tokens: int, verdict: Verdict) -> None:
        """What became of a draft of so many tokens."""

    def stop(self, seq: int) -> None:
        """A sequence ended: forget it."""


class Fixed:
    """The same length for every sequence, in every round.

    Raises `SurefootError` when the length is negative, or no whole number.
    """

    def __init__(self, draft_tokens: int) -> None:
        self.draft_tokens = whole("draft_tokens", draft_tokens, 0)

    def budget(self, seq: int, load: int) -> int:
        return self.draft_tokens

    def observe(self, seq: int, draft_tokens: int, verdict: Verdict) -> None:
        pass

    def stop(self, seq: int) -> None:
        pass
