"""The suffix automaton against looking everywhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.drafters.automaton import NONE, ROOT, Automaton

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)
DEPTHS = st.sampled_from((1, 2, 3, 5, 24))


class Counting(Automaton):
    """Counts how often it looks for a follower: every loop does once a step."""

    looks = 0

    def after(self, state: int, token: int) -> int:
        self.looks += 1
        return super().after(state, token)


def written(automaton: Automaton, *texts: list[int]) -> list[int]:
    """The states of texts that are written in turns, a token each."""
    states = [ROOT] * len(texts)
    for place in range(max(map(len, texts))):
        for number, text in enumerate(texts):
            if place < len(text):
                states[number] = automaton.extend(states[number], text[place])
    return states


def state_of(automaton: Automaton, text: tuple[int, ...]) -> int:
    state = ROOT
    for token in text:
        state = automaton.after(state, token)
        assert state != NONE
    return state


def parts(text: list[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(text[at : at + size]) for at in range(len(text) - size + 1)]


@given(text=TEXTS, depth=DEPTHS)
def test_every_text_is_counted_with_what_followed_it(text: list[int], depth: int) -> None:
    automaton = Automaton(depth)
    written(automaton, text)
    for size in range(1, depth + 2):
        counts = Counter(parts(text, size))
        longer = parts(text, size + 1)
        for part, count in counts.items():
            state = state_of(automaton, part)
            assert automaton.count[state] == count
            assert automaton.length[automaton.link[state]] < size <= automaton.length[state]
            if size > depth:
                continue
            followed = Counter(one[-1] for one in longer if one[:-1] == part)
            found = automaton.followers(state)
            assert {token: automaton.count[each] for token, each in found.items()} == followed
            if followed:
                latest = {one[-1]: at for at, one in enumerate(longer) if one[:-1] == part}
                likeliest = max(followed, key=lambda token: (followed[token], latest[token]))
                assert automaton.token[state] == likeliest
                assert automaton.follower[state] == found[likeliest]


@given(texts=st.lists(TEXTS, min_size=2, max_size=4), depth=DEPTHS)
def test_texts_that_are_written_in_turns_are_counted_together(texts: list[list[int]], depth: int) -> None:
    automaton = Automaton(depth)
    states = written(automaton, *texts)
    for size in range(1, depth + 2):
        for part, count in Counter(part for text in texts for part in parts(text, size)).items():
            assert automaton.count[state_of(automaton, part)] == count
    for state, text in zip(states, texts, strict=True):
        assert state == state_of(automaton, tuple(text[-depth - 1 :]))


@given(text=TEXTS, asked=TEXTS, depth=DEPTHS)
def test_the_longest_ending_that_occurred_is_found(text: list[int], asked: list[int], depth: int) -> None:
    automaton = Automaton(depth)
    written(automaton, text)
    length = max(
        size
        for size in range(min(depth, len(asked)) + 1)
        if size == 0 or tuple(asked[-size:]) in parts(text, size)
    )
    assert automaton.find(asked) == (state_of(automaton, tuple(asked[len(asked) - length :])), length)


@given(text=TEXTS, depth=DEPTHS)
def test_a_token_takes_two_states_and_three_followers_at_most(text: list[int], depth: int) -> None:
    automaton = Automaton(depth)
    written(automaton, text)
    assert len(automaton) <= 2 * len(text) + 1
    assert sum(len(automaton.followers(state)) for state in range(len(automaton))) <= 3 * len(text)


@pytest.mark.parametrize(
    "text",
    [
        [7] * 100_000,
        list(range(1000, 1030)) * 3400,
        list(range(50_000)) * 2,
        [at * at * 31 % 97 for at in range(100_000)],
    ],
    ids=["one token", "a period", "a copy", "few tokens"],
)
def test_n3_a_token_costs_the_same_at_any_length(text: list[int]) -> None:
    depth = 24
    automaton, state = Counting(depth), ROOT
    for token in text:
        before = automaton.looks
        state = automaton.extend(state, token)
        assert automaton.looks - before <= 4 * (depth + 2)
    assert len(automaton) <= 2 * len(text) + 1
