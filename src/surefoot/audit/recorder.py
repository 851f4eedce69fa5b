"""What a drafter drafted, whatever the engine made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.drafters.base import Drafter, DraftRequest
from surefoot.types import Draft, Verdict


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of one sequence. prompt: its tokens. rounds: committed tokens when a draft was made, the
    prompt included → the draft."""

    prompt: tuple[int, ...]
    rounds: dict[int, Draft] = field(default_factory=dict)


class Recorder:
    """A drafter that wraps another one, and keeps what it drafted.

    Requests are admitted first come, first served, so the i-th sequence that was started is the i-th request
    that was added, as long as each has one choice.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._sequences: list[Drafted] = []
        self._by_number: dict[int, Drafted] = {}

    @property
    def name(self) -> str:
        return self._drafter.name

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        if seq not in self._by_number:  # else it is taken up again, with its output so far
            self._by_number[seq] = Drafted(tuple(tokens))
            self._sequences.append(self._by_number[seq])
        self._drafter.start(seq, tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        lengths = [len(request.tokens) for request in requests]
        drafts = self._drafter.propose(requests)
        for request, length, draft in zip(requests, lengths, drafts, strict=False):  # the engine checks them
            self._by_number[request.seq].rounds[length] = draft
        return drafts

    def observe(self, seq: int, verdict: Verdict) -> None:
        self._drafter.observe(seq, verdict)

    def stop(self, seq: int) -> None:
        self._drafter.stop(seq)

    def rounds(self, request: int, prompt: Sequence[int]) -> Mapping[int, Draft]:
        """The drafts of the i-th request. Raises ValueError when its sequence began with another prompt."""
        drafted = self._sequences[request]
        if drafted.prompt != tuple(prompt):
            raise ValueError(f"request {request} didn't start in its turn: its prompt is another's")
        return drafted.rounds
