"""On the native core a row's logits are its own to the bit: in any company, on any instruction set, and with
any number of threads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.models.base import Segment
from surefoot.models.build import build
from surefoot.models.catalog import home
from surefoot.models.decoder import Decoder
from surefoot.models.load import open_checkpoint
from surefoot.models.native_pass import NativePasses
from surefoot.models.packed import NativePrecision, pack
from surefoot.native.library import Library
from tests.invariance import Company, companies, differing_rows, reference
from tests.models_fixture import smollm2_path
from tests.native import COMPILER, libraries
from tests.random_checkpoint import RandomCheckpoint, gemma_like, small_config

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

LENGTH = 1100  # past two stripes of keys
PROMPTS = 3

CHECKPOINTS = {
    "llama": RandomCheckpoint(small_config()),
    "gemma": RandomCheckpoint(gemma_like()),
    "blocks": RandomCheckpoint(
        small_config(hidden_size=256, intermediate_size=512),
        kinds={
            "embed": "Q8_0",
            "q": "Q4_K",
            "k": "Q5_0",
            "v": "Q6_K",
            "o": "Q4_1",
            "gate": "Q5_K",
            "up": "Q4_0",
            "down": "Q6_K",
        },
    ),
}
PRECISIONS: dict[str, NativePrecision] = {"llama": "int8", "gemma": "int8", "blocks": "file"}


@cache
def tokens_of(prompt: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(100 + prompt).integers(0, 97, LENGTH)]


@cache
def model(shape: str, library: Library, threads: int) -> Decoder:
    checkpoint = CHECKPOINTS[shape]
    packed = pack(checkpoint, PRECISIONS[shape], library, Path(mkdtemp()), threads)
    return Decoder(checkpoint.config, NativePasses(checkpoint.config, packed, library, threads))


@cache
def expected(shape: str, library: Library, prompt: int) -> list[bytes]:
    return reference(model(shape, library, 2), tokens_of(prompt), prompt)


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
@pytest.mark.parametrize("shape", CHECKPOINTS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(company=companies(LENGTH, prompts=PROMPTS), seed=st.integers(0, 2**32))
def test_no_company_changes_a_bit_of_a_row(shape: str, library: Library, company: Company, seed: int) -> None:
    rows = expected(shape, library, company.source)
    assert differing_rows(model(shape, library, 2), tokens_of(company.source), rows, company, seed) == []


@pytest.mark.parametrize("library", libraries()[1:], ids=lambda library: library.isa.name)
@pytest.mark.parametrize("shape", CHECKPOINTS)
def test_every_instruction_set_gives_the_same_bits(shape: str, library: Library) -> None:
    assert expected(shape, library, -1) == expected(shape, libraries()[0], -1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", CHECKPOINTS)
def test_any_number_of_threads_gives_the_same_bits(shape: str, threads: int) -> None:
    library = libraries()[0]
    decoder = model(shape, library, threads)
    rows = reference(decoder, tokens_of(-1), 0)
    decoder.cache.free(0)
    assert rows == expected(shape, library, -1)


@cache
def smollm2(precision: NativePrecision) -> tuple[Decoder, list[bytes]]:
    built = build(open_checkpoint(smollm2_path()), precision, home() / "prepared", libraries()[0])
    tokens = [int(token) for token in np.random.default_rng(99).integers(0, 49152, 700)]
    return built.decoder, reference(built.decoder, tokens, -1)


@pytest.mark.parametrize("precision", ["file", "int8"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(company=companies(700), seed=st.integers(0, 2**32))
def test_no_company_changes_a_bit_of_smollm2(precision: NativePrecision, company: Company, seed: int) -> None:
    decoder, rows = smollm2(precision)
    tokens = [int(token) for token in np.random.default_rng(99).integers(0, 49152, 700)]
    assert differing_rows(decoder, tokens, rows, company, seed) == []


def test_a_pass_that_is_refused_leaves_the_cache_as_it_was() -> None:
    decoder = model("llama", libraries()[0], 2)
    decoder.cache.add(7)
    decoder.forward([Segment(7, tokens_of(-1)[:40], 0)])
    with pytest.raises(ValueError, match="token 97 is not in the vocabulary of 97"):
        decoder.forward([Segment(7, [1, 97], 2)])
    assert decoder.cache.length(7) == 40
    decoder.cache.free(7)
