"""A model as the kernels see it. Each object keeps the arrays alive that its struct points into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from surefoot.native.arrays import Bytes, Floats, check, pointer
from surefoot.native.structs import MAX_PARTS, SfLayer, SfLinear, SfMatrix, SfModel


class Format(IntEnum):
    """How the weights of a matrix are kept."""

    INT8_64 = 0
    INT8_32 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 4
    Q8_0 = 5
    Q4_K = 6
    Q5_K = 7
    Q6_K = 8


BLOCKS = {
    Format.Q4_0: (32, 18),
    Format.Q4_1: (32, 20),
    Format.Q5_0: (32, 22),
    Format.Q8_0: (32, 34),
    Format.Q4_K: (256, 144),
    Format.Q5_K: (256, 176),
    Format.Q6_K: (256, 210),
}
"""Weights and bytes of a block in a GGUF file; the formats that aren't here are made by rounding."""


class Activation(IntEnum):
    SILU = 0
    GELU_TANH = 1


@dataclass(frozen=True, eq=False)
class Matrix:
    """Packed weights, made by `Library.matrix`, which checks them."""

    format: Format
    outputs: int
    inputs: int
    data: Bytes

    @property
    def struct(self) -> SfMatrix:
        return SfMatrix(self.format, self.outputs, self.inputs, pointer(self.data))


@dataclass(frozen=True, eq=False)
class Linear:
    """Matrices over the same inputs whose outputs stand side by side, and their bias, [outputs]."""

    parts: Sequence[Matrix]
    bias: Floats | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= MAX_PARTS:
            raise ValueError(f"parts: {len(self.parts)}; allowed is 1 to {MAX_PARTS}")
        if len({part.inputs for part in self.parts}) > 1:
            raise ValueError(f"inputs: {[part.inputs for part in self.parts]}; they are to be the same")
        if self.bias is not None:
            check("bias", self.bias, "float32", self.outputs)

    @property
    def inputs(self) -> int:
        return self.parts[0].inputs

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @cached_property
    def struct(self) -> SfLinear:
        parts = [part.struct for part in self.parts]
        return SfLinear(len(parts), (SfMatrix * MAX_PARTS)(*parts), pointer(self.bias))


@dataclass(frozen=True, eq=False)
class Layer:
    """One decoder layer. window: how many keys a row sees, its own included; 0 = all. rope: which of the
    pass's rotations."""

    attention_norm: Floats
    mlp_norm: Floats
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    attention_post_norm: Floats | None = None
    mlp_post_norm: Floats | None = None
    window: int = 0
    rope: int = 0

    @property
    def struct(self) -> SfLayer:
        return SfLayer(
            attention_norm=pointer(self.attention_norm),
            mlp_norm=pointer(self.mlp_norm),
            q_norm=pointer(self.q_norm),
            k_norm=pointer(self.k_norm),
            attention_post_norm=pointer(self.attention_post_norm),
            mlp_post_norm=pointer(self.mlp_post_norm),
            qkv=self.qkv.struct,
            output=self.output.struct,
            gate_up=self.gate_up.struct,
            down=self.down.struct,
            window=self.window,
            rope=self.rope,
        )


@dataclass(frozen=True, eq=False)
class Model:
    """A decoder from its embedded tokens to its logits."""

    layers: Sequence[Layer]
    norm: Floats
    head: Linear
    heads: int
    kv_heads: int
    head_dim: int
    activation: Activation
    norm_eps: float
    attention_scale: float

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("layers: 0; a model has 1 or more")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"heads: {self.heads}; it is to be a multiple of kv_heads, {self.kv_heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim: {self.head_dim}; it is to be even")
        check("norm", self.norm, "float32", self.hidden)
        _check_linear("head", self.head, self.hidden, (self.vocabulary,))
        for index, layer in enumerate(self.layers):
            self._check_layer(f"layer {index}", layer)

    def _check_layer(self, at: str, layer: Layer) -> None:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"):
            if (norm := getattr(layer, name)) is not None:
                check(f"{at} {name}", norm, "float32", self.hidden)
        for name in ("q_norm", "k_norm"):
            if (norm := getattr(layer, name)) is not None:
                check(f"{at} {name}", norm, "float32", self.head_dim)
        _check_linear(f"{at} qkv", layer.qkv, self.hidden, (queries, keys, keys))
        _check_linear(f"{at} output", layer.output, queries, (self.hidden,))
        _check_linear(f"{at} gate_up", layer.gate_up, self.hidden, (self.intermediate, self.intermediate))
        _check_linear(f"{at} down", layer.down, self.intermediate, (self.hidden,))
        if layer.window < 0 or layer.rope < 0:
            raise ValueError(f"{at} window, rope: {layer.window}, {layer.rope}; allowed is 0 or more")

    @property
    def hidden(self) -> int:
        return self.head.inputs

    @property
    def intermediate(self) -> int:
        return self.layers[0].down.inputs

    @property
    def vocabulary(self) -> int:
        return self.head.outputs

    def matrices(self) -> Iterator[Matrix]:
        """Every matrix, the head's too."""
        for layer in self.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                yield from linear.parts
        yield from self.head.parts

    @cached_property
    def rotations(self) -> int:
        """How many tables of rotations a pass needs."""
        return max(layer.rope + 1 for layer in self.layers)

    @cached_property
    def struct(self) -> SfModel:
        layers = [layer.struct for layer in self.layers]
        return SfModel(
            layers=len(layers),
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate=self.intermediate,
            vocabulary=self.vocabulary,
            activation=self.activation,
            norm_eps=self.norm_eps,
            attention_scale=self.attention_scale,
            layer=(SfLayer * len(layers))(*layers),
            norm=pointer(self.norm),
            head=self.head.struct,
        )


def _check_linear(name: str, linear: Linear, inputs: int, outputs: tuple[int, ...]) -> None:
    """The parts may be fused or not, and their outputs are to add up."""
    if linear.inputs != inputs or linear.outputs != sum(outputs):
        wanted = " + ".join(map(str, outputs))
        raise ValueError(f"{name}: {linear.inputs} → {linear.outputs}; it is to be {inputs} → {wanted}")
