"""A checkpoint of random weights, in memory: any shape, no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from surefoot.models.config import Blocks, ModelConfig, Rope
from tests.random_blocks import random_blocks


def small_config(**changes: object) -> ModelConfig:
    settings: dict[str, object] = {
        "family": "llama",
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_layers": 3,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "max_length": 2600,
        "norm_eps": 1e-6,
        "activation": "silu",
        "attention_bias": False,
        "qk_norm": False,
        "post_norms": False,
        "embedding_scale": 1.0,
        "attention_scale": 32**-0.5,
        "tied_head": True,
        "windows": (None, None, None),
        "ropes": (Rope(tuple(10000 ** (-i / 16) for i in range(16))),) * 3,
    }
    return ModelConfig(**{**settings, **changes})  # type: ignore[arg-type]


def gemma_like() -> ModelConfig:
    """Everything at once that a family may have: norms, biases, windows, a head of its own."""
    return small_config(
        qk_norm=True,
        post_norms=True,
        activation="gelu_tanh",
        windows=(70, None, 600),
        attention_bias=True,
        tied_head=False,
        embedding_scale=8.0,
    )


@dataclass
class RandomCheckpoint:
    config: ModelConfig
    seed: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)  # of quantized blocks, by part: {"down": "Q4_K"}

    def __post_init__(self) -> None:
        config, generator = self.config, torch.Generator().manual_seed(self.seed)
        hidden, heads = config.hidden_size, config.head_dim * config.num_heads
        kv = config.head_dim * config.num_kv_heads
        shapes = {"embed.weight": (config.vocab_size, hidden), "norm.weight": (hidden,)}
        if not config.tied_head:
            shapes["head.weight"] = (config.vocab_size, hidden)
        for layer in range(config.num_layers):
            at = f"layers.{layer}"
            shapes |= {f"{at}.attention_norm.weight": (hidden,), f"{at}.mlp_norm.weight": (hidden,)}
            shapes |= {f"{at}.q.weight": (heads, hidden), f"{at}.o.weight": (hidden, heads)}
            shapes |= {f"{at}.{name}.weight": (kv, hidden) for name in "kv"}
            if config.attention_bias:
                shapes |= {f"{at}.q.bias": (heads,), f"{at}.k.bias": (kv,), f"{at}.v.bias": (kv,)}
            if config.qk_norm:
                shapes |= {f"{at}.{name}_norm.weight": (config.head_dim,) for name in "qk"}
            if config.post_norms:
                shapes |= {f"{at}.{name}_post_norm.weight": (hidden,) for name in ("attention", "mlp")}
            shapes |= {f"{at}.{name}.weight": (config.intermediate_size, hidden) for name in ("gate", "up")}
            shapes[f"{at}.down.weight"] = (hidden, config.intermediate_size)
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator)
            self.tensors[name] = drawn.abs() if "norm" in name else drawn * (shape[-1] ** -0.5)
        self.tensors["embed.weight"] *= 4
        self._blocks = {name: self._quantized(name) for name in self.tensors if self._kind(name)}

    def _kind(self, name: str) -> str | None:
        part, suffix = name.split(".")[-2:]
        return self.kinds.get(part) if suffix == "weight" else None

    def _quantized(self, name: str) -> Blocks:
        """Random blocks of the tensor's kind; the tensor becomes what they hold."""
        kind, (outputs, inputs) = self._kind(name), self.tensors[name].shape
        assert kind is not None
        seed = len(name) + sum(name.encode()) + self.seed
        rows = random_blocks(kind, outputs, inputs, np.random.default_rng(seed))
        self.tensors[name] = torch.from_numpy(dequantize(rows, GGMLQuantizationType[kind]))
        return Blocks(kind, rows)

    @property
    def fingerprint(self) -> str:
        return f"random-{self.seed}-{abs(hash((self.config, *self.kinds.items())))}"

    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def blocks(self, name: str) -> Blocks | None:
        return self._blocks.get(name)

    def metadata(self) -> Mapping[str, object]:
        return {}
