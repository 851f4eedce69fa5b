"""What a page costs, who holds it, and what a limit refuses: the books of both caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.models.base import Cache, CacheFullError
from surefoot.models.kv import PAGE, PagedCache
from surefoot.models.pages import PageTable
from surefoot.models.toy import ToyCache


def append(cache: Cache, seq: int, rows: int) -> None:
    if isinstance(cache, ToyCache):
        cache.append(seq, [0] * rows, range(-1, rows - 1))
    else:
        assert isinstance(cache, PagedCache)
        cache.append(seq, rows)


def paged(num_pages: int = 64) -> PagedCache:
    return PagedCache(2, 1, 4, torch.float16, num_pages)


CACHES: dict[str, Callable[[], ToyCache | PagedCache]] = {"toy": ToyCache, "paged": paged}

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "append", "truncate", "fork", "free", "limit"]), st.integers(0, 2**16)),
    max_size=50,
)


@pytest.mark.parametrize("kind", CACHES)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_an_append_takes_what_it_costs_or_nothing(kind: str, operations: list[tuple[str, int]]) -> None:
    cache = CACHES[kind]()
    limit: int | None = None
    seqs: list[int] = []
    for step, (operation, number) in enumerate(operations):
        seq = seqs[number % len(seqs)] if seqs else None
        if operation == "add":
            cache.add(step)
            seqs.append(step)
        elif operation == "limit":
            limit = number % 20 if number % 3 else None
            cache.limit(limit)
        elif seq is None:
            continue
        elif operation == "append":
            rows = number % (3 * cache.page_rows)
            before, cost = cache.used_pages(), cache.cost(seq, rows)
            length, free = cache.length(seq), cache.free_pages()
            if free is not None and cost > free:
                with pytest.raises(CacheFullError, match=f"{rows} rows take {cost} pages, {free} are free"):
                    append(cache, seq, rows)
                assert (cache.length(seq), cache.used_pages()) == (length, before)
            else:
                append(cache, seq, rows)
                assert (cache.length(seq), cache.used_pages()) == (length + rows, before + cost)
        elif operation == "truncate":
            cache.truncate(seq, number % (cache.length(seq) + 1))
        elif operation == "fork":
            before = cache.used_pages()
            cache.fork(step, seq, number % (cache.length(seq) + 1))
            seqs.append(step)
            assert cache.used_pages() == before
        else:
            cache.free(seq)
            seqs.remove(seq)
        cache.check()
        used, free = cache.used_pages(), cache.free_pages()
        assert free == (None if limit is None else max(0, limit - used))
        assert 0 <= cache.spare_pages() <= (64**3 if free is None else free)
    for seq in seqs:
        cache.free(seq)
    assert cache.used_pages() == 0


@pytest.mark.parametrize("kind", CACHES)
def test_a_shared_half_filled_page_is_copied_by_whoever_writes_first(kind: str) -> None:
    cache = CACHES[kind]()
    cache.add(1)
    append(cache, 1, cache.page_rows + 1)
    for seq in (2, 3):
        cache.fork(seq, 1, cache.page_rows + 1)
    assert (cache.used_pages(), [cache.cost(seq, 1) for seq in (1, 2, 3)]) == (2, [1, 1, 1])
    append(cache, 1, 1)
    append(cache, 2, 1)
    assert (cache.used_pages(), cache.cost(3, 1), cache.cost(3, cache.page_rows)) == (4, 0, 1)
    assert cache.cost(3, 0) == 0


def test_the_store_doubles_up_to_the_limit() -> None:
    cache = paged(num_pages=2)
    cache.limit(7)
    cache.add(1)
    sizes = []
    for _ in range(7):
        append(cache, 1, PAGE)
        sizes.append(cache.keys.shape[1] // PAGE)
    assert sizes == [2, 2, 4, 4, 7, 7, 7]
    with pytest.raises(CacheFullError):
        append(cache, 1, 1)
    assert cache.spare_pages() == 0


def test_a_limit_below_the_first_store_makes_it_smaller_while_it_is_empty() -> None:
    cache = paged()
    assert (cache.spare_pages(), cache.free_pages()) == (64, None)
    cache.limit(3)
    assert cache.keys.shape[1] == cache.values.shape[1] == 3 * PAGE
    cache.add(1)
    append(cache, 1, 3 * PAGE)
    cache.limit(1)
    assert (cache.free_pages(), cache.keys.shape[1]) == (0, 3 * PAGE)
    cache.truncate(1, PAGE)
    with pytest.raises(CacheFullError):
        append(cache, 1, 1)
    cache.limit(None)
    append(cache, 1, 9 * PAGE)


def test_rows_have_the_bytes_of_all_layers() -> None:
    assert paged().row_bytes == 2 * 2 * 1 * 4 * 2  # keys and values, layers, heads, width, bytes of a number


class Miscounting(PageTable):
    """Forgets to count a share."""

    def fork(self, seq: int, source: int, length: int) -> None:
        super().fork(seq, source, length)
        for page in self.pages(seq):
            self.pool.give_back(page)


class Leaking(PageTable):
    """Forgets a sequence without giving its pages back."""

    def free(self, seq: int) -> None:
        del self._sequences[seq]


@pytest.mark.parametrize("kind", [Miscounting, Leaking])
def test_books_that_do_not_balance_are_noticed(kind: type[PageTable]) -> None:
    table = kind(4, 8)
    table.add(1)
    table.append(1, 6)
    table.check()
    table.fork(2, 1, 6)
    table.free(1)
    with pytest.raises(AssertionError):
        table.check()


@pytest.mark.parametrize("kind", CACHES)
def test_misuse_is_named(kind: str) -> None:
    cache = CACHES[kind]()
    cache.add(1)
    append(cache, 1, 3)
    calls: Sequence[tuple[Callable[[], object], str]] = [
        (lambda: cache.add(1), "sequence 1 exists already"),
        (lambda: cache.truncate(1, 4), "cannot truncate to 4 rows, it has 3"),
        (lambda: cache.fork(2, 1, 4), "cannot share 4 rows, it has 3"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(KeyError):
        cache.cost(9, 1)
    cache.check()
