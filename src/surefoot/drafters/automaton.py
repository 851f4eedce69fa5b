"""Which texts have occurred, how often, and what followed each of them most often.

Source: the suffix automaton (Blumer et al. 1985), cut off at a depth, with counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

ROOT = 0  # the empty text, which every text ends with
NONE = -1


class Automaton:
    """All texts of up to `depth` tokens that occurred, and the tokens that followed each.

    A *state* stands for texts that occur at the same places: the longest of them and some of its endings. Its
    *link* is the state of the next shorter ending, so the states from a text's own up to ROOT are all of its
    endings, at most `depth` + 1. A token costs at most a few operations for each of these, however much has
    occurred before. There are at most 2 states and 3 followers per token.

    Several texts may be written into one automaton, in turns; it forgets nothing.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        # By state: the length of its longest text, its link, how often its texts occurred, and its likeliest
        # follower: the token, and the state of the text that it ends. Numbers in arrays take 4 bytes, and the
        # garbage collector doesn't visit them.
        self.length = array("i", [0])
        self.link = array("i", [NONE])
        self.count = array("i", [0])
        self.token = array("i", [NONE])
        self.follower = array("i", [NONE])
        self._followers: dict[int, dict[int, int]] = {}  # of the states that have several

    def __len__(self) -> int:
        """The number of states."""
        return len(self.length)

    def followers(self, state: int) -> dict[int, int]:
        """By token, the states that follow a state."""
        if self.token[state] == NONE:
            return {}
        return self._followers.get(state) or {self.token[state]: self.follower[state]}

    def after(self, state: int, token: int) -> int:
        """The state of the text that is one token longer; NONE where that never occurred."""
        if self.token[state] == token:
            return self.follower[state]
        several = self._followers.get(state)
        return several.get(token, NONE) if several else NONE

    def context(self, state: int) -> int:
        """The state itself, or its link when its texts are too long to know what followed them."""
        link = self.link[state]
        return link if link != NONE and self.length[link] == self.depth else state

    def extend(self, state: int, token: int) -> int:
        """Adds the token to a text; returns the text's new state. state: what this returned for the token
        before, ROOT for the first."""
        context = self.context(state)
        size = min(self.length[state], self.depth) + 1
        found = self.after(context, token)
        if found == NONE:
            new = self._new(size)
            ending = context
            while ending != NONE and (found := self.after(ending, token)) == NONE:
                self._follow(ending, token, new)
                ending = self.link[ending]
            if ending != NONE:
                self.link[new] = self._exactly(found, ending, token, self.length[ending] + 1)
        else:
            new = self._exactly(found, context, token, size)
        self._count(context, token)
        return new

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The state of the longest ending of up to `depth` tokens that occurred, and its length."""
        state, size = ROOT, 0
        for token in tokens[-self.depth :]:
            while (found := self.after(state, token)) == NONE and state != ROOT:
                state = self.link[state]
                size = self.length[state]
            if found != NONE:
                state, size = found, size + 1
        return state, size

    def _new(self, length: int) -> int:
        for numbers, value in (
            (self.length, length),
            (self.link, ROOT),
            (self.count, 0),
            (self.token, NONE),
            (self.follower, NONE),
        ):
            numbers.append(value)
        return len(self.length) - 1

    def _follow(self, state: int, token: int, follower: int) -> None:
        if self.token[state] in (NONE, token):
            self.token[state], self.follower[state] = token, follower
            if state not in self._followers:
                return
        first = {self.token[state]: self.follower[state]}
        self._followers.setdefault(state, first)[token] = follower

    def _exactly(self, state: int, before: int, token: int, length: int) -> int:
        """The state itself, or, when it has texts longer than `length`, a new one for the others, which occur
        at one more place from now on. before: the longest text that `token` makes one of these."""
        if self.length[state] == length:
            return state
        new = self._new(length)
        for numbers in (self.link, self.count, self.token, self.follower):
            numbers[new] = numbers[state]
        if state in self._followers:
            self._followers[new] = self._followers[state].copy()
        self.link[state] = new
        while before != NONE and self.after(before, token) == state:
            self._follow(before, token, new)
            before = self.link[before]
        return new

    def _count(self, context: int, token: int) -> None:
        """Counts every ending of context and token once. Of followers as frequent the latest is likeliest."""
        counted = NONE
        while context != NONE:
            follower = self.after(context, token)
            if follower != counted:
                self.count[follower] += 1
                counted = follower
            if self.token[context] != token and self.count[follower] >= self.count[self.follower[context]]:
                self.token[context], self.follower[context] = token, follower
            context = self.link[context]
