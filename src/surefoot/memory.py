"""The engine's account of the target's cache: who is let in, who gets pages, what stays of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from surefoot.models.base import Cache
from surefoot.prefixes import Prefixes, sequence_numbers
from surefoot.request import Request
from surefoot.types import whole

LEAST_TOKENS = 64  # of prompt and output together: a small request


def divide(kv_memory: int | None, caches: Sequence[Cache]) -> int | None:
    """Holds caches to so many bytes together, each to the same number of tokens, and returns how many the
    first one takes; None holds them to nothing. Raises SurefootError for too little for a small request."""
    if kv_memory is None:
        for cache in caches:
            cache.limit(None)
        return None
    row_bytes = sum(cache.row_bytes for cache in caches)
    least = row_bytes * max(-(-LEAST_TOKENS // cache.page_rows) * cache.page_rows for cache in caches)
    tokens = whole("kv_memory", kv_memory, least) // row_bytes
    for cache in caches:
        cache.limit(tokens // cache.page_rows)
    return tokens // caches[0].page_rows * caches[0].page_rows


class Memory:
    """Implements `scheduler.Memory` over a cache that others may use beside it.

    Pages that are reserved are only counted: the pass takes them, after all of the round were counted. Before
    anything is refused, retired sequences go, page by page.

    reuse: whether requests begin with what others computed, and leave theirs behind. preempted: called for
    every request that has to give up its place. Without a limit the cache grows for what runs, never for what
    is retired.
    """

    def __init__(self, cache: Cache, *, reuse: bool, preempted: Callable[[Request], None]) -> None:
        self._cache, self._reuse, self._preempted = cache, reuse, preempted
        self._prefixes = Prefixes(cache)
        self._admitted: dict[int, Request] = {}
        self._reserved: dict[int, int] = {}
        self.preemptions = 0

    @property
    def cached_pages(self) -> int:
        """Pages of requests that ended."""
        return self._prefixes.pages

    def begin_round(self) -> None:
        self._reserved.clear()

    def admit(self, request: Request) -> bool:
        """Starts a request with what is known of its tokens, if there is room for all that it has to compute
        beside what others that run have to. One that would run alone needs less: no more than there is."""
        rows = self._begin(request)
        pages = self._cache.cost(request.seq, len(request.tokens) - rows)
        if self._admitted and not self._has_room(pages + self._promised()):
            self._prefixes.forget(request.seq)
            self._cache.free(request.seq)
            return False
        request.admit(rows)
        self._admitted[request.seq] = request
        return True

    def reserve(self, request: Request, rows: int) -> bool:
        pages = self._cache.cost(request.seq, rows)
        wanted = pages + sum(self._reserved.values())
        while self._room() < wanted:
            if not self._prefixes.evict() and not self._prefixes.evict_elsewhere():
                break
        free = self._cache.free_pages()
        if free is not None and free < wanted:
            return False
        self._reserved[request.seq] = pages
        return True

    def give_up(self, request: Request) -> None:
        """Preempts a request: its rows go where those of ended ones do, and may serve it again."""
        self._preempted(request)
        self._leave(request, next(sequence_numbers))
        request.preempt()
        self.preemptions += 1

    def commit(self, request: Request) -> None:
        """The request has more rows in the cache that are final."""
        if self._reuse:
            self._prefixes.commit(request.seq, request.tokens, request.num_computed, request.cache_salt)

    def retire(self, request: Request) -> None:
        """A request that is between rounds ended: its committed rows stay while there is room."""
        self._leave(request, request.seq)

    def drop(self, request: Request) -> None:
        """Frees a request's rows, in whatever state they are; nothing happens to one that has none."""
        if self._admitted.pop(request.seq, None):
            self._reserved.pop(request.seq, None)
            self._prefixes.forget(request.seq)
            with suppress(KeyError):
                self._cache.free(request.seq)

    def clear(self) -> None:
        """Frees what ended requests left."""
        self._prefixes.clear()

    def _begin(self, request: Request) -> int:
        """Starts the request's sequence in the cache, and returns how many rows it has."""
        seq, source, rows = request.seq, request.source, request.shareable
        if not self._reuse or not rows:
            self._cache.add(seq)
            return 0
        if source and source.seq in self._admitted and source.num_computed >= rows and not request.output:
            self._cache.fork(seq, source.seq, rows)  # to the row, not to the page
            self._prefixes.commit(seq, request.tokens, rows, request.cache_salt)
            return rows
        return self._prefixes.fork_longest(seq, request.tokens, rows, request.cache_salt)

    def _leave(self, request: Request, kept_as: int) -> None:
        if not self._admitted.pop(request.seq, None):
            return
        self._reserved.pop(request.seq, None)
        if not self._reuse:
            self._cache.free(request.seq)
            return
        if kept_as != request.seq:
            self._prefixes.forget(request.seq)
            self._cache.fork(kept_as, request.seq, request.num_computed)
            self._cache.free(request.seq)
        self._prefixes.retire(kept_as, request.tokens, request.num_computed, request.cache_salt)

    def _room(self) -> int:
        """Pages to be had without the store's growing beyond what was asked for."""
        free = self._cache.free_pages()
        return self._cache.spare_pages() if free is None else free

    def _has_room(self, pages: int) -> bool:
        free = self._cache.free_pages()
        return free is None or pages <= free + self._prefixes.idle_pages

    def _promised(self) -> int:
        """Pages for what was reserved in this round and for the prompts that are under way, and one for each
        request to grow into."""
        return sum(
            1 + max(self._reserved.get(seq, 0), self._cache.cost(seq, request.prompt_left))
            for seq, request in self._admitted.items()
        )
