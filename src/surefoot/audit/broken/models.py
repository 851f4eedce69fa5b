"""Passes that remember too much, or depend on company."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.wrapped import WrappedCache, WrappedModel
from surefoot.models.base import Cache, Model, Segment


class AnotherKernel(WrappedModel):
    """Passes of more than 4 rows go through a kernel that rounds to four binary digits: near-ties flip (the
    most reported fault of all)."""

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        logits = super().forward(batch)
        if sum(len(segment.tokens) for segment in batch) <= 4:
            return logits
        mantissa, exponent = np.frexp(logits)
        return np.ldexp(np.round(mantissa * 16) / 16, exponent)


class LongestFirst(WrappedModel):
    """Sorts a batch by length, and hands the rows back in that order (vLLM #14645)."""

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        return super().forward(sorted(batch, key=lambda segment: -segment.num_wanted))


class Stale(WrappedModel):
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


class _StaleCache(WrappedCache):
    """last: of each sequence, the token of the last row."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.cache)
        self.last: dict[int, int] = {}
        self._model = model

    def truncate(self, seq: int, length: int) -> None:
        super().truncate(seq, length - 1)
        self._model.forward([Segment(seq, (self.last[seq],), num_wanted=0)])
