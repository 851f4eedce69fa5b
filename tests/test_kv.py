"""Pages: what is held, rolled back, shared and given back, against a model of plain lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.models.kv import PAGE, PagedCache


@torch.inference_mode()
def fill(cache: PagedCache, seq: int, values: list[int]) -> None:
    """Appends one row per value, as a pass would."""
    before = cache.length(seq)
    cache.append(seq, len(values))
    slots = cache.slots(seq)[before:]
    cache.keys[0, slots, 0, 0] = torch.tensor(values, dtype=torch.float32)
    cache.values[0, slots, 0, 0] = -torch.tensor(values, dtype=torch.float32)


def held(cache: PagedCache, seq: int) -> list[int]:
    slots = cache.slots(seq)
    keys, values = cache.keys[0, slots, 0, 0], cache.values[0, slots, 0, 0]
    assert torch.equal(keys, -values)
    return [int(key) for key in keys]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "fill", "truncate", "keep", "fork", "free"]), st.integers(0, 2**16)),
    max_size=60,
)


@settings(deadline=None)
@given(OPERATIONS)
def test_every_history_holds_what_plain_lists_would(operations: list[tuple[str, int]]) -> None:
    cache = PagedCache(1, 1, 1, torch.float32, num_pages=2)
    lists: dict[int, list[int]] = {}
    for step, (operation, number) in enumerate(operations):
        seqs = sorted(lists)
        seq = seqs[number % len(seqs)] if seqs else None
        if operation == "add":
            cache.add(step)
            lists[step] = []
        elif seq is None:
            continue
        elif operation == "fill":
            rows = [step * 1000 + i for i in range(1 + number % 70)]
            fill(cache, seq, rows)
            lists[seq] += rows
        elif operation == "truncate":
            length = number % (len(lists[seq]) + 1)
            cache.truncate(seq, length)
            del lists[seq][length:]
        elif operation == "keep":
            base = number % (len(lists[seq]) + 1)
            rows = [row for row in range(len(lists[seq]) - base) if (number >> row % 16) & 1]
            if rows != list(range(len(rows))) and writes_to_another(cache, seq, base, len(rows)):
                with pytest.raises(ValueError, match="is shared"):
                    cache.keep(seq, base, rows)
            else:
                cache.keep(seq, base, rows)
                lists[seq] = lists[seq][:base] + [lists[seq][base + row] for row in rows]
        elif operation == "fork":
            length = number % (len(lists[seq]) + 1)
            cache.fork(step, seq, length)
            lists[step] = lists[seq][:length]
        else:
            cache.free(seq)
            del lists[seq]
        assert {s: held(cache, s) for s in lists} == lists
        cache.check()
        assert all(cache.length(s) == len(rows) for s, rows in lists.items())


def writes_to_another(cache: PagedCache, seq: int, base: int, rows: int) -> bool:
    """Whether another sequence holds a page that `rows` rows from `base` on lie in."""
    own = {slot // PAGE for slot in cache.slots(seq)[base : base + rows]}
    return any(cache._table.pool.is_shared(page) for page in own)


def test_rows_are_not_moved_into_a_shared_page() -> None:
    cache = PagedCache(1, 1, 1, torch.float32)
    cache.add(1)
    fill(cache, 1, [1, 2, 3])
    cache.fork(2, 1, 2)
    with pytest.raises(ValueError, match="sequence 1: page 0 is shared, so no row can move into it"):
        cache.keep(1, 0, [1, 2])
    assert (held(cache, 1), held(cache, 2)) == ([1, 2, 3], [1, 2])
    cache.keep(1, 0, [0, 1])
    assert held(cache, 1) == [1, 2]


def test_pages_are_handed_out_in_runs() -> None:
    cache = PagedCache(1, 1, 1, torch.float32, num_pages=16)
    for seq in (1, 2):
        cache.add(seq)
        cache.append(seq, PAGE)
    for _ in range(6):
        for seq in (1, 2):
            cache.append(seq, PAGE)
    for seq in (1, 2):
        slots = cache.slots(seq)
        assert (slots == np.arange(slots[0], slots[0] + len(slots))).all()


def test_a_freed_sequence_gives_every_page_back() -> None:
    cache = PagedCache(1, 1, 1, torch.float32, num_pages=4)
    for seq in range(50):
        cache.add(seq)
        cache.append(seq, 3 * PAGE)
        cache.free(seq)
    assert cache.keys.shape[1] == 4 * PAGE


def test_misuse_is_named() -> None:
    cache = PagedCache(1, 1, 1, torch.float32)
    cache.add(1)
    fill(cache, 1, [1, 2, 3])
    with pytest.raises(ValueError, match="exists already"):
        cache.add(1)
    with pytest.raises(ValueError, match="cannot truncate to 4 rows, it has 3"):
        cache.truncate(1, 4)
    with pytest.raises(ValueError, match="must ascend"):
        cache.keep(1, 0, [1, 0])
    with pytest.raises(ValueError, match="past its 3 rows"):
        cache.keep(1, 1, [2])
    with pytest.raises(ValueError, match="cannot share 4 rows"):
        cache.fork(2, 1, 4)
    with pytest.raises(KeyError):
        cache.length(9)
