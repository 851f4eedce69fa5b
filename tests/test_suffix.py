"""What suffix drafts are, by looking everywhere; what they cost, and whose text they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.drafters import suffix
from surefoot.drafters.automaton import ROOT as ROOT_STATE
from surefoot.drafters.automaton import Automaton
from surefoot.drafters.base import DraftRequest
from surefoot.drafters.pool import Pool
from surefoot.drafters.suffix import DEPTH, FACTOR, MIN_PROB, SuffixDrafter
from surefoot.tree import ROOT, depths, path_to
from surefoot.types import Draft, Verdict

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)
BUDGETS = st.integers(1, 16)


def greedy(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, None]:
    return int(logits.argmax()), None


def ask(tokens: Sequence[int], budget: int = 4, seq: int = 0) -> DraftRequest:
    return DraftRequest(seq, tokens, budget, greedy)


def draft_of(tokens: Sequence[int], budget: int = 4, *, tree: bool = False) -> Draft:
    drafter = SuffixDrafter(tree=tree)
    drafter.start(0, tokens)
    return drafter.propose([ask(tokens, budget)])[0]


def drafted(tokens: Sequence[int], budget: int = 4) -> tuple[int, ...]:
    return draft_of(tokens, budget).tokens


def places(tokens: list[int], context: list[int]) -> list[int]:
    """Where a context ends, the end of the text included."""
    size = len(context)
    return [end for end in range(size, len(tokens) + 1) if tokens[end - size : end] == context]


def followers(tokens: list[int], context: list[int]) -> dict[int, list[int]]:
    """The places of each token that follows a context."""
    found: dict[int, list[int]] = {}
    for end in places(tokens, context):
        if end < len(tokens):
            found.setdefault(tokens[end], []).append(end)
    return found


def slow_draft(tokens: list[int], budget: int) -> tuple[int, ...]:
    """The rule by looking everywhere, for endings of every length."""
    best, highest = [], 0.0
    for length in range(min(DEPTH, len(tokens)), 0, -1):
        guess: list[int] = []
        prob, score = 1.0, 0.0
        while len(guess) < min(budget, int(length * FACTOR)):
            context = [*tokens[len(tokens) - length :], *guess][-DEPTH:]
            found = followers(tokens, context)
            if not found:
                break
            token = max(found, key=lambda each: (len(found[each]), found[each][-1]))
            prob *= len(found[token]) / len(places(tokens, context))
            if prob < MIN_PROB:
                break
            guess.append(token)
            score += prob
        if score > highest:
            best, highest = guess, score
    return tuple(best)


def test_n1_without_a_match_there_is_no_draft() -> None:
    assert drafted([1, 2, 3, 4]) == ()
    assert drafted([1]) == ()


def test_n1_a_draft_ends_where_the_text_does() -> None:
    assert drafted([1, 2, 3, 1, 2, 3], 8) == (1, 2, 3)
    assert drafted([7, 7, 7, 7], 8) == (7, 7)


def test_a_draft_is_half_as_long_again_as_what_matched() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 7, 9, 1]) == (2,)
    assert drafted([1, 2, 3, 4, 5, 6, 7, 9, 1, 2]) == (3, 4, 5)
    once = list(range(100, 140))
    assert drafted([*once, 7, *once[:8]], 25) == tuple(once[8:20])


def test_what_followed_most_often_comes_before_what_followed_last() -> None:
    assert drafted([1, 5, 1, 5, 1, 6, 1], 1) == (5,)
    assert drafted([1, 5, 1, 6, 1], 1) == (6,)


def test_a_shorter_ending_with_more_to_say_comes_before_the_longest() -> None:
    """3 4 was followed by 9 once; 4, four times out of five, by 5."""
    tokens = [3, 4, 9, 0, 4, 5, 1, 4, 5, 2, 4, 5, 0, 4, 5, 7, 3, 4]
    assert drafted(tokens, 1) == (5,)


@given(tokens=TEXTS, budget=BUDGETS)
def test_a_draft_is_what_the_rule_says(tokens: list[int], budget: int) -> None:
    assert drafted(tokens, budget) == slow_draft(tokens, budget)


@given(period=st.lists(st.integers(0, 2), min_size=20, max_size=40), more=TEXTS, budget=BUDGETS)
def test_endings_longer_than_the_depth_are_cut(period: list[int], more: list[int], budget: int) -> None:
    tokens = [*period, *more, *period, *more]
    assert drafted(tokens, budget) == slow_draft(tokens, budget)


@given(tokens=TEXTS, stops=st.sets(st.integers(1, 60)), budget=BUDGETS)
def test_a_text_that_was_stopped_is_drafted_as_if_it_never_was(
    tokens: list[int], stops: set[int], budget: int
) -> None:
    steady, stopped = SuffixDrafter(), SuffixDrafter()
    for drafter in (steady, stopped):
        drafter.start(0, tokens[:1])
    for size in range(1, len(tokens) + 1):
        if size in stops:
            stopped.stop(0)
            stopped.start(0, tokens[:size])
        request = ask(tokens[:size], budget)
        draft = stopped.propose([request])
        assert draft == steady.propose([request])
        verdict = Verdict((), tokens[0], bonus=False, tested=min(1, len(draft[0].tokens)))
        for drafter in (steady, stopped):
            drafter.observe(0, verdict)
    assert draft[0].tokens == drafted(tokens, budget)


@given(tokens=TEXTS, budget=BUDGETS)
def test_a_tree_holds_the_likeliest_tokens_with_all_before_them(tokens: list[int], budget: int) -> None:
    draft = draft_of(tokens, budget, tree=True)
    assert draft.parents is not None or not draft.tokens
    paths = [
        tuple(draft.tokens[n] for n in path_to(draft.parents or (), i)) for i in range(len(draft.tokens))
    ]
    assert len(set(paths)) == len(paths) <= budget
    # Nothing but what followed, as often as it must: after some ending of the text, all the same one.
    assert not paths or any(
        all(_prob(tokens, [*tokens[len(tokens) - length :]], path) >= MIN_PROB for path in paths)
        for length in range(1, min(DEPTH, len(tokens)) + 1)
    )
    assert depths(draft.parents or ()) == [len(path) for path in paths]


def _prob(tokens: list[int], context: list[int], path: tuple[int, ...]) -> float:
    prob = 1.0
    for token in path:
        context = context[-DEPTH:]
        prob *= len(followers(tokens, context).get(token, ())) / len(places(tokens, context))
        context = [*context, token]
    return prob


def test_a_tree_branches_where_two_are_likely() -> None:
    tokens = [0, 1, 2, 5, 0, 1, 2, 6, 0, 1, 2]
    draft = draft_of(tokens, 3, tree=True)
    assert draft.parents is not None
    assert {draft.tokens[i] for i, parent in enumerate(draft.parents) if parent == ROOT} == {5, 6}
    assert draft_of(tokens, 3).parents is None


def test_a_tree_looks_at_one_of_many_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MANY", 1)
    draft = draft_of([0, 1, 2, 5, 0, 1, 2, 6, 0, 1, 2], 3, tree=True)
    assert draft.parents == (ROOT, 0, 1)


class Stepping(Automaton):
    """Counts the steps of drafts."""

    steps = 0

    def context(self, state: int) -> int:
        Stepping.steps += 1
        return super().context(state)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize("name", ["one token", "a copy", "few tokens"])
def test_n3_a_draft_costs_the_same_at_any_length(
    monkeypatch: pytest.MonkeyPatch, name: str, size: int, tree: bool
) -> None:
    tokens = {
        "one token": [7] * size,
        "a copy": [*range(size // 2)] * 2,
        "few tokens": [at * at * 31 % 97 for at in range(size)],
    }[name]
    monkeypatch.setattr(suffix, "Automaton", Stepping)
    drafter = SuffixDrafter(tree=tree)
    drafter.start(0, tokens)
    Stepping.steps = 0
    drafter.propose([ask(tokens, 15)])
    assert Stepping.steps <= DEPTH * (15 + 1) + 1


def test_e1_nothing_comes_from_another_request() -> None:
    drafter = SuffixDrafter()
    drafter.start(0, [1, 2, 3, 4, 5])
    drafter.start(1, [9, 1, 2])
    both = drafter.propose([ask([1, 2, 3, 4, 5, 2, 3], seq=0), ask([9, 1, 2], seq=1)])
    assert [draft.tokens for draft in both] == [(4, 5, 2), ()]
    drafter.stop(0)
    drafter.start(2, [2, 3])
    assert drafter.propose([ask([2, 3], seq=2)])[0].tokens == ()
    assert drafter.propose([ask([9, 1, 2, 8, 9, 1], seq=1)])[0].tokens == (2, 8, 9)


def test_e1_outputs_come_from_others_where_they_are_pooled_and_prompts_never() -> None:
    drafter = SuffixDrafter(pool=100)
    drafter.start(0, [1, 2, 3])
    drafter.propose([ask([1, 2, 3, 5, 6, 7, 8], seq=0)])
    drafter.stop(0)
    drafter.start(1, [1, 2])
    assert drafter.propose([ask([1, 2], seq=1)])[0].tokens == ()
    assert drafter.propose([ask([1, 2, 5, 6], seq=1)])[0].tokens == (7, 8)
    drafter.stop(1)


def test_what_a_request_wrote_itself_comes_before_the_pool() -> None:
    drafter = SuffixDrafter(pool=100)
    drafter.start(0, [0])
    drafter.propose([ask([0, 5, 6, 7], seq=0)])
    drafter.start(1, [5, 6, 8])
    assert drafter.propose([ask([5, 6, 8, 5, 6], 1, seq=1)])[0].tokens == (8,)


def test_an_output_that_is_taken_up_again_is_pooled_once() -> None:
    drafter = SuffixDrafter(pool=100)
    drafter.start(0, [1])
    drafter.propose([ask([1, 5, 6])])
    drafter.stop(0)
    drafter.start(0, [1, 5, 6])
    drafter.propose([ask([1, 5, 6, 7])])
    assert drafter._pool is not None
    assert sum(drafter._pool.automata[0].count[1:3]) == 2


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), capacity=st.integers(2, 40))
def test_the_pool_holds_the_latest_and_no_more_than_it_may(texts: list[list[int]], capacity: int) -> None:
    pool = Pool(capacity, depth=4)
    everything = [token for text in texts for token in text]
    for seq, text in enumerate(texts):
        pool.extend(seq, text)
        pool.stop(seq)
    kept = [
        {token: automaton.count[each] for token, each in automaton.followers(ROOT_STATE).items()}
        for automaton in reversed(pool.automata)
    ]
    sizes = [sum(counts.values()) for counts in kept]
    assert min(len(everything), capacity // 2) <= sum(sizes) <= capacity
    for counts, size in zip(reversed(kept), reversed(sizes), strict=True):
        everything, latest = everything[: len(everything) - size], everything[len(everything) - size :]
        assert counts == Counter(latest)


def test_a_text_goes_on_in_the_newer_automaton() -> None:
    pool = Pool(6, depth=4)
    pool.extend(0, [1, 2, 3, 4, 5])
    assert [automaton.find([4, 5])[1] for automaton in pool.automata] == [2, 0]
    assert pool.automata[1].find([1, 2, 3])[1] == 3
    pool.extend(0, [6, 7])
    assert len(pool.automata) == 2
    assert pool.automata[1].find([1, 2, 3])[1] == 0
