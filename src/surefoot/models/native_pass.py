"""The decoder's pass in the native core, one call for all of it (docs/kernels.md).

Every row's bits are its own by construction, whatever shares the pass, for any number of threads and on any
instruction set, so nothing is padded and nothing probed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.config import ModelConfig
from surefoot.models.kv import PagedCache
from surefoot.models.packed import Packed
from surefoot.models.plan import Plan
from surefoot.models.rope import RotationTable
from surefoot.native.library import Library
from surefoot.native.model import Activation, Format, Layer, Linear, Matrix, Model
from surefoot.native.passes import Pass, key_stride


class Embedding(Protocol):
    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[tokens, hidden], an array of its own."""


class BFloat16Embedding:
    def __init__(self, table: NDArray[np.uint16]) -> None:
        self._table = table

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return (self._table[tokens].astype(np.uint32) << 16).view(np.float32)


class PackedEmbedding:
    def __init__(self, library: Library, matrix: Matrix) -> None:
        self._library, self._matrix = library, matrix

    def rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return self._library.unpack(self._matrix, tokens)


class NativePasses:
    """Implements `models.decoder.Passes` over packed weights."""

    def __init__(self, config: ModelConfig, packed: Packed, library: Library, threads: int) -> None:
        self.config, self.library = config, library
        assembly = _Assembly(config, packed, library)
        self._tables = [RotationTable(rope) for rope in assembly.ropes]  # a layer names one by its place
        self._model, self._embedding = assembly.model(), assembly.embedding()
        self._pool = library.pool(threads)

    @property
    def num_bytes(self) -> int:
        return sum(matrix.data.nbytes for matrix in self._model.matrices())

    def new_cache(self) -> PagedCache:
        config = self.config
        return PagedCache(config.num_layers, config.num_kv_heads, key_stride(config.head_dim), torch.float16)

    def run(self, plan: Plan, cache: PagedCache) -> NDArray[np.float32]:
        x = self._embedding.rows(plan.tokens)
        if self.config.embedding_scale != 1:
            x *= np.float32(self.config.embedding_scale)
        rotations = [table.at(plan.positions) for table in self._tables]
        slots, first_key, num_keys = _keys(plan)
        logits = np.empty((len(plan.wanted), self.config.vocab_size), np.float32)
        rows = Pass(
            x=x,
            cos=np.stack([cos for cos, _ in rotations]),
            sin=np.stack([sin for _, sin in rotations]),
            slots=slots,
            first_key=first_key,
            num_keys=num_keys,
            keys=cache.keys.numpy(),
            values=cache.values.numpy(),
            wanted_rows=np.array(plan.wanted, np.int32),
            logits=logits,
        )
        self.library.forward(self._pool, self._model, rows)
        return logits


def _keys(plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """The chains' slots, one behind the other; where each row's begin, and how many it reads."""
    first_key = np.empty(len(plan.tokens), np.int64)
    start = 0
    for chain in plan.chains:
        first_key[chain.rows] = start
        start += len(chain.slots)
    slots = np.concatenate([chain.slots for chain in plan.chains])
    return slots, first_key, np.array(plan.positions, np.int32) + 1


class _Assembly:
    """The native model and its embedding, out of packed arrays."""

    def __init__(self, config: ModelConfig, packed: Packed, library: Library) -> None:
        self.config, self.packed, self.library = config, packed, library
        named = (name.rpartition(".") for name in packed)
        self._formats = {name: Format[last] for name, _, last in named if last in Format.__members__}
        self.ropes = tuple(dict.fromkeys(config.ropes))

    def model(self) -> Model:
        config = self.config
        return Model(
            layers=[self._layer(index) for index in range(config.num_layers)],
            norm=self._floats("norm.weight"),
            head=Linear([self._matrix("head", config.vocab_size, config.hidden_size)]),
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            activation=Activation[config.activation.upper()],
            norm_eps=config.norm_eps,
            attention_scale=config.attention_scale,
        )

    def embedding(self) -> Embedding:
        if "embed.bf16" in self.packed:
            return BFloat16Embedding(self.packed["embed.bf16"].view(np.uint16))
        name = "embed" if "embed" in self._formats else "head"  # one matrix is both in a tied model
        matrix = self._matrix(name, self.config.vocab_size, self.config.hidden_size)
        return PackedEmbedding(self.library, matrix)

    def _layer(self, index: int) -> Layer:
        config, at = self.config, f"layers.{index}"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim

        def norm(name: str) -> NDArray[np.float32] | None:
            name = f"{at}.{name}.weight"
            return self._floats(name) if name in self.packed else None

        return Layer(
            attention_norm=self._floats(f"{at}.attention_norm.weight"),
            mlp_norm=self._floats(f"{at}.mlp_norm.weight"),
            qkv=self._linear(at, {"q": queries, "k": keys, "v": keys}, hidden),
            output=self._linear(at, {"o": hidden}, queries),
            gate_up=self._linear(at, {"gate": inner, "up": inner}, hidden),
            down=self._linear(at, {"down": hidden}, inner),
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            attention_post_norm=norm("attention_post_norm"),
            mlp_post_norm=norm("mlp_post_norm"),
            window=config.windows[index] or 0,
            rope=self.ropes.index(config.ropes[index]),
        )

    def _linear(self, at: str, outputs: dict[str, int], inputs: int) -> Linear:
        parts = [self._matrix(f"{at}.{name}", count, inputs) for name, count in outputs.items()]
        biases = [f"{at}.{name}.bias" for name in outputs]
        if biases[0] not in self.packed:
            return Linear(parts)
        return Linear(parts, np.concatenate([self._floats(name) for name in biases]))

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        form = self._formats[name]
        data = self.packed[f"{name}.{form.name}"]
        return self.library.matrix(form, outputs, inputs, data.view(np.uint8))

    def _floats(self, name: str) -> NDArray[np.float32]:
        return self.packed[name].view(np.float32)
