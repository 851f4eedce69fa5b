"""A model and a cache that forward everything: for what looks at them, or gets them wrong on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.models.base import Cache, Model, Segment


class WrappedModel:
    """A `Model` as it is."""

    def __init__(self, model: Model) -> None:
        self.eos_token_ids: tuple[int, ...] = getattr(model, "eos_token_ids", ())
        self._model = model

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


class WrappedCache:
    """A `Cache` as it is."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    @property
    def page_rows(self) -> int:
        return self._cache.page_rows

    @property
    def row_bytes(self) -> int:
        return self._cache.row_bytes

    def limit(self, pages: int | None) -> None:
        self._cache.limit(pages)

    def free_pages(self) -> int | None:
        return self._cache.free_pages()

    def spare_pages(self) -> int:
        return self._cache.spare_pages()

    def used_pages(self) -> int:
        return self._cache.used_pages()

    def cost(self, seq: int, rows: int) -> int:
        return self._cache.cost(seq, rows)

    def add(self, seq: int) -> None:
        self._cache.add(seq)

    def length(self, seq: int) -> int:
        return self._cache.length(seq)

    def truncate(self, seq: int, length: int) -> None:
        self._cache.truncate(seq, length)

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        self._cache.keep(seq, base, rows)

    def fork(self, seq: int, source: int, length: int) -> None:
        self._cache.fork(seq, source, length)

    def free(self, seq: int) -> None:
        self._cache.free(seq)
