"""What drafters propose, and what they remember."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.drafters.base import DraftRequest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.types import Draft, Verdict


def greedy(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, None]:
    return int(logits.argmax()), None


def ask(tokens: Sequence[int], budget: int = 4, seq: int = 0) -> DraftRequest:
    return DraftRequest(seq, tokens, budget, greedy)


def lookup(tokens: Sequence[int], budget: int = 4) -> tuple[int, ...]:
    drafter = NgramDrafter()
    drafter.start(0, tokens)
    return drafter.propose([ask(tokens, budget)])[0].tokens


def slow_lookup(tokens: list[int], budget: int) -> tuple[int, ...]:
    """The same by looking everywhere."""
    for n in (3, 2, 1):
        for start in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and tokens[start - n : start] == tokens[-n:]:
                matched = max(
                    m for m in range(1, min(start, 16) + 1) if tokens[start - m : start] == tokens[-m:]
                )
                return tuple(tokens[start : start + min(budget, matched)])
    return ()


class Counting(Sequence[int]):
    """Counts the tokens that are read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.reads = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        found = self.tokens[at]
        self.reads += len(found) if isinstance(at, slice) else 1
        return found


def test_n1_without_a_match_there_is_no_draft() -> None:
    assert lookup([1, 2, 3, 4]) == ()
    assert lookup([1]) == ()


def test_n1_a_draft_ends_where_the_tokens_do() -> None:
    assert lookup([7, 7, 7]) == (7,)
    assert lookup([1, 2, 3, 1, 2, 3]) == (1, 2, 3)


def test_a_draft_is_no_longer_than_what_matched() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 7, 9, 1]) == (2,)
    assert lookup([1, 2, 3, 4, 5, 6, 7, 9, 1, 2]) == (3, 4)
    once = list(range(100, 140))
    assert lookup([*once, 7, *once[:30]], 25) == (*once[30:], 7, *once[:5])
    assert lookup([*once, 7, *once[:12]], 25) == tuple(once[12:24])


def test_n1_the_longest_match_counts_then_the_latest() -> None:
    assert lookup([1, 2, 3, 4, 9, 2, 3, 5, 9, 3, 6, 1, 2, 3], 1) == (4,)
    assert lookup([2, 3, 4, 9, 2, 3, 5, 8, 2, 3], 1) == (5,)
    assert lookup([1, 2, 3, 1, 2, 3], 2) == (1, 2)


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40), budget=st.integers(1, 6))
def test_an_index_finds_what_a_search_finds(tokens: list[int], budget: int) -> None:
    assert lookup(tokens, budget) == slow_lookup(tokens, budget)


@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40), cut=st.integers(1, 40))
def test_an_index_that_grows_equals_one_built_at_once(tokens: list[int], cut: int) -> None:
    drafter = NgramDrafter()
    drafter.start(0, tokens[:cut])
    for size in range(min(cut, len(tokens)), len(tokens) + 1):
        grown = drafter.propose([ask(tokens[:size])])[0].tokens
    assert grown == lookup(tokens)


def test_n3_a_step_costs_the_same_at_any_length() -> None:
    """50,000 tokens in which nothing repeats; every step may read its new tokens and a draft, no more."""
    drafter = NgramDrafter()
    tokens = Counting(range(50_000))
    drafter.start(0, tokens)
    assert tokens.reads <= 50_000
    tokens.reads = 0
    for new in range(50_000, 50_100):
        tokens.tokens.append(new)
        assert drafter.propose([ask(tokens)]) == [Draft(source="ngram")]
    assert tokens.reads <= 100
    tokens.tokens += [10, 11, 12]
    assert drafter.propose([ask(tokens)])[0].tokens == (13, 14, 15)
    assert tokens.reads <= 100 + 3 + 2 * 16 + 3


def test_e1_no_ngram_comes_from_another_request() -> None:
    drafter = NgramDrafter()
    drafter.start(0, [1, 2, 3, 4, 5])
    drafter.start(1, [9, 1, 2])
    both = drafter.propose([ask([1, 2, 3, 4, 5, 2, 3], seq=0), ask([9, 1, 2], seq=1)])
    assert [draft.tokens for draft in both] == [(4, 5), ()]
    drafter.stop(0)
    drafter.start(2, [2, 3])
    assert drafter.propose([ask([2, 3], seq=2)])[0].tokens == ()
    assert drafter.propose([ask([9, 1, 2, 8, 9, 1], seq=1)])[0].tokens == (2, 8)


class Recording(ToyModel):
    """Remembers the rows of every pass."""

    def __init__(self, max_length: int = 4096) -> None:
        super().__init__(random_table(16, 2, seed=5), 16, max_length)
        self.passes: list[list[int]] = []

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self.passes.append([len(segment.tokens) for segment in batch])
        return super().forward(batch)


def continued(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """What a greedy drafter over `Recording`'s table says next."""
    table, known = random_table(16, 2, seed=5), list(tokens)
    for _ in range(count):
        known.append(int(np.asarray(table(tuple(known))).argmax()))
    return tuple(known[len(tokens) :])


def test_all_requests_are_drafted_in_the_same_passes_each_to_its_own_length() -> None:
    model = Recording()
    drafter = ModelDrafter(model)
    prompts = {0: [1, 2, 3], 1: [4], 2: [5, 6]}
    for seq, prompt in prompts.items():
        drafter.start(seq, prompt)
    drafts = drafter.propose([ask(prompts[seq], budget, seq) for seq, budget in ((0, 3), (1, 1), (2, 2))])
    assert [d.tokens for d in drafts] == [continued(prompts[s], n) for s, n in ((0, 3), (1, 1), (2, 2))]
    assert model.passes == [[3, 1, 2], [1, 1], [1]]


def test_a_long_prompt_is_caught_up_with_in_bounded_passes() -> None:
    model = Recording()
    drafter = ModelDrafter(model, max_rows=4)
    prompts = {0: [1, 2, 3, 4, 5, 6, 7], 1: [8, 9, 10], 2: [11]}
    for seq, prompt in prompts.items():
        drafter.start(seq, prompt)
    drafts = drafter.propose([ask(prompt, 1, seq) for seq, prompt in prompts.items()])
    assert [draft.tokens for draft in drafts] == [continued(prompt, 1) for prompt in prompts.values()]
    assert model.passes == [[4], [3, 1], [2, 1]]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_d2_the_cache_holds_the_emitted_prefix_and_nothing_else(accepted: int) -> None:
    model = Recording()
    drafter = ModelDrafter(model)
    tokens = [1, 2, 3]
    drafter.start(0, tokens)
    for _ in range(5):
        draft = drafter.propose([ask(tokens, 3)])[0]
        tokens += [*draft.tokens[:accepted], 15 - draft.tokens[-1]]
        verdict = Verdict(
            tuple(range(accepted)), tokens[-1], bonus=accepted == 3, tested=min(accepted + 1, 3)
        )
        drafter.observe(0, verdict)
        held = model.cache.tokens(-1)
        assert held == tuple(tokens[: len(held)])
        assert drafter.num_computed(0) == len(tokens) - (2 if accepted == 3 else 1)


def test_rounds_without_a_draft_are_caught_up_with() -> None:
    drafter = ModelDrafter(Recording())
    drafter.start(0, [1, 2])
    drafter.propose([ask([1, 2], 2)])
    drafter.observe(0, Verdict((), 9, bonus=False, tested=1))
    later = [1, 2, 9, 8, 7, 6]
    assert drafter.propose([ask(later, 2)])[0].tokens == continued(later, 2)


def test_l2_a_draft_shortens_towards_the_context_and_stops_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = ModelDrafter(Recording(max_length=16), name="small")
    tokens = list(range(14))
    drafter.start(0, tokens)
    lengths = []
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            draft = drafter.propose([ask(tokens, 4)])[0]
            drafter.observe(0, Verdict((), 1, bonus=False, tested=min(1, len(draft.tokens))))
            tokens.append(1)
            lengths.append(len(draft.tokens))
    assert lengths == [3, 2, 1, 0, 0]
    assert [record.message for record in caplog.records] == [
        "small: no drafts beyond its context of 16 tokens"
    ]


def test_m1_a_token_that_the_drafter_lacks_ends_its_drafts() -> None:
    drafter = ModelDrafter(Recording())
    drafter.start(0, [1, 2])
    assert drafter.propose([ask([1, 2], 2)])[0].tokens == continued([1, 2], 2)
    drafter.observe(0, Verdict((), 16, bonus=False, tested=1))
    for tokens in ([1, 2, 16], [1, 2, 16, 3]):
        assert drafter.propose([ask(tokens, 2)])[0].tokens == ()


def test_stopping_frees_the_cache_and_stopping_twice_does_no_harm() -> None:
    drafter = ModelDrafter(Recording())
    drafter.start(0, [1, 2])
    drafter.propose([ask([1, 2], 2)])
    drafter.stop(0)
    drafter.stop(0)
    with pytest.raises(KeyError):
        drafter.num_computed(0)
    drafter.start(0, [3])
    assert drafter.propose([ask([3], 2)])[0].tokens == continued([3], 2)


def test_what_tokens_were_drawn_from_is_handed_on() -> None:
    def draw(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, NDArray[np.float64]]:
        return len(drafted), np.eye(20)[len(drafted)]

    drafter = ModelDrafter(Recording())
    drafter.start(0, [1])
    draft = drafter.propose([DraftRequest(0, [1], 3, draw)])[0]
    assert draft.tokens == (0, 1, 2)
    assert draft.probs is not None
    np.testing.assert_array_equal(draft.probs, np.eye(20)[:3])
