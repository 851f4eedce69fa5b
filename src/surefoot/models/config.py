"""The shape of a decoder, whichever file described it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

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
    attention_bias: bool  # q, k and v have a bias
    qk_norm: bool  # RMS norm over each head of q and k (Qwen3, Gemma 3)
    post_norms: bool  # a norm after attention and after the MLP, before the residual sum (Gemma 3)
    embedding_scale: float  # √hidden_size for Gemma, else 1
    attention_scale: float  # usually head_dim^-½
    tied_head: bool
    windows: tuple[int | None, ...]  # per layer: keys seen, the row's own included; None = all
    ropes: tuple[Rope, ...]  # per layer
    eos_token_ids: tuple[int, ...] = ()


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

    def metadata(self) -> Mapping[str, object]:
        """What the file says beside shapes: tokenizer and chat template, in its own terms."""
