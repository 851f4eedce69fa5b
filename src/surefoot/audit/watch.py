"""A model that remembers one row of what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.wrapped import WrappedCache, WrappedModel
from surefoot.models.base import Cache, Model, Segment
from surefoot.tree import parents_of, path_to


@dataclass(frozen=True, slots=True)
class Seen:
    """A row, and the pass it stood in.

    logits: [vocabulary]. place: of the row among the `rows` of the pass, from 0. sequences: that shared it.
    draft_tokens: verified in it for the row's own sequence.
    """

    logits: NDArray[np.float32]
    place: int
    rows: int
    sequences: int
    draft_tokens: int


class Watch(WrappedModel):
    """Forwards everything to another model, and keeps the row that one output token is chosen from.

    request: which sequence, in the order in which the cache was told of them: an engine starts them in the
    order of its requests. tokens: the sequence up to the row's own token. seen: the row of the last pass that
    had it, or None.
    """

    def __init__(self, model: Model, request: int, tokens: Sequence[int]) -> None:
        super().__init__(model)
        self.seen: Seen | None = None
        self._request, self._tokens = request, tuple(tokens)
        self._watched = _Watched(model.cache)

    @property
    def cache(self) -> Cache:
        return self._watched

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        held = [self._model.cache.length(segment.seq) for segment in batch]
        logits = self._model.forward(batch)
        rows = wanted = 0
        for segment, base in zip(batch, held, strict=True):
            node = self._node(segment, base)
            unwanted = len(segment.tokens) - segment.num_wanted
            if node is not None:
                self.seen = Seen(
                    logits[wanted + node - unwanted].copy(),
                    rows + node,
                    sum(len(each.tokens) for each in batch),
                    len(batch),
                    segment.num_wanted - 1,
                )
            rows += len(segment.tokens)
            wanted += segment.num_wanted
        return logits

    def _node(self, segment: Segment, held: int) -> int | None:
        """Which of a segment's wanted rows is the one to keep, if any is."""
        if self._request >= len(self._watched.started) or self._watched.started[self._request] != segment.seq:
            return None
        own = self._tokens[held:]
        parents = parents_of(segment.parents, len(segment.tokens))
        for node in range(len(segment.tokens) - segment.num_wanted, len(segment.tokens)):
            if tuple(segment.tokens[row] for row in path_to(parents, node)) == own:
                return node
        return None


class _Watched(WrappedCache):
    """A cache that knows in which order its sequences were started, empty or with another's first rows."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.started: list[int] = []

    def add(self, seq: int) -> None:
        super().add(seq)
        self.started.append(seq)

    def fork(self, seq: int, source: int, length: int) -> None:
        super().fork(seq, source, length)
        self.started.append(seq)
