"""Prompt lookup: what followed the last few tokens earlier in the same sequence will follow them again.

Source: prompt lookup decoding (Saxena 2023); also transformers' and vLLM's n-gram drafters.
"""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.drafters.base import DraftRequest
from surefoot.types import Draft, Verdict

LONGEST, SHORTEST = 3, 1  # tokens looked up
REACH = 16  # tokens that a match is followed back for


class _Index:
    """Where each n-gram of one sequence was last followed by something.

    The n-gram at the very end is not in it: nothing follows it, and it would only find itself.
    """

    def __init__(self) -> None:
        self._follows: dict[tuple[int, ...], int] = {}
        self._recent: tuple[int, ...] = ()  # the tokens before `_known`, as many as an n-gram needs
        self._known = 0

    def extend(self, tokens: Sequence[int]) -> None:
        for position in range(self._known, len(tokens)):
            for n in range(1, len(self._recent) + 1):
                self._follows[self._recent[-n:]] = position
            self._recent = (*self._recent, tokens[position])[-LONGEST:]
        self._known = max(self._known, len(tokens))

    def lookup(self) -> int | None:
        """Where the continuation of the longest match begins, the most recent one if there are several."""
        for n in range(len(self._recent), SHORTEST - 1, -1):
            start = self._follows.get(self._recent[-n:])
            if start is not None:
                return start
        return None


def match_length(tokens: Sequence[int], start: int) -> int:
    """How many tokens before `start` are the same as those at the end, counted up to `REACH`."""
    length = 0
    while length < min(start, REACH) and tokens[start - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


class NgramDrafter:
    """Copies what followed the last 3, else 2, else 1 tokens earlier in the same prompt or output, and no
    more tokens than had matched: one token in common says little about the next ten, sixteen say much.

    Costs a constant per committed token, however long the context. Requests share nothing.
    """

    name = "ngram"

    def __init__(self) -> None:
        self._indices: dict[int, _Index] = {}

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self._indices[seq] = _Index()
        self._indices[seq].extend(tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        index = self._indices[request.seq]
        index.extend(request.tokens)
        start = index.lookup()
        if start is None:
            return Draft(source=self.name)
        length = min(request.budget, match_length(request.tokens, start))
        return Draft(tokens=tuple(request.tokens[start : start + length]), source=self.name)

    def observe(self, seq: int, verdict: Verdict) -> None:
        pass  # only committed tokens are ever indexed

    def stop(self, seq: int) -> None:
        self._indices.pop(seq, None)
