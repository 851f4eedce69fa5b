"""The decoder's pass in PyTorch: what runs everywhere, and what the native core is held against.

Everything between the linear layers is float32, whatever the precision. A pass is a flat list of rows,
padded to row counts that the probe found to agree, so that a row's bits don't depend on its company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from surefoot.models.activation import activate
from surefoot.models.attention import Span, attend, make_span
from surefoot.models.config import ModelConfig, Rope
from surefoot.models.kv import PagedCache
from surefoot.models.linear import Linear, Tiles
from surefoot.models.plan import Plan
from surefoot.models.rope import RotationTable


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer. Norms are [width] float32; those a family lacks are None."""

    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    attention_post_norm: torch.Tensor | None = None
    mlp_post_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """embedding: [vocabulary, hidden], any float dtype, only looked up in; head: [hidden → vocabulary]."""

    embedding: torch.Tensor
    layers: Sequence[Layer]
    norm: torch.Tensor
    head: Linear

    @property
    def num_bytes(self) -> int:
        """Bytes of weight that one pass reads."""
        linears = [x for layer in self.layers for x in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return sum(linear.num_bytes for linear in [*linears, self.head])


class TorchPasses:
    """Implements `models.decoder.Passes` over packed weights.

    tiles: row counts for the layers; head_tiles: for the head. key_dtype: of keys and values.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, tiles: Tiles, head_tiles: Tiles, key_dtype: torch.dtype
    ) -> None:
        self.config, self.weights, self.key_dtype = config, weights, key_dtype
        self.tiles, self.head_tiles = tiles, head_tiles
        self._tables = {rope: RotationTable(rope) for rope in config.ropes}

    @property
    def num_bytes(self) -> int:
        return self.weights.num_bytes

    def new_cache(self) -> PagedCache:
        config = self.config
        return PagedCache(config.num_layers, config.num_kv_heads, config.head_dim, self.key_dtype)

    def run(self, plan: Plan, cache: PagedCache) -> NDArray[np.float32]:
        rows = self._place(plan, cache)
        x = F.embedding(rows.tokens, self.weights.embedding).float()
        if self.config.embedding_scale != 1:
            x.mul_(self.config.embedding_scale)
        for index, layer in enumerate(self.weights.layers):
            x = self._layer(x, index, layer, rows)
        if not plan.wanted:
            return np.zeros((0, self.config.vocab_size), np.float32)
        logits: NDArray[np.float32] = self.head_tiles.apply(self.head, x[plan.wanted]).numpy()
        return logits

    def _place(self, plan: Plan, cache: PagedCache) -> _Rows:
        slots = np.empty(len(plan.tokens), np.int64)
        for chain in plan.chains:
            slots[chain.rows] = chain.slots[chain.positions]
        padding = [0] * (sum(self.tiles.cut(len(plan.tokens))) - len(plan.tokens))
        rotations = {
            rope: _signed(*table.at(plan.positions + padding)) for rope, table in self._tables.items()
        }
        spans = [self._span(chain.rows, chain.positions, chain.slots, cache) for chain in plan.chains]
        return _Rows(torch.tensor(plan.tokens + padding), torch.from_numpy(slots), spans, rotations, cache)

    def _span(
        self, rows: Sequence[int], positions: Sequence[int], slots: NDArray[np.int32], cache: PagedCache
    ) -> Span:
        config, store = self.config, cache.keys
        group = config.num_heads // config.num_kv_heads
        return make_span(
            rows, positions, slots, store.shape[1], group, frozenset(config.windows), store.dtype
        )

    def _layer(self, x: torch.Tensor, index: int, layer: Layer, rows: _Rows) -> torch.Tensor:
        qkv = self.tiles.apply(lambda part: self.project(layer, part), x)
        mixed = self._attention(qkv, index, rows)
        x = x.add_(self.tiles.apply(lambda part: self.output(layer, part), mixed))
        return x.add_(self.tiles.apply(lambda part: self.mlp(layer, part), x))

    # What follows is called with tiles alone. Between tiles stand only sums, products and conversions of
    # single elements, whose bits no shape can change; a norm or an exp is another matter.

    def project(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → queries, keys and values, unrotated, [rows, heads + 2 · kv heads, head_dim]."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv(self._norm(x, layer.attention_norm)).view(len(x), heads + 2 * kv_heads, -1)
        if layer.q_norm is None or layer.k_norm is None:
            return qkv
        q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
        return torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm), v), 1)

    def output(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """What attention found, [rows, heads · head_dim] → [rows, hidden]."""
        y = layer.output(x)
        return y if layer.attention_post_norm is None else self._norm(y, layer.attention_post_norm)

    def mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        """The gated MLP, [rows, hidden] → [rows, hidden]."""
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, 1)
        y = layer.down(activate(self.config.activation, gate).mul_(up))
        return y if layer.mlp_post_norm is None else self._norm(y, layer.mlp_post_norm)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → logits [rows, vocabulary]."""
        return self.weights.head(self._norm(x, self.weights.norm))

    def _attention(self, qkv: torch.Tensor, index: int, rows: _Rows) -> torch.Tensor:
        config = self.config
        qk, v = qkv.split((config.num_heads + config.num_kv_heads, config.num_kv_heads), 1)
        keys, values = rows.cache.keys[index], rows.cache.values[index]
        qk = _rotate(qk, *rows.rotations[config.ropes[index]]).to(keys.dtype)
        used = len(rows.slots)  # the rest is padding
        keys[rows.slots] = qk[:used, config.num_heads :]
        values[rows.slots] = v[:used].to(values.dtype)
        out = qkv.new_zeros(len(qkv), config.num_heads, config.head_dim)
        for span in rows.spans:
            mask, queries = span.masks[config.windows[index]], qk[span.rows, : config.num_heads]
            out[span.rows] = attend(
                queries, keys[span.keys], values[span.keys], mask, config.attention_scale
            ).float()
        return out.view(len(qkv), -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A plan as tensors: tokens with padding, the slots of the rows without, what each reads."""

    tokens: torch.Tensor
    slots: torch.Tensor
    spans: list[Span]
    rotations: Mapping[Rope, tuple[torch.Tensor, torch.Tensor]]
    cache: PagedCache


def _signed(cos: NDArray[np.float32], sin: NDArray[np.float32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of both halves of a head, [rows, 1, head_dim]: cos, and sin with the sign it enters with."""
    c, s = torch.from_numpy(cos), torch.from_numpy(sin)
    return torch.cat((c, c), 1).unsqueeze(1), torch.cat((-s, s), 1).unsqueeze(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split order (RoFormer, arXiv 2104.09864 §3.4)."""
    left, right = x.chunk(2, -1)
    return (x * cos).add_(torch.cat((right, left), -1).mul_(sin))
