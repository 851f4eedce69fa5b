"""Folders of safetensors as checkpoints: what transformers computes with, and every refusal."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from surefoot.models.config import ModelConfig
from surefoot.models.load import open_checkpoint
from surefoot.types import SurefootError
from tests.tiny import FAMILIES, IM_END, tiny_checkpoint_folder, tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def edit_config(folder: Path, remove: tuple[str, ...] = (), **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in remove}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces, adds or (None) removes tensors; a double underscore stands for a dot."""
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    weights |= {name.replace("__", "."): value for name, value in changes.items()}
    kept = {name: value for name, value in weights.items() if value is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def rope_of(model: Any, layer: int) -> Any:
    """The frequencies that a transformers model turns a layer by."""
    rotary = model.model.rotary_emb
    if hasattr(rotary, "inv_freq"):
        return rotary.inv_freq
    return getattr(rotary, f"{model.config.layer_types[layer]}_inv_freq")


def check_against_transformers(config: ModelConfig, model: Any) -> None:
    """Everything a configuration decides, as the running model has it."""
    theirs = model.config
    assert config.num_layers == len(model.model.layers)
    assert (config.hidden_size, config.vocab_size) == (theirs.hidden_size, theirs.vocab_size)
    assert config.max_length == theirs.max_position_embeddings
    assert config.tied_head == (model.lm_head.weight is model.model.embed_tokens.weight)
    embed_scale = getattr(model.model.embed_tokens, "embed_scale", torch.tensor(1.0))
    assert config.embedding_scale == float(embed_scale)
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        assert config.head_dim == attention.head_dim
        assert config.attention_scale == pytest.approx(attention.scaling)
        assert config.num_heads == attention.q_proj.out_features // config.head_dim
        assert config.num_kv_heads == attention.k_proj.out_features // config.head_dim
        assert config.attention_bias == (attention.q_proj.bias is not None)
        assert config.qk_norm == hasattr(attention, "q_norm")
        assert config.post_norms == hasattr(layer, "post_feedforward_layernorm")
        norm = layer.input_layernorm
        assert config.norm_eps == getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
        window = getattr(attention, "sliding_window", getattr(theirs, "sliding_window", None))
        assert config.windows[number] == window
        expected = rope_of(model, number)
        np.testing.assert_allclose(config.ropes[number].frequencies, expected.numpy(), rtol=2e-6)
    probe = torch.linspace(-3, 3, 50)
    ours = torch.nn.functional.gelu(probe, approximate="tanh") if config.activation == "gelu_tanh" else None
    torch.testing.assert_close(
        torch.nn.functional.silu(probe) if ours is None else ours, model.model.layers[0].mlp.act_fn(probe)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_the_model_transformers_runs(family: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint_folder(family, tmp_path))
    model = tiny_model(family)
    check_against_transformers(checkpoint.config, model)
    assert checkpoint.config.family == family
    assert checkpoint.config.eos_token_ids == (IM_END,)
    layer, last = model.model.layers[1], checkpoint.config.num_layers - 1
    one = 1.0 if family == "gemma3" else 0.0
    same = {
        "embed.weight": model.model.embed_tokens.weight,
        "norm.weight": model.model.norm.weight + one,
        "layers.1.k.weight": layer.self_attn.k_proj.weight,
        "layers.1.down.weight": layer.mlp.down_proj.weight,
        "layers.1.attention_norm.weight": layer.input_layernorm.weight + one,
        f"layers.{last}.up.weight": model.model.layers[last].mlp.up_proj.weight,
    }
    if family == "gemma3":
        same["layers.1.mlp_norm.weight"] = layer.pre_feedforward_layernorm.weight + 1
        same["layers.1.attention_post_norm.weight"] = layer.post_attention_layernorm.weight + 1
        same["layers.1.q_norm.weight"] = layer.self_attn.q_norm.weight + 1
    else:
        same["layers.1.mlp_norm.weight"] = layer.post_attention_layernorm.weight
    if not checkpoint.config.tied_head:
        same["head.weight"] = model.lm_head.weight
    for name, weight in same.items():
        assert torch.equal(checkpoint.tensor(name), weight), name
    with pytest.raises(KeyError):
        checkpoint.tensor("layers.99.q.weight")


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5}
GEMMA_4B = {"full_attention": {**LINEAR, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
MIXED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": LINEAR}),
        ("llama", {"tie_word_embeddings": False, "head_dim": 32}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
        ("qwen2", {"sliding_window": 8, "tie_word_embeddings": True}),
        ("gemma3", {"query_pre_attn_scalar": 20, "layer_types": MIXED, "num_hidden_layers": 4}),
        ("gemma3", {"rope_parameters": GEMMA_4B}),
    ],
)
def test_variants_are_read_as_transformers_reads_them(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint_folder(family, tmp_path, **changes))
    check_against_transformers(checkpoint.config, tiny_model(family, **copy.deepcopy(changes)))


OLD_LINEAR = {"type": "linear", "factor": 4.0}
OLD_GEMMA = {"rope_local_base_freq": 1e4, "rope_scaling": OLD_LINEAR, "sliding_window_pattern": 6}


@pytest.mark.parametrize(
    ("family", "old", "changes"),
    [
        ("llama", {"rope_theta": 500_000.0, "rope_scaling": LLAMA3}, {"rope_parameters": LLAMA3}),
        ("llama", {"rope_theta": 1e5, "rope_scaling": OLD_LINEAR}, {"rope_parameters": LINEAR}),
        ("qwen2", {"rope_theta": 1e6, "rope_scaling": None}, {}),
        ("gemma3", {"rope_theta": 1e6, **OLD_GEMMA}, {"rope_parameters": GEMMA_4B}),
    ],
)
def test_configurations_of_older_transformers_mean_the_same(
    family: str, old: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny_checkpoint_folder(family, tmp_path, **changes)
    new = open_checkpoint(folder).config
    edit_config(folder, ("rope_parameters", "layer_types"), **old)
    assert open_checkpoint(folder).config == new


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_leaves_out_is_the_default(family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder(family, tmp_path)
    edit_config(folder, ("rms_norm_eps", "rope_parameters", "max_position_embeddings", "sliding_window"))
    config = open_checkpoint(folder).config
    import transformers

    theirs = transformers.AutoConfig.from_pretrained(folder)
    assert config.norm_eps == theirs.rms_norm_eps
    assert config.max_length == theirs.max_position_embeddings
    if family in ("mistral", "gemma3"):
        assert set(config.windows) - {None} == {theirs.sliding_window}
    bases = theirs.rope_parameters
    base = bases["full_attention"]["rope_theta"] if family == "gemma3" else bases["rope_theta"]
    full = config.windows.index(None) if family == "gemma3" else 0
    assert config.ropes[full].frequencies[1] == pytest.approx(base ** (-2 / config.head_dim), rel=1e-6)


def test_shards_are_one_model(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("qwen3", tmp_path)
    whole = open_checkpoint(folder)
    tensors = {name: whole.tensor(name) for name in whole.names()}
    (folder / "model.safetensors").unlink()
    tiny_model("qwen3").save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    sharded = open_checkpoint(folder)
    for name, tensor in tensors.items():
        assert torch.equal(sharded.tensor(name), tensor)
    victim = sorted(folder.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(SurefootError, match=f"weight file {victim.name} is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma_with_eyes_is_read_for_its_text(prefix: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("gemma3", tmp_path)
    plain = open_checkpoint(folder)
    tensors = {name: plain.tensor(name) for name in plain.names()}
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", prefix, 1): weight for name, weight in weights.items()}
    renamed["vision_tower.vision_model.head.weight"] = torch.zeros(3)
    renamed["model.multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(3)
    save_file(renamed, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "eos_token_id": [1, 2]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    both = open_checkpoint(folder)
    assert both.config == dataclasses.replace(plain.config, eos_token_ids=(1, 2))
    for name, tensor in tensors.items():
        assert torch.equal(both.tensor(name), tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_as_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("gemma3", tmp_path)
    exact = open_checkpoint(folder)
    q, norm = exact.tensor("layers.0.q.weight"), exact.tensor("norm.weight")
    weights = load_file(folder / "model.safetensors")
    save_file({name: weight.to(dtype) for name, weight in weights.items()}, folder / "model.safetensors")
    rounded = open_checkpoint(folder)
    assert torch.equal(rounded.tensor("layers.0.q.weight"), q.to(dtype).float())
    # one is added after widening, not before: 1.004 has fewer digits in half precision than .004
    assert torch.equal(rounded.tensor("norm.weight"), (norm - 1).to(dtype).float() + 1)


def test_a_head_stored_beside_a_tied_embedding_is_ignored(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    edit_weights(folder, lm_head__weight=torch.zeros(320, 64))
    assert "head.weight" not in open_checkpoint(folder).names()


def test_end_tokens_come_from_every_file_that_names_them(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    added = {"added_tokens_decoder": {"9": {"content": "<end>"}}, "eos_token": {"content": "<end>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(added))
    assert open_checkpoint(folder).config.eos_token_ids == (7, 5, IM_END, 9)


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        (
            "llama",
            {"model_type": "mamba"},
            "'mamba' is not supported; llama, mistral, qwen2, qwen3, gemma3",
        ),
        ("llama", {"model_type": None}, "model_type None is not supported"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantized by 'gptq' are not supported"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn"}},
            "rope scaling 'yarn' is not supported; default",
        ),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "dynamic"}},
            "'dynamic' is not",
        ),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope factor is None, not a number above 0"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not 1"),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, "rope_theta is -1, not a number above 0"),
        ("llama", {"rope_parameters": [1]}, r"rope_parameters is \[1\], not a JSON object"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu', only 'silu' is supported for llama"),
        (
            "gemma3",
            {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping is 50.0, which is not",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("gemma3", {"layer_types": ["full_attention"]}, "not one per layer of 7"),
        (
            "gemma3",
            {"layer_types": ["chunked_attention"] * 7},
            "layer type 'chunked_attention' is not",
        ),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number from 1 to 1024"),
        ("llama", {"num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000, not a whole"),
        ("llama", {"num_hidden_layers": "3"}, "num_hidden_layers is '3', not a whole number"),
        ("llama", {"hidden_size": True}, "hidden_size is True, not a whole number"),
        ("llama", {"num_hidden_layers": 4}, "tensor 'model.layers.3.input_layernorm.weight' is missing"),
        (
            "llama",
            {"num_hidden_layers": 2},
            "tensor 'model.layers.2.* is not part of a llama model",
        ),
        ("llama", {"vocab_size": 319}, r"has shape \[320, 64\]; the configuration says \[319, 64\]"),
        ("llama", {"num_key_value_heads": 3}, "4 attention heads can't share 3 key heads evenly"),
        ("llama", {"tie_word_embeddings": False}, "tensor 'lm_head.weight' is missing"),
        ("llama", {"eos_token_id": 320}, "end-of-sequence id 320 is outside its 320 tokens"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    family: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint_folder(family, tmp_path)
    edit_config(folder, **changes)
    with pytest.raises(SurefootError, match=says) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_weights_that_would_be_left_out_are_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    edit_weights(folder, model__layers__0__self_attn__o_proj__bias=torch.zeros(64))
    with pytest.raises(SurefootError, match=r"o_proj.bias' is not part of a llama model as supported here"):
        open_checkpoint(folder)


def test_an_integer_weight_is_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    edit_weights(folder, model__norm__weight=torch.ones(64, dtype=torch.int8))
    with pytest.raises(SurefootError, match=r"'model.norm.weight' has type I8; only F32, F16, BF16 may be"):
        open_checkpoint(folder)


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = tiny_checkpoint_folder("llama", tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert open_checkpoint(folder).names()  # beside safetensors they are only ignored
    (folder / "model.safetensors").unlink()
    with pytest.raises(SurefootError, match=r"pytorch_model.bin: pickled weights are refused, .* any code"):
        open_checkpoint(folder)
    for name in ("model.pt", "model.pth", "pytorch_model.bin"):
        with pytest.raises(SurefootError, match="convert them to safetensors"):
            open_checkpoint(folder / name)
