"""The decoder's logits against transformers' own on the same weights, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.models.build import Built, build
from surefoot.models.load import open_checkpoint
from surefoot.text import load_tokenizer
from tests.models_fixture import SMOLLM2, catalogue_path, smollm2_path
from tests.sides import Sides, account, agree, compute, our_logits, their_logits
from tests.tiny import FAMILIES, tiny_checkpoint_folder, tiny_gguf, tiny_model

LIMIT = 1e-3  # the largest difference between two logits
TOKENS = [int(token) for token in np.random.default_rng(3).integers(3, 260, 60)]


def in_fp32(path: Path, folder: Path) -> Built:
    return build(open_checkpoint(path), "fp32", folder)


ROPE_SCALING: dict[str, dict[str, Any]] = {
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers_from_safetensors(family: str, tmp_path: Path) -> None:
    decoder = in_fp32(tiny_checkpoint_folder(family, tmp_path), tmp_path).decoder
    theirs = their_logits(tiny_model(family), TOKENS)
    assert np.abs(theirs).max() > 1  # a model that says nothing would agree with anything
    assert np.abs(our_logits(decoder, TOKENS) - theirs).max() <= LIMIT


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_agree_with_transformers_from_gguf(family: str, tmp_path: Path) -> None:
    decoder = in_fp32(tiny_gguf(family, tmp_path / "tiny.gguf"), tmp_path).decoder
    assert np.abs(our_logits(decoder, TOKENS) - their_logits(tiny_model(family), TOKENS)).max() <= LIMIT


@pytest.mark.parametrize("kind", ROPE_SCALING)
def test_scaled_rotary_embeddings_agree_with_transformers(kind: str, tmp_path: Path) -> None:
    changes = {"rope_parameters": ROPE_SCALING[kind]}
    decoder = in_fp32(tiny_checkpoint_folder("llama", tmp_path, **changes), tmp_path).decoder
    theirs = their_logits(tiny_model("llama", **changes), TOKENS)
    assert np.abs(our_logits(decoder, TOKENS) - theirs).max() <= LIMIT


def test_an_untied_head_and_a_bias_agree_with_transformers(tmp_path: Path) -> None:
    changes = {"tie_word_embeddings": False}
    decoder = in_fp32(tiny_checkpoint_folder("qwen2", tmp_path, **changes), tmp_path).decoder
    theirs = their_logits(tiny_model("qwen2", **changes), TOKENS)
    assert np.abs(our_logits(decoder, TOKENS) - theirs).max() <= LIMIT


TEXT = (
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n\n"
    "The lighthouse keeper counted the ships each evening, and wrote their names in a ledger: "
    "Äpfel, 東京, 12,345.67 and a long      gap."
)


@pytest.mark.models
@pytest.mark.parametrize("name", [SMOLLM2, "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"])
def test_real_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    import transformers

    path = smollm2_path() if name == SMOLLM2 else catalogue_path(name)
    tokens = load_tokenizer(open_checkpoint(path)).encode(TEXT, True)

    def load(folder: Path) -> Sides:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        return compute(in_fp32(path, folder).decoder, model, tokens)

    sides = load(tmp_path)
    if not agree(sides, LIMIT):
        pytest.fail(account(sides, lambda: load(tmp_path / "anew")))
