"""A row's logits depend on its own tokens alone, to the bit: the first part of the promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.models.base import Model
from surefoot.models.build import build
from surefoot.models.catalog import home
from surefoot.models.linear import TORCH_PRECISIONS, TorchPrecision
from surefoot.models.load import open_checkpoint
from surefoot.models.toy import ToyModel, random_table
from surefoot.types import SurefootError
from tests.invariance import Company, companies, differing_rows, reference
from tests.models_fixture import smollm2_path
from tests.random_checkpoint import RandomCheckpoint, gemma_like, small_config

LENGTH = 1700  # past three key buckets

SHAPES = {
    "llama": small_config(),
    "gemma": gemma_like(),
}


@cache
def random_tokens(vocab_size: int, length: int, seed: int = -1) -> list[int]:
    return [int(token) for token in np.random.default_rng(100 + seed).integers(0, vocab_size, length)]


@cache
def small_model(shape: str, precision: TorchPrecision) -> Model:
    built = build(RandomCheckpoint(SHAPES[shape]), precision, Path(mkdtemp()))
    assert built.inexact is None
    return built.decoder


@cache
def small_reference(shape: str, precision: TorchPrecision, prompt: int) -> list[bytes]:
    return reference(small_model(shape, precision), random_tokens(97, LENGTH, prompt), prompt)


@contextmanager
def usable() -> Iterator[None]:
    """Skips a precision that this machine has no exact product for; the next one is then its default."""
    try:
        yield
    except SurefootError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("precision", TORCH_PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(company=companies(LENGTH, prompts=4), seed=st.integers(0, 2**32))
def test_no_company_changes_a_bit_of_a_row(
    shape: str, precision: TorchPrecision, company: Company, seed: int
) -> None:
    with usable():
        expected = small_reference(shape, precision, company.source)
    tokens = random_tokens(97, LENGTH, company.source)
    assert differing_rows(small_model(shape, precision), tokens, expected, company, seed) == []


@cache
def smollm2(precision: TorchPrecision) -> tuple[Model, list[bytes]]:
    built = build(open_checkpoint(smollm2_path()), precision, home() / "prepared")
    assert built.inexact is None
    return built.decoder, reference(built.decoder, random_tokens(49152, 1600), -1)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@settings(max_examples=6, deadline=None, derandomize=True)
@given(company=companies(1600), seed=st.integers(0, 2**32))
def test_no_company_changes_a_bit_of_smollm2(precision: TorchPrecision, company: Company, seed: int) -> None:
    with usable():
        model, expected = smollm2(precision)
    assert differing_rows(model, random_tokens(49152, 1600), expected, company, seed) == []


@pytest.mark.parametrize("precision", ["bf16", "int8", pytest.param("fp32", marks=pytest.mark.models)])
def test_every_chunking_of_smollm2_gives_the_same_bits(precision: TorchPrecision) -> None:
    """The chunk sizes that break stock kernels, over a context past three key buckets."""
    with usable():
        model, expected = smollm2(precision)
    tokens = random_tokens(49152, 1600)
    for chunk in (1, 15, 16, 17, 33, 48, 64, 512):
        start = 1600 - max(2 * chunk, 20) if chunk < 512 else 0
        company = Company(-1, start, True, 64, (chunk,) * 20, (), 0, 1, ())
        assert differing_rows(model, tokens, expected, company, 0) == [], f"chunks of {chunk}"


@settings(max_examples=40, deadline=None)
@given(company=companies(300, prompts=50), seed=st.integers(0, 2**32))
def test_no_company_changes_a_bit_of_the_toy(company: Company, seed: int) -> None:
    model = ToyModel(random_table(20, order=3, seed=1), 20)
    tokens = random_tokens(20, 300, company.source)
    expected = reference(model, tokens, company.source)
    assert differing_rows(model, tokens, expected, company, seed) == []
