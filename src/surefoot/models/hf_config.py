"""The configuration of a folder in the layout of the Hugging Face hub: config.json and its companions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surefoot.models.config import FAMILIES, ModelConfig, Rope, traits
from surefoot.models.fields import Fields, read_json, shown
from surefoot.models.hf_tokenizer import hf_eos_ids
from surefoot.models.layout import MAX_LAYERS, check_config
from surefoot.models.rope import MAX_HEAD_DIM, plain_rope, scaled_rope
from surefoot.types import SurefootError

_MODEL_TYPES = {family: family for family in FAMILIES} | {"gemma3_text": "gemma3"}

# What a config.json that leaves a key out means by it, as transformers reads it.
_COMMON: dict[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_QWEN = {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
}
_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": _COMMON | {"intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": _COMMON
    | {"intermediate_size": 14_336, "max_position_embeddings": 131_072, "num_key_value_heads": 8}
    | {"sliding_window": 4096},
    "qwen2": _COMMON | _QWEN,
    "qwen3": _COMMON | _QWEN | {"head_dim": 128},
    "gemma3": _COMMON
    | {"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
    | {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256}
    | {"hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131_072, "sliding_window": 4096}
    | {"rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6}
    | {"tie_word_embeddings": True},
}


def read_config(folder: Path, has_bias: bool) -> ModelConfig:
    """The configuration in `folder`/config.json. has_bias: whether the weights hold biases of q, k and v.

    Raises SurefootError for an unsupported architecture, quantization, rotary scaling or capping, and for
    values out of range.
    """
    where = folder / "config.json"
    outer = raw = read_json(where)
    family = _family(where, raw)
    if family == "gemma3" and isinstance(text := raw.get("text_config"), dict):
        raw = {"tie_word_embeddings": outer.get("tie_word_embeddings", True), **text}
    fields = Fields(where, _DEFAULTS[family] | raw)
    _refuse(fields, family, outer)
    hidden = fields.count("hidden_size", limit=1 << 20)
    heads = fields.count("num_attention_heads", limit=1 << 16)
    head_dim = fields.count("head_dim", default=max(1, hidden // heads), limit=MAX_HEAD_DIM)
    kinds = _layer_kinds(fields, family)
    config = ModelConfig(
        family=family,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size", limit=1 << 24),
        num_layers=len(kinds),
        num_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", default=heads, limit=1 << 16),
        head_dim=head_dim,
        max_length=fields.count("max_position_embeddings"),
        norm_eps=fields.real("rms_norm_eps"),
        attention_bias=has_bias,
        attention_scale=(fields.real("query_pre_attn_scalar") if family == "gemma3" else head_dim) ** -0.5,
        tied_head=fields.get("tie_word_embeddings") is True,
        windows=tuple(_window(fields, kind) for kind in kinds),
        ropes=_ropes(fields, kinds, family, head_dim),
        eos_token_ids=hf_eos_ids(folder),
        **traits(family, hidden),
    )
    check_config(where, config)
    return config


def _family(where: Path, raw: Mapping[str, object]) -> str:
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in _MODEL_TYPES:
        supported = ", ".join(_MODEL_TYPES)
        raise SurefootError(f"{where}: model_type {shown(kind)} is not supported; {supported} are")
    return _MODEL_TYPES[kind]


def _refuse(fields: Fields, family: str, outer: Mapping[str, object]) -> None:
    if (quantization := outer.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise SurefootError(
            f"{fields.where}: weights quantized by {shown(method)} are not supported; "
            "take the unquantized model or a GGUF file"
        )
    key, usual = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3" else ("hidden_act", "silu")
    if fields.get(key) != usual:
        raise fields.fail(key, f"only {usual!r} is supported for {family}")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if fields.get(key):
            raise fields.fail(key, "which is not supported")


def _layer_kinds(fields: Fields, family: str) -> list[str]:
    """ "full_attention" or "sliding_attention" per layer."""
    layers = fields.count("num_hidden_layers", limit=MAX_LAYERS)
    kinds = fields.get("layer_types")
    if family in ("llama", "mistral"):
        sliding = family == "mistral" and fields.get("sliding_window") is not None
        return ["sliding_attention" if sliding else "full_attention"] * layers
    if kinds is None:
        return [_usual_kind(fields, family, layer) for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.fail("layer_types", f"not one per layer of {layers}")
    if unknown := [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]:
        raise SurefootError(f"{fields.where}: layer type {shown(unknown[0])} is not supported")
    return kinds


def _usual_kind(fields: Fields, family: str, layer: int) -> str:
    if family == "gemma3":
        full = (layer + 1) % fields.count("sliding_window_pattern") == 0
    else:
        full = not fields.get("use_sliding_window") or layer < fields.count("max_window_layers", default=28)
    return "full_attention" if full else "sliding_attention"


def _window(fields: Fields, kind: str) -> int | None:
    return fields.count("sliding_window") if kind == "sliding_attention" else None


def _ropes(fields: Fields, kinds: list[str], family: str, head_dim: int) -> tuple[Rope, ...]:
    where = str(fields.where)
    parameters = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    nested = {kind: value for kind, value in parameters.items() if isinstance(value, dict)}
    full = nested.get("full_attention", {}) if nested else parameters
    base = _base(fields, full, "rope_theta")
    rope = scaled_rope(head_dim, base, full, where)
    if family != "gemma3":
        return (rope,) * len(kinds)
    sliding = nested.get("sliding_attention", {})
    local_base = _base(fields, sliding, "rope_local_base_freq")
    local = scaled_rope(head_dim, local_base, sliding, where) if sliding else plain_rope(head_dim, local_base)
    return tuple(local if kind == "sliding_attention" else rope for kind in kinds)


def _base(fields: Fields, parameters: Mapping[str, object], key: str) -> float:
    if "rope_theta" in parameters:
        return Fields(fields.where, parameters, "rope_parameters.").real("rope_theta")
    return fields.real(key)
