"""Which prefixes are found again, who keeps their pages, and who gives them up first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from surefoot.models.toy import ToyCache
from surefoot.prefixes import Prefixes
from tests.test_drafters import Counting

ROWS = 4  # of a page


class Desk:
    """A cache and its prefixes; sequences by number, each with its tokens."""

    def __init__(self) -> None:
        self.cache = ToyCache(ROWS)
        self.prefixes = Prefixes(self.cache)

    def run(self, seq: int, tokens: Sequence[int], most: int | None = None) -> int:
        """Starts a sequence with what is known of it, computes the rest and commits all of it."""
        known = self.prefixes.fork_longest(seq, tokens, len(tokens) if most is None else most)
        self.compute(seq, tokens[known:])
        self.prefixes.commit(seq, tokens, len(tokens))
        return known

    def compute(self, seq: int, tokens: Sequence[int]) -> None:
        base = self.cache.length(seq)
        self.cache.append(seq, tokens, [-1, *range(len(tokens) - 1)] if tokens else [])
        assert self.cache.length(seq) == base + len(tokens)

    def retire(self, seq: int, tokens: Sequence[int]) -> None:
        self.prefixes.retire(seq, tokens, len(tokens))


def test_the_longest_known_prefix_in_whole_pages_is_taken() -> None:
    desk = Desk()
    tokens = list(range(11))
    assert desk.run(1, tokens) == 0
    for seq, (asked, found) in enumerate(
        [
            (tokens, 8),
            ([*tokens[:8], 99, 98, 97, 96], 8),
            ([*tokens[:7], 99, 98], 4),
            ([99, *tokens[1:]], 0),
            (tokens[:3], 0),
        ],
        start=2,
    ):
        assert desk.prefixes.fork_longest(seq, asked, len(asked)) == found
        assert desk.cache.tokens(seq) == tuple(asked[:found])
    assert desk.cache.used_pages() == 3


def test_a_page_is_known_by_all_that_comes_before_it() -> None:
    desk = Desk()
    desk.run(1, [1, 1, 1, 1, 2, 2, 2, 2])
    assert desk.prefixes.fork_longest(2, [2, 2, 2, 2], 4) == 0


def test_no_more_rows_are_taken_than_may_be() -> None:
    desk = Desk()
    tokens = list(range(8))
    desk.run(1, tokens)
    assert desk.prefixes.fork_longest(2, tokens, 7) == 4
    assert desk.prefixes.fork_longest(3, tokens, 0) == 0


def test_rows_that_are_not_committed_are_not_known() -> None:
    desk = Desk()
    tokens = list(range(8))
    desk.cache.add(1)
    desk.compute(1, tokens)
    desk.prefixes.commit(1, tokens, 6)
    assert desk.prefixes.fork_longest(2, tokens, 8) == 4


def test_a_retired_sequence_keeps_its_whole_pages_and_serves_on() -> None:
    desk = Desk()
    tokens = list(range(11))
    desk.run(1, tokens)
    desk.retire(1, tokens)
    assert (desk.cache.length(1), desk.cache.used_pages(), desk.prefixes.pages) == (8, 2, 2)
    assert desk.prefixes.fork_longest(2, tokens, 10) == 8
    assert (desk.prefixes.pages, desk.prefixes.idle_pages) == (2, 0)


def test_a_sequence_that_is_not_whole_pages_long_leaves_nothing() -> None:
    desk = Desk()
    desk.run(1, [1, 2, 3])
    desk.retire(1, [1, 2, 3])
    assert len(desk.cache) == desk.prefixes.pages == 0


def test_what_is_kept_already_is_not_kept_twice() -> None:
    desk = Desk()
    tokens = list(range(12))
    for seq in range(1, 50):
        desk.run(seq, tokens, most=0 if seq % 2 else 11)
        desk.retire(seq, tokens)
        assert (len(desk.cache), desk.cache.used_pages(), desk.prefixes.pages) == (1, 3, 3)


def test_a_longer_one_takes_the_place_of_its_own_beginning() -> None:
    desk = Desk()
    tokens = list(range(12))
    desk.run(1, tokens[:4])
    desk.retire(1, tokens[:4])
    desk.run(2, tokens, most=0)
    desk.retire(2, tokens)
    assert (len(desk.cache), desk.cache.used_pages(), desk.prefixes.pages) == (1, 3, 3)
    desk.run(3, tokens[:8])
    desk.retire(3, tokens[:8])  # the beginning of another one, so there is nothing new in it
    assert (len(desk.cache), desk.cache.used_pages()) == (1, 3)


def test_the_least_recently_used_go_first_from_their_tail() -> None:
    desk = Desk()
    first, second = [1] * 12, [2] * 8
    for seq, tokens in ((1, first), (2, second)):
        desk.run(seq, tokens)
        desk.retire(seq, tokens)
    desk.prefixes.fork_longest(3, first, 4)  # so the second is older now
    desk.prefixes.forget(3)
    desk.cache.free(3)
    lengths = []
    while desk.prefixes.evict():
        lengths.append([desk.cache.length(seq) if seq in desk.cache._rows else 0 for seq in (1, 2)])
    assert lengths == [[12, 4], [12, 0], [8, 0], [4, 0], [0, 0]]
    assert desk.cache.used_pages() == desk.prefixes.pages == 0


def test_a_page_that_a_running_sequence_shares_outlives_the_retired_one() -> None:
    desk = Desk()
    tokens = list(range(8))
    desk.run(1, tokens)
    desk.retire(1, tokens)
    desk.run(2, tokens)
    desk.prefixes.clear()
    assert (desk.cache.used_pages(), desk.prefixes.pages) == (2, 0)
    assert desk.prefixes.fork_longest(3, tokens, 8) == 8


def test_an_aborted_sequence_is_not_found_again() -> None:
    desk = Desk()
    tokens = list(range(8))
    desk.run(1, tokens)
    desk.prefixes.forget(1)
    desk.cache.free(1)
    assert desk.prefixes.fork_longest(2, tokens, 8) == 0


def test_a_commit_reads_the_new_tokens_alone() -> None:
    cache = ToyCache(ROWS)
    prefixes = Prefixes(cache)
    cache.add(1)
    tokens = Counting([t % 7 for t in range(2000)])
    reads = []
    for rows in range(0, 2001, 5):
        before = tokens.reads
        prefixes.commit(1, tokens, rows)
        reads.append(tokens.reads - before)
    assert max(reads) <= 2 * (5 + ROWS)


def test_one_that_waits_has_its_tokens_read_once() -> None:
    desk = Desk()
    desk.run(1, [1] * 40)
    tokens = Counting([1] * 60)
    for _ in range(50):
        assert desk.prefixes.fork_longest(2, tokens, 59) == 40
        desk.prefixes.forget(2)
        desk.cache.free(2)
    assert tokens.reads <= 2 * 60


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["run", "grow", "retire", "forget", "evict"]),
        st.integers(0, 99),
        st.lists(st.integers(0, 1), min_size=1, max_size=14),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_history_finds_what_a_search_through_all_tokens_would(
    steps: list[tuple[str, int, list[int]]],
) -> None:
    desk = Desk()
    running: dict[int, list[int]] = {}
    for step, (operation, number, tokens) in enumerate(steps):
        seq = sorted(running)[number % len(running)] if running else None
        if operation == "run":
            held = [desk.cache.tokens(other) for other in desk.cache._rows]
            common = [
                next((i for i, (a, b) in enumerate(zip(tokens, h, strict=False)) if a != b), 99) for h in held
            ]
            longest = max(
                [min(len(tokens), len(h), c) // ROWS for h, c in zip(held, common, strict=True)], default=0
            )
            assert desk.run(step, tokens) == longest * ROWS
            running[step] = tokens
        elif operation == "evict":
            desk.prefixes.evict()
        elif seq is None:
            continue
        elif operation == "grow":
            desk.compute(seq, tokens)
            running[seq] = running[seq] + tokens
            desk.prefixes.commit(seq, running[seq], len(running[seq]))
        elif operation == "retire":
            desk.retire(seq, running.pop(seq))
        else:
            desk.prefixes.forget(seq)
            desk.cache.free(seq)
            del running[seq]
        desk.cache.check()
        check_counts(desk, running)
    for seq, tokens in running.items():
        desk.retire(seq, tokens)
    assert desk.cache.used_pages() >= desk.prefixes.pages
    desk.prefixes.clear()
    assert desk.cache.used_pages() == len(desk.cache) == desk.prefixes.pages == desk.prefixes.idle_pages == 0
    assert not desk.prefixes._index
    assert not desk.prefixes._keys
    assert not desk.prefixes._ends


def pages_of(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    """Every prefix in whole pages."""
    ends = range(0, len(tokens) + 1, ROWS)
    return {tuple(tokens[:end]) for _, end in pairwise(ends)}


def check_counts(desk: Desk, running: dict[int, list[int]]) -> None:
    live = {page for tokens in running.values() for page in pages_of(tokens)}
    retired = [desk.cache.tokens(seq) for seq in desk.cache._rows if seq not in running]
    kept = {page for tokens in retired for page in pages_of(tokens)}
    assert (desk.prefixes.pages, desk.prefixes.idle_pages) == (len(kept), len(kept - live))
    whole = [
        tokens for tokens in retired if not any(tokens != t and tokens == t[: len(tokens)] for t in retired)
    ]
    assert len(whole) == len(set(retired))  # none is the beginning of another one


def test_pages_under_one_salt_are_not_found_under_another() -> None:
    desk = Desk()
    tokens = list(range(8))
    for seq, (salt, found) in enumerate([("", 0), ("a", 0), ("", 8), ("a", 8), ("b", 0)]):
        assert desk.prefixes.fork_longest(seq, tokens, 8, salt) == found
        desk.compute(seq, tokens[found:])
        desk.prefixes.retire(seq, tokens, 8, salt)
    assert desk.cache.used_pages() == 6
