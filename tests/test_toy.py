"""The toy model keeps the contract of models.base, and complains when its user doesn't."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.models.base import Cache, Model, Segment
from surefoot.models.toy import ToyModel, probability_table, random_table

VOCAB = 8


def new_model(max_length: int = 64) -> ToyModel:
    model = ToyModel(random_table(VOCAB, order=3, seed=5), VOCAB, max_length)
    model.cache.add(0)
    return model


def row_after(*tokens: int) -> list[float]:
    row: list[float] = np.asarray(random_table(VOCAB, order=3, seed=5)(tokens)).tolist()
    return row


def test_it_is_a_model_to_the_type_checker() -> None:
    model: Model = new_model()
    cache: Cache = model.cache
    assert (model.vocab_size, model.max_length, cache.length(0)) == (VOCAB, 64, 0)


def test_logits_are_those_of_the_prefix_however_it_is_chunked() -> None:
    tokens = [1, 2, 3, 4, 5]
    whole = new_model().forward([Segment(0, tokens, 5)])
    model = new_model()
    chunks = [model.forward([Segment(0, chunk, len(chunk))]) for chunk in ([1, 2], [3], [4, 5])]
    assert np.array_equal(whole, np.concatenate(chunks))
    assert whole.dtype == np.float32
    assert whole[4].tolist() == row_after(1, 2, 3, 4, 5)


def test_a_batch_gives_the_wanted_rows_segment_after_segment() -> None:
    model = new_model()
    model.cache.add(7)
    logits = model.forward([Segment(7, [1, 2, 3], 1), Segment(0, [4], 0)])
    assert logits.tolist() == [row_after(1, 2, 3)]
    logits = model.forward([Segment(0, [5, 6], 2), Segment(7, [2], 1)])
    assert logits.tolist() == [row_after(4, 5), row_after(4, 5, 6), row_after(2, 3, 2)]
    assert (model.cache.length(0), model.cache.length(7)) == (3, 4)


TREE = Segment(0, [3, 4, 5, 6, 7], 5, parents=[-1, -1, 0, 0, 2])


def test_a_tree_row_sees_its_own_path() -> None:
    model = new_model()
    model.forward([Segment(0, [1], 0)])
    paths = [(3,), (4,), (3, 5), (3, 6), (3, 5, 7)]
    assert model.forward([TREE]).tolist() == [row_after(1, *path) for path in paths]
    assert model.cache.length(0) == 6


def test_keeping_a_path_makes_it_the_text() -> None:
    model = new_model()
    model.forward([Segment(0, [1], 0)])
    model.forward([TREE])
    model.cache.keep(0, 1, [0, 2, 4])
    assert model.cache.tokens(0) == (1, 3, 5, 7)
    assert model.forward([Segment(0, [2], 1)]).tolist() == [row_after(5, 7, 2)]


def test_keeping_nothing_and_keeping_part_of_a_chain() -> None:
    model = new_model()
    model.forward([Segment(0, [1, 2], 0)])
    model.forward([Segment(0, [3, 4, 5], 0)])
    model.cache.keep(0, 2, [0, 1])
    assert model.cache.tokens(0) == (1, 2, 3, 4)
    model.cache.keep(0, 1, [])
    assert model.cache.tokens(0) == (1,)


@pytest.mark.parametrize(
    ("base", "rows", "complaint"),
    [
        (1, [0, 2, 1], "ascend"),
        (1, [0, 0], "ascend"),
        (1, [0, 5], "ascend"),
        (1, [1, 2], "row 2 of those to keep doesn't follow"),
        (1, [2], "row 2 of those to keep doesn't follow"),
        (7, [], "holds 6 rows, not the 7 to keep"),
    ],
)
def test_keeping_what_is_no_path_is_refused(base: int, rows: list[int], complaint: str) -> None:
    model = new_model()
    model.forward([Segment(0, [1], 0)])
    model.forward([TREE])
    with pytest.raises(ValueError, match=complaint):
        model.cache.keep(0, base, rows)
    assert model.cache.length(0) == 6


def test_going_on_over_an_unresolved_tree_is_refused() -> None:
    model = new_model()
    model.forward([TREE])
    with pytest.raises(ValueError, match="branches of a tree"):
        model.forward([Segment(0, [1], 1)])
    model.cache.truncate(0, 1)
    assert model.forward([Segment(0, [1], 1)]).tolist() == [row_after(3, 1)]


def test_truncating_and_going_on() -> None:
    model = new_model()
    model.forward([Segment(0, [1, 2, 3, 4], 0)])
    model.cache.truncate(0, 2)
    assert model.forward([Segment(0, [6], 1)]).tolist() == [row_after(1, 2, 6)]
    for length in (4, -1):
        with pytest.raises(ValueError, match="cannot truncate"):
            model.cache.truncate(0, length)


def test_a_fork_shares_until_one_of_the_two_writes() -> None:
    model = new_model()
    model.forward([Segment(0, [1, 2, 3], 0)])
    model.cache.fork(1, 0, 2)
    model.forward([Segment(1, [7], 0)])
    model.cache.truncate(0, 1)
    assert model.cache.tokens(1) == (1, 2, 7)
    with pytest.raises(ValueError, match="sequence 1 exists"):
        model.cache.fork(1, 0, 0)
    with pytest.raises(ValueError, match="cannot share 2"):
        model.cache.fork(2, 0, 2)


UNKNOWN: dict[str, Callable[[Cache], object]] = {
    "length": lambda cache: cache.length(9),
    "truncate": lambda cache: cache.truncate(9, 0),
    "keep": lambda cache: cache.keep(9, 0, []),
    "fork": lambda cache: cache.fork(1, 9, 0),
    "free": lambda cache: cache.free(9),
}


@pytest.mark.parametrize("call", UNKNOWN)
def test_unknown_sequences_are_key_errors(call: str) -> None:
    with pytest.raises(KeyError):
        UNKNOWN[call](new_model().cache)


def test_sequences_come_and_go() -> None:
    model = new_model()
    with pytest.raises(ValueError, match="sequence 0 exists"):
        model.cache.add(0)
    model.cache.free(0)
    model.cache.add(0)
    assert model.cache.length(0) == 0


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ([Segment(3, [1], 1)], "sequence 3 is unknown"),
        ([Segment(0, [1, VOCAB], 1)], r"token 8 is out of range; allowed is \[0, 7\]"),
        ([Segment(0, [-1], 1)], "token -1"),
        ([Segment(0, [1], 0), Segment(0, [2], 0)], "twice"),
        ([Segment(0, [], 0)], "0 rows wanted of the 0"),
        ([Segment(0, [1], 2)], "2 rows wanted of the 1"),
        ([Segment(0, [1, 1], 1, parents=[-1])], "2 tokens has 1 parents"),
        ([Segment(0, [1, 1, 1], 1)], "position 4 is past the model's 4 tokens"),
    ],
)
def test_what_forward_refuses_leaves_the_cache_as_it_was(segments: list[Segment], complaint: str) -> None:
    model = new_model(max_length=4)
    model.cache.add(1)
    model.forward([Segment(0, [1, 2], 0)])
    with pytest.raises(ValueError, match=complaint):
        model.forward([Segment(1, [1], 1), *segments])
    assert (model.cache.length(0), model.cache.length(1)) == (2, 0)


def test_a_wide_tree_may_hold_more_rows_than_positions() -> None:
    model = new_model(max_length=3)
    model.forward([Segment(0, [1, 2], 0)])
    assert len(model.forward([Segment(0, [3, 4, 5], 3, parents=[-1, -1, -1])])) == 3


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), st.data())
def test_any_rollback_then_the_right_tokens_is_no_detour(tokens: list[int], data: st.DataObject) -> None:
    model = new_model()
    done = 0
    while done < len(tokens):
        wrong = data.draw(st.lists(st.integers(0, VOCAB - 1), max_size=3))
        if wrong:
            model.forward([Segment(0, wrong, 0)])
            model.cache.truncate(0, done)
        step = data.draw(st.integers(1, len(tokens) - done))
        logits = model.forward([Segment(0, tokens[done : done + step], 1)])
        done += step
        assert logits[0].tolist() == row_after(*tokens[:done])


def test_random_tables_look_at_the_last_tokens_alone() -> None:
    table = random_table(VOCAB, order=2, seed=1)
    assert np.array_equal(table((1, 2, 3)), table((7, 2, 3)))
    assert not np.array_equal(table((1, 2, 3)), table((1, 3, 3)))
    assert not np.array_equal(table((0, 3)), table((3,)))
    assert not np.array_equal(table((2, 3)), random_table(VOCAB, order=2, seed=2)((2, 3)))
    assert np.array_equal(random_table(VOCAB, order=0)((1,)), random_table(VOCAB, order=0)((2,)))
    assert not np.asarray(random_table(VOCAB, spread=0)((1,))).any()


def test_random_tables_spread_as_told() -> None:
    rows = np.concatenate([random_table(500, seed=s, spread=3.0)((1,)) for s in range(20)])
    assert rows.std() == pytest.approx(3.0, rel=0.05)
    assert rows.mean() == pytest.approx(0.0, abs=0.1)


def test_probability_tables_take_the_longest_context() -> None:
    table = probability_table({(): [0.5, 0.5], (1,): [1.0, 0.0], (0, 1): [0.25, 0.75]})
    for prefix, probs in (((), [0.5, 0.5]), ((0,), [0.5, 0.5]), ((1, 1), [1, 0]), ((0, 0, 1), [0.25, 0.75])):
        assert np.exp(table(prefix)) == pytest.approx(probs)


def test_probability_tables_refuse_what_is_none() -> None:
    with pytest.raises(ValueError, match="not a distribution"):
        probability_table({(): [0.5, 0.4]})
    with pytest.raises(ValueError, match="no context"):
        probability_table({(1,): [0.5, 0.5]})((0,))
