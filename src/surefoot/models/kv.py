"""Keys and values of the sequences in flight, in pages that can be rolled back, shared and given back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.pages import Copied, PageTable

PAGE = 32  # rows
_OFFSETS = np.arange(PAGE, dtype=np.int32)


class PagedCache:
    """Keys and values of every layer, [layers, slots, kv heads, head_dim], slot = page · PAGE + offset.

    Slots start as zeros and only ever hold what was computed, so a masked slot is finite (a NaN under a
    mask would still poison its row). While the store grows, keys or values exist twice.
    Implements `models.base.Cache`.
    """

    page_rows = PAGE

    @torch.inference_mode()
    def __init__(
        self, num_layers: int, num_heads: int, head_dim: int, dtype: torch.dtype, num_pages: int = 64
    ) -> None:
        shape = (num_layers, num_pages * PAGE, num_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self._table = PageTable(PAGE, num_pages)

    @property
    def row_bytes(self) -> int:
        return 2 * (self.keys.numel() // self.keys.shape[1]) * self.keys.element_size()

    @torch.inference_mode()
    def limit(self, pages: int | None) -> None:
        self._table.limit(pages)
        self._fit_store()

    def free_pages(self) -> int | None:
        return self._table.free_pages()

    def spare_pages(self) -> int:
        return self._table.spare_pages()

    def used_pages(self) -> int:
        return self._table.used_pages()

    def cost(self, seq: int, rows: int) -> int:
        return self._table.cost(seq, rows)

    def add(self, seq: int) -> None:
        self._table.add(seq)

    def length(self, seq: int) -> int:
        return self._table.length(seq)

    def slots(self, seq: int) -> NDArray[np.int32]:
        """Where the rows of a sequence lie, in position order, [length]."""
        pages = np.array(self._table.pages(seq), np.int32)
        slots: NDArray[np.int32] = (pages[:, None] * PAGE + _OFFSETS).reshape(-1)[: self.length(seq)]
        return slots

    @torch.inference_mode()
    def append(self, seq: int, rows: int) -> None:
        """Makes room for `rows` more rows, to be filled by the pass that asked. Raises CacheFullError, and
        changes nothing, when there is none."""
        copied = self._table.append(seq, rows)
        self._fit_store()
        if copied is not None:
            self._copy(copied)

    def truncate(self, seq: int, length: int) -> None:
        self._table.truncate(seq, length)

    @torch.inference_mode()
    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        if any(a >= b for a, b in zip([-1, *rows], rows, strict=False)):
            raise ValueError(f"sequence {seq}: rows to keep must ascend, not {list(rows)}")
        if rows and base + rows[-1] >= self.length(seq):
            raise ValueError(f"sequence {seq}: row {base + rows[-1]} is past its {self.length(seq)} rows")
        if list(rows) != list(range(len(rows))):
            self._table.refuse_shared(seq, base, base + len(rows))
            slots = self.slots(seq)[base:]
            source, target = torch.from_numpy(slots[list(rows)]), torch.from_numpy(slots[: len(rows)])
            for store in (self.keys, self.values):
                store[:, target] = store[:, source]
        self.truncate(seq, base + len(rows))

    def fork(self, seq: int, source: int, length: int) -> None:
        self._table.fork(seq, source, length)

    def free(self, seq: int) -> None:
        self._table.free(seq)

    def check(self) -> None:
        """Raises AssertionError when the books don't balance: see `PageTable.check`."""
        self._table.check()

    def _fit_store(self) -> None:
        """Gives the store as many pages as the table has."""
        slots, held = self._table.pool.num_pages * PAGE, self.keys.shape[1]
        if slots == held:
            return
        for name in ("keys", "values"):
            store: torch.Tensor = getattr(self, name)
            fitting = store.new_zeros((store.shape[0], slots, *store.shape[2:]))
            kept = min(slots, held)
            fitting[:, :kept] = store[:, :kept]
            setattr(self, name, fitting)

    def _copy(self, copied: Copied) -> None:
        for store in (self.keys, self.values):
            source = store[:, copied.source * PAGE : (copied.source + 1) * PAGE]
            store[:, copied.target * PAGE : (copied.target + 1) * PAGE] = source
