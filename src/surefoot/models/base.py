"""What the engine asks of a model: one pass over a ragged batch, and a cache that can be rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one sequence in a pass: a prompt chunk, a plain step and a verification alike.

    seq: the sequence they belong to; they follow what the cache holds of it.
    tokens: one id per row, [rows].
    parents: None for a chain (row i follows row i - 1); for a tree the index of each row's parent among
        these rows, -1 for a row that follows the cache directly. A parent comes before its children.
        A row's position is its parent's plus one; it sees the cache, its ancestors and itself.
    num_wanted: how many of the last rows the logits are wanted of.
    """

    seq: int
    tokens: Sequence[int]
    num_wanted: int
    parents: Sequence[int] | None = None


class CacheFullError(Exception):
    """More rows than the limit of a cache has pages for. Nothing was changed."""


class Cache(Protocol):
    """Keys and values per sequence, in pages of equal size, which sequences may share. Every call raises
    KeyError for an unknown sequence."""

    @property
    def page_rows(self) -> int:
        """Rows of a page."""

    @property
    def row_bytes(self) -> int:
        """Bytes that one row takes, over all layers."""

    def limit(self, pages: int | None) -> None:
        """Holds the cache to so many pages from now on, None to as many as are needed. Where it holds more
        already it takes no new ones until enough were given back."""

    def free_pages(self) -> int | None:
        """Pages that may still be taken; None without a limit."""

    def spare_pages(self) -> int:
        """Pages that may be taken before the store has to grow."""

    def used_pages(self) -> int:
        """Pages held by any sequence, one that several share counted once."""

    def cost(self, seq: int, rows: int) -> int:
        """Pages that `rows` more rows of a sequence would take now, the copy of a half-filled page that
        it shares included."""

    def add(self, seq: int) -> None:
        """Starts an empty sequence. Raises ValueError when it exists."""

    def length(self, seq: int) -> int:
        """Rows held for a sequence, those of the last pass included."""

    def truncate(self, seq: int, length: int) -> None:
        """Drops every row from `length` on. Raises ValueError when `length` exceeds what is held."""

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        """Keeps `base` rows and, moved behind them in this order, the rows `base + r` for r in `rows`
        (an accepted path of a tree pass that began at `base`); drops the rest. `rows` must ascend."""

    def fork(self, seq: int, source: int, length: int) -> None:
        """Starts `seq` with the first `length` rows of `source`, shared until one of the two writes."""

    def free(self, seq: int) -> None:
        """Forgets a sequence and gives its rows back."""


class Model(Protocol):
    """A language model over token ids.

    Batch invariance (docs/design.md §1a): a row's logits depend on its own tokens alone, to the bit,
    whatever shares the pass, the chunking, the tree, or the places its keys lie in.
    """

    @property
    def vocab_size(self) -> int:
        """Logits per row, padding included."""

    @property
    def max_length(self) -> int:
        """The longest sequence, in tokens."""

    @property
    def cache(self) -> Cache:
        """The keys and values of the sequences in flight."""

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        """One pass. Appends every row to its sequence's cache and returns the logits of the wanted
        rows, [sum of num_wanted, vocab_size] float32, segment after segment.

        Raises ValueError for an unknown sequence or token, or a row past `max_length`, CacheFullError when
        the rows don't fit; the cache is then as it was before.
        """
