"""Passes that remember too much, or depend on company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.models.base import Cache, Model, Segment


class _Wrapped:
    """A model as it is."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.eos_token_ids = getattr(model, "eos_token_ids", ())

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def max_length(self) -> int:
        return self._model.max_length

    @property
    def cache(self) -> Cache:
        return self._model.cache

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        return self._model.forward(batch)


class AnotherKernel(_Wrapped):
    """Passes of more than 4 rows go through a kernel that rounds to four binary digits: near-ties flip (the
    most reported fault of all)."""

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        logits = super().forward(batch)
        if sum(len(segment.tokens) for segment in batch) <= 4:
            return logits
        mantissa, exponent = np.frexp(logits)
        return np.ldexp(np.round(mantissa * 16) / 16, exponent)


class LongestFirst(_Wrapped):
    """Sorts a batch by length, and hands the rows back in that order (vLLM #14645)."""

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        return super().forward(sorted(batch, key=lambda segment: -segment.num_wanted))


class Stale(_Wrapped):
    """Rolls back to the right length, but leaves the last rejected row in place of the last kept one."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._stale = _StaleCache(model)

    @property
    def cache(self) -> Cache:
        return self._stale

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        for segment in batch:
            self._stale.last[segment.seq] = segment.tokens[-1]
        return super().forward(batch)


class _StaleCache:
    """last: of each sequence, the token of the last row."""

    def __init__(self, model: Model) -> None:
        self.last: dict[int, int] = {}
        self._model = model

    def add(self, seq: int) -> None:
        self._model.cache.add(seq)

    def length(self, seq: int) -> int:
        return self._model.cache.length(seq)

    def truncate(self, seq: int, length: int) -> None:
        self._model.cache.truncate(seq, length - 1)
        self._model.forward([Segment(seq, (self.last[seq],), num_wanted=0)])

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        self._model.cache.keep(seq, base, rows)

    def fork(self, seq: int, source: int, length: int) -> None:
        self._model.cache.fork(seq, source, length)

    def free(self, seq: int) -> None:
        self._model.cache.free(seq)
