"""What the native core says of a model, against PyTorch in float32 on the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.models.build import Precision, build
from surefoot.models.catalog import home
from surefoot.models.config import Checkpoint
from surefoot.models.load import open_checkpoint
from surefoot.native.library import Library
from surefoot.native.model import BLOCKS
from surefoot.text import load_tokenizer
from tests.models_fixture import smollm2_path
from tests.native import COMPILER, libraries
from tests.random_checkpoint import RandomCheckpoint, small_config

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

FILE_LIMIT = 6e-3  # the largest difference of a logit, as a share of the largest (activations have 12 bits)
MATRICES = ("embed", "q", "k", "v", "o", "gate", "up", "down")
RANDOM_TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, 97, 70)]


def logits(
    checkpoint: Checkpoint, precision: Precision, tokens: Sequence[int], folder: Path, library: Library | None
) -> NDArray[np.float32]:
    decoder = build(checkpoint, precision, folder, library).decoder
    decoder.cache.add(1)
    return decoder.forward([Segment(1, tokens, len(tokens))])


def log_probs(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = torch.from_numpy(rows).double().log_softmax(1).numpy()
    return found


def divergence(exact: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """KL(exact ‖ found) in nats, the mean over the rows."""
    p, q = log_probs(exact), log_probs(found)
    return float((np.exp(p) * (p - q)).sum(1).mean())


def agreement(exact: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """How often the most likely token is the same."""
    return float((exact.argmax(1) == found.argmax(1)).mean())


def random_model(kind: str) -> RandomCheckpoint:
    """All its matrices in one kind of blocks."""
    config = small_config(hidden_size=256, intermediate_size=512, num_heads=8)
    return RandomCheckpoint(config, kinds=dict.fromkeys(MATRICES, kind))


@pytest.mark.parametrize("kind", [form.name for form in BLOCKS])
def test_a_files_own_blocks_are_computed_as_they_are_meant(kind: str, tmp_path: Path) -> None:
    exact = logits(random_model(kind), "fp32", RANDOM_TOKENS, tmp_path, None)
    found = logits(random_model(kind), "file", RANDOM_TOKENS, tmp_path, libraries()[0])
    assert exact.std() > 0.1  # a model that says nothing would agree with anything
    assert np.abs(found - exact).max() <= FILE_LIMIT * np.abs(exact).max()


@pytest.mark.parametrize("tied", [True, False])
def test_eight_bits_stay_close(tied: bool, tmp_path: Path) -> None:
    model = RandomCheckpoint(small_config(hidden_size=256, tied_head=tied))
    exact = logits(model, "fp32", RANDOM_TOKENS, tmp_path, None)
    found = logits(model, "int8", RANDOM_TOKENS, tmp_path, libraries()[0])
    assert 0 < divergence(exact, found) < 0.002


@cache
def text() -> list[int]:
    tokenizer = load_tokenizer(open_checkpoint(smollm2_path()))
    return list(tokenizer.encode(topics["execmodel"], add_special=True)[:200])


@cache
def smollm2(precision: Precision, count: int, library: Library | None) -> NDArray[np.float32]:
    checkpoint = open_checkpoint(smollm2_path())
    return logits(checkpoint, precision, text()[:count], home() / "prepared", library)


@pytest.mark.parametrize(("precision", "limit"), [("file", 1e-4), ("int8", 0.005)])
def test_smollm2_says_what_it_says_in_float32(precision: Precision, limit: float) -> None:
    exact, found = smollm2("fp32", 200, None), smollm2(precision, 200, libraries()[0])
    assert divergence(exact, found) < limit
    assert agreement(exact, found) >= 0.95


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_smollm2_says_it_on_every_instruction_set(library: Library) -> None:
    exact, found = smollm2("fp32", 200, None)[:8], smollm2("file", 8, library)
    assert divergence(exact, found) < 1e-4
    assert np.array_equal(found, smollm2("file", 200, libraries()[0])[:8])
