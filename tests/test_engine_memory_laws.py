"""The promise when memory is short: who comes beside a request, who gives way, and what is shared, changes
nothing that it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, random_table
from surefoot.types import VERIFY_MODES, VerifyMode
from tests.crowd import DRAFTERS, Guest, alone, crowd, drafter_for, guests, seen
from tests.harness import assert_same, expected

VOCAB = 7
TABLE = random_table(VOCAB, 2, seed=3)


def engine(
    kind: str,
    mode: VerifyMode,
    *,
    kv_memory: int | None = None,
    max_length: int = 4096,
    models: Callable[[ToyModel], object] = id,
    **settings: Any,
) -> Engine:
    """models: is told of the target, and of the draft model where there is one."""

    def made(table_seed: int) -> ToyModel:
        model = ToyModel(random_table(VOCAB, 2, table_seed), VOCAB, max_length)
        models(model)
        return model

    drafter = drafter_for(kind, partial(made, 4), VOCAB)
    bytes_per_token = 2 if kind == "model" else 1
    memory = None if kv_memory is None else kv_memory * bytes_per_token
    return Engine(made(3), drafter, verify=mode, kv_memory=memory, draft_tokens=3, **settings)


@pytest.mark.parametrize("mode", VERIFY_MODES)
@settings(max_examples=120, deadline=None)
@given(
    invited=guests(VOCAB, longest=30),
    kind=st.sampled_from(DRAFTERS),
    kv_memory=st.sampled_from((64, 64, 72, 99, 160)),
    max_rows=st.integers(4, 40),
    prompt_rows=st.sampled_from((1, 5, 40)),
    max_requests=st.sampled_from((1, 3, 8)),
    reuse=st.booleans(),
)
def test_a_crowd_is_given_what_each_would_get_alone(
    mode: VerifyMode,
    invited: list[Guest],
    kind: str,
    kv_memory: int,
    max_rows: int,
    prompt_rows: int,
    max_requests: int,
    reuse: bool,
) -> None:
    models: list[ToyModel] = []
    crowded = engine(
        kind,
        mode,
        kv_memory=kv_memory,
        models=models.append,
        max_rows=max_rows,
        prompt_rows=prompt_rows,
        max_requests=max_requests,
        prefix_cache=reuse,
    )
    longest = kv_memory // 4 * 4
    assert crowded.max_length == longest

    def check() -> None:
        for model in models:
            model.cache.check()
        load = crowded.load
        assert load.pages_total == longest // 4
        assert load.pages_cached <= load.pages_used <= load.pages_total
        assert load.running <= max_requests

    results = crowd(crowded, invited, check)
    for place, result in results.items():
        guest = invited[place]
        if mode == "coupled":
            for choice in result.choices:
                assert_same(
                    choice,
                    expected(TABLE, guest.prompt, guest.params, max_length=longest, choice=choice.index),
                )
        if mode == "coupled" or kind != "model":  # a draft model may be out of room, and its drafts left out
            make = partial(engine, kind, mode, max_length=longest, prefix_cache=False)
            assert seen(result) == seen(alone(make, guest))

    load = crowded.load
    assert (load.running, load.waiting) == (0, 0)
    assert load.pages_used >= load.pages_cached
    assert not reuse or load.pages_used == used_by_retired(crowded, models)
    crowded.close()
    for model in models:
        assert (len(model.cache), model.cache.used_pages()) == (0, 0)


def used_by_retired(crowded: Engine, models: list[ToyModel]) -> int:
    """Pages of sequences that the prefix cache keeps; there are no others."""
    cache = next(model for model in models if model is crowded.model).cache
    kept = crowded._loop._memory._prefixes._retired
    assert set(cache._rows) == set(kept)
    return len({page for seq in kept for page in cache._table.pages(seq)})
