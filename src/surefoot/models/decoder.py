"""One decoder for the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM and Gemma 3.

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
from surefoot.models.base import Segment
from surefoot.models.config import ModelConfig
from surefoot.models.kv import PagedCache
from surefoot.models.linear import Linear, Tiles
from surefoot.tree import depths, paths


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


class Decoder:
    """Implements `models.base.Model` over packed weights.

    tiles: row counts for the layers; head_tiles: for the head. key_dtype: of keys and values.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, tiles: Tiles, head_tiles: Tiles, key_dtype: torch.dtype
    ) -> None:
        self.config, self.weights = config, weights
        self.cache = PagedCache(config.num_layers, config.num_kv_heads, config.head_dim, key_dtype)
        self.tiles, self.head_tiles = tiles, head_tiles
        self._frequencies = _distinct_frequencies(config)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        return self.config.max_length

    @torch.inference_mode()
    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self._check(batch)
        before = {segment.seq: self.cache.length(segment.seq) for segment in batch}
        try:
            return self._pass(batch)
        except BaseException:
            for seq, length in before.items():
                self.cache.truncate(seq, min(length, self.cache.length(seq)))
            raise

    def _check(self, batch: Sequence[Segment]) -> None:
        if len({segment.seq for segment in batch}) < len(batch):
            raise ValueError("a sequence stands in the pass twice")
        for segment in batch:
            try:
                length = self.cache.length(segment.seq)
            except KeyError:
                raise ValueError(f"sequence {segment.seq} is unknown") from None
            reach = max(_depths(segment), default=-1) + 1
            if length + reach > self.max_length:
                raise ValueError(f"sequence {segment.seq}: {length} + {reach} rows exceed {self.max_length}")
            wrong = [token for token in segment.tokens if not 0 <= token < self.vocab_size]
            if wrong:
                raise ValueError(f"token {wrong[0]} is not in the vocabulary of {self.vocab_size}")

    def _pass(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        plan = self._plan(batch)
        x = F.embedding(plan.tokens, self.weights.embedding).float()
        if self.config.embedding_scale != 1:
            x.mul_(self.config.embedding_scale)
        for index, layer in enumerate(self.weights.layers):
            x = self._layer(x, index, layer, plan)
        if not plan.wanted:
            return np.zeros((0, self.vocab_size), np.float32)
        logits: NDArray[np.float32] = self.head_tiles.apply(self.head, x[plan.wanted]).numpy()
        return logits

    def _plan(self, batch: Sequence[Segment]) -> _Plan:
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        spans: list[tuple[list[int], list[int], list[int]]] = []
        slots: list[int] = []
        for segment in batch:
            start, first = self.cache.length(segment.seq), len(tokens)
            self.cache.append(segment.seq, len(segment.tokens))
            own = self.cache.slots(segment.seq)
            tokens += segment.tokens
            slots += own[start:]
            positions += [start + d for d in _depths(segment)]
            wanted += range(len(tokens) - segment.num_wanted, len(tokens))
            for path, new in _paths(segment):
                keys = own[:start] + [own[start + row] for row in path]
                spans.append(([first + row for row in new], [positions[first + row] for row in new], keys))
        padding = sum(self.tiles.cut(len(tokens))) - len(tokens)
        rotations = {
            frequencies: _rotation(positions + [0] * padding, frequencies)
            for frequencies in self._frequencies
        }
        return _Plan(
            torch.tensor(tokens + [0] * padding),
            torch.tensor(slots),
            [self._span(*span) for span in spans],
            wanted,
            rotations,
        )

    def _span(self, rows: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Span:
        config, store = self.config, self.cache.keys
        group = config.num_heads // config.num_kv_heads
        return make_span(
            rows, positions, slots, store.shape[1], group, frozenset(config.windows), store.dtype
        )

    def _layer(self, x: torch.Tensor, index: int, layer: Layer, plan: _Plan) -> torch.Tensor:
        qkv = self.tiles.apply(lambda rows: self.project(layer, rows), x)
        mixed = self._attention(qkv, index, plan)
        x = x.add_(self.tiles.apply(lambda rows: self.output(layer, rows), mixed))
        return x.add_(self.tiles.apply(lambda rows: self.mlp(layer, rows), x))

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

    def _attention(self, qkv: torch.Tensor, index: int, plan: _Plan) -> torch.Tensor:
        config = self.config
        qk, v = qkv.split((config.num_heads + config.num_kv_heads, config.num_kv_heads), 1)
        keys, values = self.cache.keys[index], self.cache.values[index]
        qk = _rotate(qk, *plan.rotations[config.ropes[index].frequencies]).to(keys.dtype)
        used = len(plan.slots)  # the rest is padding
        keys[plan.slots] = qk[:used, config.num_heads :]
        values[plan.slots] = v[:used].to(values.dtype)
        out = qkv.new_zeros(len(qkv), config.num_heads, config.head_dim)
        for span in plan.spans:
            mask, queries = span.masks[config.windows[index]], qk[span.rows, : config.num_heads]
            out[span.rows] = attend(
                queries, keys[span.keys], values[span.keys], mask, config.attention_scale
            ).float()
        return out.view(len(qkv), -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A pass, laid out: tokens with padding, the slots of the rows without, what each reads."""

    tokens: torch.Tensor
    slots: torch.Tensor
    spans: list[Span]
    wanted: list[int]
    rotations: Mapping[tuple[float, ...], tuple[torch.Tensor, torch.Tensor]]


def _depths(segment: Segment) -> Sequence[int]:
    """How far past the cache each row's position lies, from 0."""
    if segment.parents is None:
        return range(len(segment.tokens))
    return [depth - 1 for depth in depths(segment.parents)]


def _paths(segment: Segment) -> list[tuple[Sequence[int], Sequence[int]]]:
    """(path, rows first met on it) for every root-to-leaf path: siblings between a path's keys would
    change the order of summation, so each path reads its keys alone."""
    if segment.parents is None:
        return [(range(len(segment.tokens)), range(len(segment.tokens)))]
    met: set[int] = set()
    found: list[tuple[Sequence[int], Sequence[int]]] = []
    for path in paths(segment.parents):
        new = [row for row in path if row not in met]
        met.update(new)
        found.append((path, new))
    return found


def _distinct_frequencies(config: ModelConfig) -> tuple[tuple[float, ...], ...]:
    return tuple({rope.frequencies: None for rope in config.ropes})


def _rotation(positions: Sequence[int], frequencies: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin, [rows, 1, head_dim] float32, from float64 angles."""
    angles = torch.tensor(positions, dtype=torch.float64).outer(
        torch.tensor(frequencies, dtype=torch.float64)
    )
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), 1).unsqueeze(1), torch.cat((-sin, sin), 1).unsqueeze(1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split order (RoFormer, arXiv 2104.09864 §3.4)."""
    left, right = x.chunk(2, -1)
    return (x * cos).add_(torch.cat((right, left), -1).mul_(sin))
