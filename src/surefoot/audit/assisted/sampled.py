"""Sampled: every token held against the probabilities that plain `generate` would have drawn it from.

The probabilities p of a token come from one forward pass of the emitted text, through the processors that
plain `generate` itself builds. The token's place in its round, and the draft's probabilities q for it, are
what verification had before it; so every place is judged for itself, and against the q really used.
Rounding: a token just outside a nucleus may lie just inside it in a pass of another shape. So a token of
probability 0 counts as impossible only where it stays so with its logit, and top_p, raised by `_EDGE`; else
it isn't scored, and the others keep their relative probabilities.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.audit.assisted.plain import Generation, processed
from surefoot.audit.assisted.record import Round, softmax
from surefoot.evidence import Evidence, Observation

LIKELIEST = "the likeliest token"
DRAFT = "the draft"
RAW = "the target before the transforms"
NO_DRAFT, LATER, AFTER = "without a draft", "later in the draft", "after the draft"
_DRAFTED = "drafted"
_EDGE = 1e-4


@dataclass
class Game:
    """Bets on output tokens, and on the drafted tokens themselves.

    evidence: against the output following p. drafts: against drafted tokens following the q that comes with
    them. impossible: emitted tokens of probability 0, described. edge: tokens that weren't scored. taken,
    claimed: how often a drafted token was its q's likeliest, and how often q says it should have been.
    """

    evidence: Evidence
    drafts: Evidence
    draft_tokens: int
    impossible: list[str] = field(default_factory=list)
    edge: int = 0
    drafted: int = 0
    rounds: int = 0
    taken: int = 0
    claimed: float = 0.0

    @property
    def over(self) -> bool:
        return self.evidence.found or bool(self.impossible)

    def add(
        self,
        generation: Generation,
        prompt: tuple[int, ...],
        tokens: tuple[int, ...],
        rounds: Sequence[Round],
    ) -> None:
        """One continuation. rounds: those it was made in; none for plain `generate`, whose every token is
        one without a draft."""
        processors = generation.processors(prompt, True)
        rows = generation.logits(prompt, tokens[:-1])
        places = list(_places(len(prompt), len(tokens), rounds))
        for index, (token, (draft, at)) in enumerate(zip(tokens, places, strict=True)):
            prefix = [*prompt, *tokens[:index]]
            p = softmax(processed(processors, prefix, rows[index]))
            if p[token] == 0:
                self._judge_impossible(processors, prefix, rows[index], token, index)
                continue
            place = self._place(draft, at)
            seen = list(_observations(place, p, token, rows[index], processors, draft, at))
            self.evidence.add(seen, 1)
        for draft in rounds:
            self._add_draft(draft)

    def _judge_impossible(
        self, processors: Any, prefix: list[int], row: torch.Tensor, token: int, index: int
    ) -> None:
        row = row.clone()
        row[token] += _EDGE
        if np.isfinite(processed(_loosened(processors), prefix, row)[token]):
            self.edge += 1
        else:
            self.impossible.append(f"token {token} at output position {index} has probability 0")

    def _place(self, draft: Round | None, at: int) -> str:
        if draft is None or not draft.tokens:
            return NO_DRAFT
        if at >= len(draft.tokens):
            return AFTER
        return f"draft {at + 1}" if at < self.draft_tokens else LATER

    def _add_draft(self, draft: Round) -> None:
        self.rounds += 1
        self.drafted += len(draft.tokens)
        for at, token in enumerate(draft.tokens):
            q = draft.probs(at)
            if q is not None:
                top = int(q.argmax())
                prob, hit = min(float(q[top]), 1.0), token == top
                self.drafts.add([Observation(LIKELIEST, _DRAFTED, prob, hit)], 1)
                self.taken += hit
                self.claimed += prob


def new_game(alpha: float, draft_tokens: int, transformed: bool, assisted: bool) -> Game:
    """transformed: whether the target's logits go through any processor. assisted: whether there are drafts;
    plain `generate` plays the same game without them."""
    suspicions = [LIKELIEST, *([RAW] if transformed else []), *([DRAFT] if assisted else [])]
    places = [*(f"draft {i + 1}" for i in range(draft_tokens)), LATER, AFTER, NO_DRAFT]
    evidence = Evidence(suspicions, places if assisted else [NO_DRAFT], alpha)
    return Game(evidence, Evidence([LIKELIEST], [_DRAFTED], alpha), draft_tokens)


def _places(start: int, count: int, rounds: Sequence[Round]) -> Iterator[tuple[Round | None, int]]:
    """For each output token the round it was made in, and its index there."""
    starts = [draft.start for draft in rounds]
    for position in range(start, start + count):
        number = int(np.searchsorted(starts, position, side="right")) - 1
        yield (rounds[number], position - starts[number]) if number >= 0 else (None, 0)


def _observations(
    place: str,
    p: NDArray[np.float64],
    token: int,
    row: torch.Tensor,
    processors: Any,
    draft: Round | None,
    at: int,
) -> Iterator[Observation]:
    top = int(p.argmax())
    yield Observation(LIKELIEST, place, min(float(p[top]), 1.0), token == top)
    if processors:
        yield _favoured(RAW, place, p, softmax(row.numpy()), token)
    if draft is not None and at < len(draft.tokens):
        q = draft.probs(at)
        if q is None:  # a guess is a draft of which nothing else could come
            q = np.zeros_like(p)
            q[draft.tokens[at]] = 1
        yield _favoured(DRAFT, place, p, q, token)


def _favoured(
    suspicion: str, place: str, p: NDArray[np.float64], q: NDArray[np.float64], token: int
) -> Observation:
    """The set A = {q > p}, which tokens drawn from q instead of p would hit too often."""
    favoured = q > p
    prob, pull = (min(float(row[favoured].sum()), 1.0) for row in (p, q))
    return Observation(suspicion, place, prob, bool(favoured[token]), pull)


def _loosened(processors: Any) -> Any:
    """The same processors, with a nucleus that is wider by the rounding."""
    loose = copy.copy(processors)
    for index, processor in enumerate(loose):
        if hasattr(processor, "top_p"):
            loose[index] = copy.copy(processor)
            loose[index].top_p = min(processor.top_p + _EDGE, 1.0)
    return loose
