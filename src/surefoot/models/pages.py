"""Whose rows lie on which page: counted, shared, copied before a write, given back. Knows no keys or values.

Both caches keep their books with it, the decoders' (models/kv.py) and the toy model's (models/toy.py), so
that what a page costs is the same for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from surefoot.models.base import CacheFullError


class PagePool:
    """Which pages are free, and how many sequences share each.

    Pages are handed out in runs where that is possible, since a sequence whose pages follow each other
    can be read in place instead of gathered.
    """

    def __init__(self, num_pages: int) -> None:
        self._shares = [0] * num_pages
        self._used = 0

    @property
    def num_pages(self) -> int:
        return len(self._shares)

    @property
    def used(self) -> int:
        """Pages that some sequence holds."""
        return self._used

    @property
    def shares(self) -> Sequence[int]:
        """By page: how many sequences hold it."""
        return self._shares

    def resize(self, num_pages: int) -> None:
        """Adds free pages, or drops those from `num_pages` on, which must be free."""
        assert not any(self._shares[num_pages:]), "a page in use was dropped"
        del self._shares[num_pages:]
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
            self._used += 1
        return page

    def share(self, page: int) -> None:
        self._shares[page] += 1

    def give_back(self, page: int) -> None:
        assert self._shares[page] > 0, f"page {page} was given back twice"
        self._shares[page] -= 1
        self._used -= not self._shares[page]

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


@dataclass(frozen=True, slots=True)
class Copied:
    """A page's rows have to be copied to another page before they are written to."""

    source: int
    target: int


class PageTable:
    """The pages of every sequence, always ⌈length / page_rows⌉ of them.

    num_pages: in the store at first; it doubles when more are needed, up to the limit. The calls are those of
    `models.base.Cache`, and raise what it says.
    """

    def __init__(self, page_rows: int, num_pages: int) -> None:
        self.page_rows = page_rows
        self.pool = PagePool(num_pages)
        self._limit: int | None = None
        self._sequences: dict[int, _Sequence] = {}

    def __len__(self) -> int:
        """Sequences held."""
        return len(self._sequences)

    def limit(self, pages: int | None) -> None:
        self._limit = pages
        if pages is not None and not self.pool.used:
            self.pool.resize(min(self.pool.num_pages, pages))

    def free_pages(self) -> int | None:
        return None if self._limit is None else max(0, self._limit - self.pool.used)

    def spare_pages(self) -> int:
        spare, free = self.pool.num_pages - self.pool.used, self.free_pages()
        return spare if free is None else min(spare, free)

    def used_pages(self) -> int:
        return self.pool.used

    def add(self, seq: int) -> None:
        if seq in self._sequences:
            raise ValueError(f"sequence {seq} exists already")
        self._sequences[seq] = _Sequence()

    def length(self, seq: int) -> int:
        return self._sequences[seq].length

    def pages(self, seq: int) -> Sequence[int]:
        """The pages of a sequence, in the order of its rows."""
        return self._sequences[seq].pages

    def cost(self, seq: int, rows: int) -> int:
        held = self._sequences[seq]
        return self._pages_for(held.length + rows) - len(held.pages) + bool(rows and self._copies(held))

    def append(self, seq: int, rows: int) -> Copied | None:
        """Makes room for `rows` more rows; returns the copy that has to be made first, if there is one."""
        held, free = self._sequences[seq], self.free_pages()
        cost = self.cost(seq, rows)
        if free is not None and cost > free:
            raise CacheFullError(f"sequence {seq}: {rows} rows take {cost} pages, {free} are free")
        copied = None
        if rows and self._copies(held):
            copied = Copied(held.pages[-1], self._take(None))
            self.pool.give_back(copied.source)
            held.pages[-1] = copied.target
        while len(held.pages) < self._pages_for(held.length + rows):
            held.pages.append(self._take(held.pages[-1] if held.pages else None))
        held.length += rows
        return copied

    def truncate(self, seq: int, length: int) -> None:
        held = self._sequences[seq]
        if not 0 <= length <= held.length:
            raise ValueError(f"sequence {seq}: cannot truncate to {length} rows, it has {held.length}")
        num_pages = self._pages_for(length)
        for page in held.pages[num_pages:]:
            self.pool.give_back(page)
        del held.pages[num_pages:]
        held.length = length

    def fork(self, seq: int, source: int, length: int) -> None:
        origin = self._sequences[source]
        if not 0 <= length <= origin.length:
            raise ValueError(f"sequence {source}: cannot share {length} rows, it has {origin.length}")
        self.add(seq)
        pages = origin.pages[: self._pages_for(length)]
        for page in pages:
            self.pool.share(page)
        self._sequences[seq] = _Sequence(length, pages)

    def free(self, seq: int) -> None:
        self.truncate(seq, 0)
        del self._sequences[seq]

    def refuse_shared(self, seq: int, first: int, end: int) -> None:
        """Raises ValueError when rows in [first, end) lie on a page that another sequence holds too."""
        if end <= first:
            return
        for page in self.pages(seq)[first // self.page_rows : self._pages_for(end)]:
            if self.pool.is_shared(page):
                raise ValueError(f"sequence {seq}: page {page} is shared, so no row can move into it")

    def check(self) -> None:
        """Raises AssertionError when a page's count isn't the number of sequences that hold it, or a sequence
        has more or fewer pages than its rows need."""
        held = Counter(page for sequence in self._sequences.values() for page in sequence.pages)
        assert [held[page] for page in range(self.pool.num_pages)] == list(self.pool.shares)
        assert self.pool.used == len(held)
        for seq, sequence in self._sequences.items():
            assert len(set(sequence.pages)) == len(sequence.pages) == self._pages_for(sequence.length), seq

    def _pages_for(self, rows: int) -> int:
        return -(-rows // self.page_rows)

    def _copies(self, held: _Sequence) -> bool:
        """Whether the next row would be written to a half-filled page that another sequence sees too."""
        return held.length % self.page_rows != 0 and self.pool.is_shared(held.pages[-1])

    def _take(self, after: int | None) -> int:
        page = self.pool.take(after)
        if page is None:
            double = max(1, 2 * self.pool.num_pages)
            self.pool.resize(double if self._limit is None else min(double, self._limit))
            page = self.pool.take(after)
            assert page is not None
        return page
