"""A GGUF file as a checkpoint: configuration from its metadata, tensors dequantized one at a time."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray

from surefoot.models.config import Blocks, ModelConfig, Rope, traits
from surefoot.models.fields import Fields, shown
from surefoot.models.gguf_container import GgufContainer, TensorInfo
from surefoot.models.gguf_tokenizer import gguf_eos_ids
from surefoot.models.layout import (
    MAX_LAYERS,
    check_config,
    check_finite,
    check_tensors,
    expected_shapes,
    fingerprint,
)
from surefoot.models.rope import MAX_HEAD_DIM, divided_rope, plain_rope
from surefoot.types import SurefootError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")  # Mistral files say llama
FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
KINDS = (
    *FLOATS,
    Kind.Q4_0,
    Kind.Q4_1,
    Kind.Q5_0,
    Kind.Q8_0,
    Kind.Q4_K,
    Kind.Q5_K,
    Kind.Q6_K,
)

_CHUNK_ELEMENTS = 1 << 20  # dequantizing makes several float32 copies of a chunk, 4 MB each, per thread
_MAX_THREADS = 8
_FACTORS = "rope_freqs.weight"
_NAMES = {
    "embed": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "attention_post_norm": "post_attention_norm",
    "mlp_post_norm": "post_ffw_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_GEMMA_PATTERN = 6  # every sixth layer sees everything
_GEMMA_LOCAL_BASE = 10_000.0
_GEMMA_27B_LAYERS = 62  # scales its attention by hidden_size / num_heads, which its files don't say


class GgufCheckpoint:
    """An opened GGUF file. Raises SurefootError naming the file and what it lacks or has too much."""

    def __init__(self, path: Path) -> None:
        self._file = GgufContainer(path)
        self._config = _config(self._file)
        shapes = expected_shapes(self._config)
        self._names = tuple(shapes)
        found = {name: info.shape for name, info in self._file.tensors.items()}
        expected = {_file_name(name): shape for name, shape in shapes.items()}
        check_tensors(path, expected, found, self._config.family, extra=(_FACTORS,))
        for name in expected:
            _refuse_kind(path, self._file.tensors[name])

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def fingerprint(self) -> str:
        return fingerprint([self._file.path])

    def names(self) -> tuple[str, ...]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor = _dequantized(self._file, self._file.tensors[_file_name(name)])
        order = self._order(name, len(tensor))
        return tensor if order is None else tensor[order]

    def blocks(self, name: str) -> Blocks | None:
        if name not in self._names:
            raise KeyError(name)
        info = self._file.tensors[_file_name(name)]
        if info.kind in FLOATS:
            return None
        rows, order = self._file.blocks(info), self._order(name, info.shape[0])
        return Blocks(info.kind.name, rows if order is None else rows[order])

    def _order(self, name: str, rows: int) -> NDArray[np.int64] | None:
        """GGUF's llama keeps the two halves of a rotated pair side by side; which of its rows stands where
        in the order of first halves, second halves. None where the order is that already."""
        match = re.fullmatch(r"layers\.\d+\.([qk])\.\w+", name)
        if self._config.family != "llama" or not match:
            return None
        heads = self._config.num_heads if match[1] == "q" else self._config.num_kv_heads
        return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def metadata(self) -> Mapping[str, object]:
        return self._file.metadata


def _file_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("layers."):
        return f"{_NAMES[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    return f"blk.{layer}.{_NAMES[part]}.{suffix}"


def _refuse_kind(path: Path, info: TensorInfo) -> None:
    if info.kind not in KINDS:
        supported = ", ".join(kind.name for kind in KINDS)
        raise SurefootError(
            f"{path}: tensor {info.name!r} has type {info.kind.name}; supported are {supported}"
        )


def _dequantized(file: GgufContainer, info: TensorInfo) -> torch.Tensor:
    blocks = file.blocks(info)
    row_length = info.shape[-1]
    out = np.empty((blocks.shape[0], row_length), np.float32)
    step = max(1, _CHUNK_ELEMENTS // row_length)

    def fill(start: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at below
            out[start : start + step] = dequantize(blocks[start : start + step], info.kind)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as threads:
        list(threads.map(fill, range(0, len(out), step)))
    return check_finite(file.path, info.name, torch.from_numpy(out.reshape(info.shape)))


def _config(file: GgufContainer) -> ModelConfig:
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise SurefootError(
            f"{file.path}: architecture {shown(architecture)} is not supported; {supported} are"
        )
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    meta = Fields(file.path, own, prefix)
    hidden = meta.count("embedding_length", limit=1 << 20)
    heads = meta.count("attention.head_count", limit=1 << 16)
    head_dim = meta.count("attention.key_length", default=max(1, hidden // heads), limit=MAX_HEAD_DIM)
    layers = meta.count("block_count", limit=MAX_LAYERS)
    gemma = architecture == "gemma3"
    windows, ropes = _attention_kinds(file, meta, architecture, layers, head_dim)
    config = ModelConfig(
        family=architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        intermediate_size=meta.count("feed_forward_length", limit=1 << 24),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=meta.count("attention.head_count_kv", default=heads, limit=1 << 16),
        head_dim=head_dim,
        max_length=meta.count("context_length"),
        norm_eps=meta.real("attention.layer_norm_rms_epsilon"),
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_scale=(hidden / heads if gemma and layers == _GEMMA_27B_LAYERS else head_dim) ** -0.5,
        tied_head="output.weight" not in file.tensors,
        windows=windows,
        ropes=ropes,
        eos_token_ids=gguf_eos_ids(file.metadata),
        **traits(architecture, hidden),
    )
    check_config(file.path, config)
    return config


def _vocab_size(file: GgufContainer) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise SurefootError(f"{file.path}: tensor 'token_embd.weight' is missing")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > embedding.shape[0]:
        rows = embedding.shape[0]
        raise SurefootError(f"{file.path}: its tokenizer has {len(tokens)} tokens, its embedding {rows} rows")
    return embedding.shape[0]


def _attention_kinds(
    file: GgufContainer, meta: Fields, architecture: str, layers: int, head_dim: int
) -> tuple[tuple[int | None, ...], tuple[Rope, ...]]:
    """Window and rotary frequencies of every layer."""
    for key, usual in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        if meta.count(key, default=usual) != usual:
            raise meta.fail(key, f"only {usual}, the size of a head, is supported")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "expert_count"):
        value = meta.get(key)
        if value is not None and not (isinstance(value, int | float) and value == 0):
            raise meta.fail(key, "which is not supported")
    rope = _rope(file, meta, architecture, head_dim)
    if architecture != "gemma3":
        # Mistral's is meant; Qwen files may name a window that their models don't use.
        windowed = architecture == "llama" and meta.get("attention.sliding_window") is not None
        return (meta.count("attention.sliding_window") if windowed else None,) * layers, (rope,) * layers
    window = meta.count("attention.sliding_window")
    pattern = meta.count("attention.sliding_window_pattern", default=_GEMMA_PATTERN)
    local = plain_rope(head_dim, meta.real("rope.freq_base_swa", default=_GEMMA_LOCAL_BASE))
    everything = [layer % pattern == pattern - 1 for layer in range(layers)]
    return tuple(None if e else window for e in everything), tuple(rope if e else local for e in everything)


def _rope(file: GgufContainer, meta: Fields, architecture: str, head_dim: int) -> Rope:
    rope = plain_rope(
        head_dim, meta.real("rope.freq_base", 1_000_000.0 if architecture == "gemma3" else 10_000.0)
    )
    kind = meta.get("rope.scaling.type")
    if kind is not None and not (isinstance(kind, str) and kind in ("none", "linear")):
        raise meta.fail("rope.scaling.type", "which is not supported; none and linear are")
    factor = meta.real("rope.scaling.factor", default=meta.real("rope.scale_linear", default=1.0))
    if kind == "linear" or (kind is None and factor != 1.0):
        rope = divided_rope(rope, [factor] * len(rope.frequencies))
    info = file.tensors.get(_FACTORS)
    if info is None:
        return rope
    if info.kind is not Kind.F32 or info.shape != (len(rope.frequencies),):
        found, wanted = f"{info.kind.name} {list(info.shape)}", f"F32 [{len(rope.frequencies)}]"
        raise SurefootError(f"{file.path}: tensor {_FACTORS!r} is {found}, not {wanted}")
    factors = _dequantized(file, info).tolist()
    if not all(0 < f < math.inf for f in factors):
        raise SurefootError(f"{file.path}: tensor {_FACTORS!r} holds a factor that is not above 0")
    return divided_rope(rope, factors)
