"""The shape of a decoder, whichever file described it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.activation import Activation

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")  # SmolLM and SmolLM2 are llama


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of a layer: angle of pair i at position t is t · frequencies[i].

    frequencies: [head_dim / 2], radians per position, any scaling (linear, llama3) already inside.
    """

    frequencies: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes and traits of a decoder.

    family: one of FAMILIES. vocab_size: rows of the embedding, padding included. hidden_size: of the
    residual stream. intermediate_size: of the MLP. num_heads: query heads, a multiple of num_kv_heads, which
    are those of keys and values; all are head_dim wide. max_length: tokens, prompt and output together.
    norm_eps: added to the mean square in every RMS norm. activation: of the MLP's gate. attention_bias: q, k
    and v have a bias. qk_norm: an RMS norm over each head of q and k (Qwen3, Gemma 3). post_norms: a norm
    after attention and after the MLP, before the residual sum (Gemma 3). embedding_scale: factor of the
    embedded tokens. attention_scale: factor of the scores, usually head_dim^-½. tied_head: the output layer
    is the embedding. windows: per layer, how many keys a row sees, its own included; None = all. ropes: per
    layer. eos_token_ids: tokens that end a text.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    norm_eps: float
    activation: Activation
    attention_bias: bool
    qk_norm: bool
    post_norms: bool
    embedding_scale: float
    attention_scale: float
    tied_head: bool
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Weights in GGUF's quantized blocks. kind: as GGUF names it, "Q4_K". rows: uint8 [outputs, bytes of a
    row], the rows in the order of `Checkpoint.tensor`."""

    kind: str
    rows: NDArray[np.uint8]


class Traits(TypedDict):
    """What the family alone decides of a `ModelConfig`, whatever its file says."""

    activation: Activation
    qk_norm: bool
    post_norms: bool
    embedding_scale: float


def traits(family: str, hidden_size: int) -> Traits:
    """The traits of a family. Gemma's scale of embeddings, √hidden_size, is rounded to float32."""
    gemma = family == "gemma3"
    return Traits(
        activation="gelu_tanh" if gemma else "silu",
        qk_norm=family in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=float(np.float32(math.sqrt(hidden_size))) if gemma else 1.0,
    )


class Checkpoint(Protocol):
    """A model file, opened: its configuration and its tensors, one at a time.

    Tensors go by one set of names, whatever the file calls them, and stand as the decoder wants them:
    half-split rotary order (GGUF's llama permutation undone), Gemma's norms with the one added.

        embed.weight [V, H]   norm.weight [H]   head.weight [V, H] (absent when tied)
        layers.N.attention_norm.weight [H]      layers.N.mlp_norm.weight [H]
        layers.N.{q,k,v}.weight [heads·head_dim, H]   layers.N.{q,k,v}.bias   layers.N.o.weight
        layers.N.{q,k}_norm.weight [head_dim]   layers.N.{attention,mlp}_post_norm.weight [H]
        layers.N.{gate,up}.weight [I, H]        layers.N.down.weight [H, I]
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def fingerprint(self) -> str:
        """Changes when the file does; names what is derived from it in the disk cache."""

    def names(self) -> tuple[str, ...]:
        """The names above that this file has."""

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, float32. Raises SurefootError when the file is damaged, KeyError for a wrong name."""

    def blocks(self, name: str) -> Blocks | None:
        """A tensor's quantized blocks as the file has them; None where its numbers are floats. Raises as
        `tensor` does."""

    def metadata(self) -> Mapping[str, object]:
        """What the file says beside shapes: tokenizer and chat template, in its own terms."""
