"""Keys and values of the sequences in flight, in pages that can be rolled back, shared and given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

PAGE = 32  # rows
_OFFSETS = np.arange(PAGE, dtype=np.int32)


class PagePool:
    """Which pages are free, and how many sequences share each.

    Pages are handed out in runs where that is possible, since a sequence whose pages follow each other
    can be read in place instead of gathered.
    """

    def __init__(self, num_pages: int) -> None:
        self._shares = [0] * num_pages

    @property
    def num_pages(self) -> int:
        return len(self._shares)

    def grow(self, num_pages: int) -> None:
        self._shares.extend([0] * (num_pages - len(self._shares)))

    def take(self, after: int | None) -> int | None:
        """A free page: the one behind page `after` if it can be had, else one with free pages behind it.
        None when every page is taken."""
        if after is not None and after + 1 < self.num_pages and not self._shares[after + 1]:
            page: int | None = after + 1
        else:
            page = self._roomy()
        if page is not None:
            self._shares[page] = 1
        return page

    def share(self, page: int) -> None:
        self._shares[page] += 1

    def give_back(self, page: int) -> None:
        assert self._shares[page] > 0, f"page {page} was given back twice"
        self._shares[page] -= 1

    def is_shared(self, page: int) -> bool:
        return self._shares[page] > 1

    def _roomy(self) -> int | None:
        """In the longest free run; at its middle where a neighbour may still grow into its beginning."""
        start = longest = run = 0
        for page, shares in enumerate(self._shares):
            run = 0 if shares else run + 1
            if run > longest:
                start, longest = page - run + 1, run
        if not longest:
            return None
        return start if start == 0 else start + longest // 2


@dataclass(slots=True)
class _Sequence:
    length: int = 0
    pages: list[int] = field(default_factory=list)


class PagedCache:
    """Keys and values of every layer, [layers, slots, kv heads, head_dim], slot = page · PAGE + offset.

    Slots start as zeros and only ever hold what was computed, so a masked slot is finite (a NaN under a
    mask would still poison its row). Implements `models.base.Cache`.
    """

    @torch.inference_mode()
    def __init__(
        self, num_layers: int, num_heads: int, head_dim: int, dtype: torch.dtype, num_pages: int = 64
    ) -> None:
        shape = (num_layers, num_pages * PAGE, num_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self._pool = PagePool(num_pages)
        self._sequences: dict[int, _Sequence] = {}

    def add(self, seq: int) -> None:
        if seq in self._sequences:
            raise ValueError(f"sequence {seq} exists already")
        self._sequences[seq] = _Sequence()

    def length(self, seq: int) -> int:
        return self._sequences[seq].length

    def slots(self, seq: int) -> NDArray[np.int32]:
        """Where the rows of a sequence lie, in position order, [length]."""
        held = self._sequences[seq]
        pages = np.array(held.pages, np.int32)
        slots: NDArray[np.int32] = (pages[:, None] * PAGE + _OFFSETS).reshape(-1)[: held.length]
        return slots

    @torch.inference_mode()
    def append(self, seq: int, rows: int) -> None:
        """Makes room for `rows` more rows, to be filled by the pass that asked."""
        held = self._sequences[seq]
        self._unshare_last_page(held)
        while len(held.pages) * PAGE < held.length + rows:
            held.pages.append(self._take(held.pages[-1] if held.pages else None))
        held.length += rows

    def truncate(self, seq: int, length: int) -> None:
        held = self._sequences[seq]
        if not 0 <= length <= held.length:
            raise ValueError(f"sequence {seq}: cannot truncate to {length} rows, it has {held.length}")
        num_pages = -(-length // PAGE)
        for page in held.pages[num_pages:]:
            self._pool.give_back(page)
        del held.pages[num_pages:]
        held.length = length

    @torch.inference_mode()
    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        held = self._sequences[seq]
        if any(a >= b for a, b in zip([-1, *rows], rows, strict=False)):
            raise ValueError(f"sequence {seq}: rows to keep must ascend, not {list(rows)}")
        if rows and base + rows[-1] >= held.length:
            raise ValueError(f"sequence {seq}: row {base + rows[-1]} is past its {held.length} rows")
        if list(rows) != list(range(len(rows))):
            slots = self.slots(seq)[base:]
            source, target = slots[list(rows)], slots[: len(rows)]
            for page in {int(slot) // PAGE for slot in target}:
                if self._pool.is_shared(page):
                    raise ValueError(f"sequence {seq}: page {page} is shared, so no row can move into it")
            for store in (self.keys, self.values):
                store[:, torch.from_numpy(target)] = store[:, torch.from_numpy(source)]
        self.truncate(seq, base + len(rows))

    def fork(self, seq: int, source: int, length: int) -> None:
        origin = self._sequences[source]
        if length > origin.length:
            raise ValueError(f"sequence {source}: cannot share {length} rows, it has {origin.length}")
        self.add(seq)
        pages = origin.pages[: -(-length // PAGE)]
        for page in pages:
            self._pool.share(page)
        self._sequences[seq] = _Sequence(length, list(pages))

    def free(self, seq: int) -> None:
        self.truncate(seq, 0)
        del self._sequences[seq]

    def _take(self, after: int | None) -> int:
        page = self._pool.take(after)
        if page is None:
            self._grow()
            page = self._pool.take(after)
            assert page is not None
        return page

    def _grow(self) -> None:
        old = self.keys.shape[1]
        self._pool.grow(2 * self._pool.num_pages)
        for name in ("keys", "values"):
            store: torch.Tensor = getattr(self, name)
            wider = store.new_zeros((store.shape[0], 2 * old, *store.shape[2:]))
            wider[:, :old] = store
            setattr(self, name, wider)

    def _unshare_last_page(self, held: _Sequence) -> None:
        """Copies a half-filled page that another sequence sees too, before it is written to."""
        if held.length % PAGE == 0 or not self._pool.is_shared(held.pages[-1]):
            return
        old = held.pages[-1]
        new = self._take(None)
        for store in (self.keys, self.values):
            store[:, new * PAGE : (new + 1) * PAGE] = store[:, old * PAGE : (old + 1) * PAGE]
        self._pool.give_back(old)
        held.pages[-1] = new
