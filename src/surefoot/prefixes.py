"""Which prompts are computed already: full pages of committed tokens, found again by what they hold.

Works through the `Cache` protocol alone. A page's key is a hash of the key of the page before it and its own
tokens, so that a key stands for everything up to the page's end (as vLLM's automatic prefix caching has it).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from weakref import WeakKeyDictionary, WeakSet

from surefoot.models.base import Cache

sequence_numbers = count()  # of the process: engines may share a model, and so its cache

_by_cache: WeakKeyDictionary[Cache, WeakSet[Prefixes]] = WeakKeyDictionary()


@dataclass(slots=True)
class _Holders:
    """Sequences that hold a page with the same rows, each its own copy or one that they share."""

    live: dict[int, None] = field(default_factory=dict)
    retired: dict[int, None] = field(default_factory=dict)


class Prefixes:
    """The pages that may be shared, of requests that run and of retired ones.

    A retired sequence keeps its full pages until the room is needed: see `evict`. One whose pages another
    retired one has too is freed at once. Nothing but committed tokens ever comes here. Sequences share pages
    only with those that were given the same `salt`.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._index: dict[bytes, _Holders] = {}
        self._keys: dict[int, list[bytes]] = {}  # of every sequence known, one per full page
        self._retired: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._ends: dict[bytes, int] = {}  # the retired sequence that a page is the last of
        self._cached = self._idle = 0
        self._asked: tuple[int, int, list[bytes]] = (-1, 0, [])  # who asked last, how far, and its keys
        self._beside = _by_cache.setdefault(cache, WeakSet())
        self._beside.add(self)

    @property
    def pages(self) -> int:
        """Different pages that retired sequences hold, those that running ones share included."""
        return self._cached

    @property
    def idle_pages(self) -> int:
        """Of these, the ones that no running sequence knows: at least so many pages come free at once."""
        return self._idle

    def fork_longest(self, seq: int, tokens: Sequence[int], most: int, salt: str = "") -> int:
        """Starts `seq` in the cache with the longest prefix of `tokens` that is known in full pages, `most`
        rows at most, and returns the number of rows; it is empty where nothing is known. Asking again for a
        sequence that still waits reads no tokens."""
        if self._asked[:2] != (seq, most):
            self._asked = seq, most, list(self._chain(_root(salt), tokens[:most]))
        source, keys = None, list[bytes]()
        for key in self._asked[2]:
            holders = self._index.get(key)
            if holders is None:
                break
            source = next(iter(holders.live or holders.retired))
            keys.append(key)
        if source is None:
            self._cache.add(seq)
            return 0
        if source in self._retired:
            self._retired.move_to_end(source)
        rows = len(keys) * self._cache.page_rows
        self._cache.fork(seq, source, rows)
        self._know(seq, keys)
        return rows

    def commit(self, seq: int, tokens: Sequence[int], rows: int, salt: str = "") -> None:
        """So many rows of a running sequence, of these tokens, are in the cache for good. Costs as much as
        the pages that are full now and weren't before."""
        known = self._keys.get(seq, [])
        size = self._cache.page_rows
        if rows // size > len(known):
            fresh = tokens[len(known) * size : rows]
            self._know(seq, list(self._chain(known[-1] if known else _root(salt), fresh)))

    def retire(self, seq: int, tokens: Sequence[int], rows: int, salt: str = "") -> None:
        """A running sequence ended, of which so many rows are sound: its full pages stay."""
        self.commit(seq, tokens, rows, salt)
        keys = self.forget(seq)
        known = self._index.get(keys[-1]) if keys else None
        if not keys or (known and known.retired):
            self._cache.free(seq)
            if known:
                self._retired.move_to_end(next(iter(known.retired)))
            return
        whole = len(keys) * self._cache.page_rows
        if whole < self._cache.length(seq):
            self._cache.truncate(seq, whole)
        for key in keys:
            if key in self._ends:
                self._drop(self._ends[key])  # all it has is the beginning of this one
        self._keys[seq] = keys
        self._retired[seq] = None
        self._ends[keys[-1]] = seq
        for key in keys:
            self._hold(key, seq, live=False)

    def forget(self, seq: int) -> list[bytes]:
        """A running sequence's pages are no longer to be shared; returns their keys."""
        keys = self._keys.pop(seq, [])
        for key in keys:
            self._let_go(key, seq)
        return keys

    def evict(self) -> bool:
        """Gives up the last page of the sequence that was used least recently, and what is left of it if
        another one has that too; False when there is none."""
        if not self._retired:
            return False
        seq = next(iter(self._retired))
        keys = self._keys[seq]
        if len(keys) == 1 or len(self._index[keys[-2]].retired) > 1:
            self._drop(seq)
        else:
            del self._ends[keys[-1]]
            self._let_go(keys.pop(), seq)
            self._ends[keys[-1]] = seq
            self._cache.truncate(seq, len(keys) * self._cache.page_rows)
        return True

    def evict_elsewhere(self) -> bool:
        """The same to another engine's that shares the cache."""
        return any(other.evict() for other in [*self._beside] if other is not self)

    def clear(self) -> None:
        """Frees all retired sequences."""
        for seq in list(self._retired):
            self._drop(seq)

    def _drop(self, seq: int) -> None:
        keys = self.forget(seq)
        del self._retired[seq], self._ends[keys[-1]]
        self._cache.free(seq)

    def _know(self, seq: int, keys: list[bytes]) -> None:
        self._keys.setdefault(seq, []).extend(keys)
        for key in keys:
            self._hold(key, seq, live=True)

    def _hold(self, key: bytes, seq: int, *, live: bool) -> None:
        holders = self._index.setdefault(key, _Holders())
        self._count(holders, -1)
        (holders.live if live else holders.retired)[seq] = None
        self._count(holders, 1)

    def _let_go(self, key: bytes, seq: int) -> None:
        holders = self._index[key]
        self._count(holders, -1)
        holders.live.pop(seq, None)
        holders.retired.pop(seq, None)
        self._count(holders, 1)
        if not holders.live and not holders.retired:
            del self._index[key]

    def _count(self, holders: _Holders, sign: int) -> None:
        self._cached += sign * bool(holders.retired)
        self._idle += sign * bool(holders.retired and not holders.live)

    def _chain(self, before: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        """The keys of the full pages of some tokens that follow a page. 256 bits: nobody finds two pages of
        one key, by chance or on purpose."""
        size = self._cache.page_rows
        for end in range(size, len(tokens) + 1, size):
            page = array("q", tokens[end - size : end]).tobytes()
            before = blake2b(before + page, digest_size=32).digest()
            yield before


def _root(salt: str) -> bytes:
    """What the first page's key follows on: pages under one salt are never found under another."""
    return blake2b(salt.encode(), digest_size=32).digest()
