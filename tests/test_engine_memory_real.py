"""The promise when memory is short, on decoders with real keys and values: to the bit."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine import Engine
from surefoot.models.build import build
from surefoot.models.decoder import Decoder
from surefoot.models.kv import PAGE
from surefoot.types import VerifyMode
from tests.crowd import DRAFTERS, Guest, alone, crowd, drafter_for, guests, seen
from tests.native import COMPILER, libraries
from tests.random_checkpoint import RandomCheckpoint, gemma_like, small_config

VOCAB = 97
COMPUTED_BY = "native" if COMPILER else "pytorch"


@cache
def decoder(computed_by: str, family: str, seed: int) -> Decoder:
    config = small_config() if family == "llama" else gemma_like()
    checkpoint = RandomCheckpoint(config, seed=seed)
    if computed_by == "pytorch":
        return build(checkpoint, "fp32", Path(mkdtemp())).decoder
    return build(checkpoint, "int8", Path(mkdtemp()), libraries()[0]).decoder


def engine(
    models: tuple[Decoder, Decoder], kind: str, mode: VerifyMode, pages: int, *, reuse: bool, rows: int = 64
) -> Engine:
    target, draft = models
    drafter = drafter_for(kind, lambda: draft, VOCAB)
    row_bytes = target.cache.row_bytes + (draft.cache.row_bytes if kind == "model" else 0)
    return Engine(
        target,
        drafter,
        verify=mode,
        draft_tokens=3,
        kv_memory=pages * PAGE * row_bytes,
        prefix_cache=reuse,
        max_rows=rows,
        prompt_rows=max(1, rows // 3),
    )


@pytest.mark.parametrize(("computed_by", "family"), [(COMPUTED_BY, "llama"), (COMPUTED_BY, "gemma")])
@settings(max_examples=25, deadline=None)
@given(
    invited=guests(VOCAB, longest=50, most=90),
    kind=st.sampled_from(DRAFTERS),
    mode=st.sampled_from(("coupled", "rejection")),
    pages=st.integers(3, 6),
    rows=st.sampled_from((7, 40, 200)),
)
def test_a_crowd_is_given_what_each_would_get_alone(
    computed_by: str,
    family: str,
    invited: list[Guest],
    kind: str,
    mode: VerifyMode,
    pages: int,
    rows: int,
) -> None:
    models = decoder(computed_by, family, 0), decoder(computed_by, family, 1)
    if kind == "model":
        mode = "coupled"  # elsewhere drafts that have no room make another path, of the same distribution

    def check() -> None:
        for model in models:
            model.cache.check()

    with engine(models, kind, mode, pages, reuse=True, rows=rows) as crowded:
        results = crowd(crowded, invited, check)
        assert crowded.load.pages_used <= pages
    for model in models:
        assert model.cache.used_pages() == 0
    for place, result in results.items():
        make = partial(engine, models, kind, mode, pages, reuse=False)
        assert seen(result) == seen(alone(make, invited[place]))
