"""From a checkpoint to PyTorch's passes, kept to the promise: weights packed, shapes probed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from surefoot.models import probe
from surefoot.models.config import Checkpoint, ModelConfig
from surefoot.models.linear import (
    BFloat16Linear,
    Float16Linear,
    Float32Linear,
    Int8Linear,
    Linear,
    Planes,
    Tiles,
    TorchPrecision,
)
from surefoot.models.prepare import FUSED, Prepared, prepare
from surefoot.models.probe import REFERENCE
from surefoot.models.torch_pass import Layer, TorchPasses, Weights
from surefoot.types import SurefootError

# A call of one or two rows is slower than one of four (oneDNN; .52 against .38 ms for 1536 → 8960 in int8 on
# Zen 4, and alike with AMX), and an int8 row is two rows of its product.
SMALLEST: dict[TorchPrecision, int] = {"fp32": 1, "bf16": 4, "int8": 2}
FORMS: tuple[Planes, ...] = ("unsigned", "signed")
HEAD_SIZES = (1, 2, 4, 8, 16, 32)  # row counts the head is probed at: it is large


def build_torch(
    checkpoint: Checkpoint, precision: TorchPrecision | None, folder: Path
) -> tuple[TorchPasses, TorchPrecision, str | None]:
    """Packs and probes. precision: None chooses; folder: where prepared weights are kept. Also returns the
    precision in use, and why a row may differ with its company, None when it can't.

    Raises SurefootError for a precision that this machine can't keep exact, or a damaged file.
    """
    config = checkpoint.config
    chosen = precision or best_precision(config)
    planes = exact_planes(config) if chosen == "int8" else None
    if chosen == "int8" and not planes:
        raise SurefootError(
            "precision int8: PyTorch has no exact 8-bit product on this CPU (VNNI or AMX); use bf16 or fp32"
        )
    if chosen == "bf16" and not has_bf16():
        raise SurefootError("precision bf16: this CPU has no bf16 product; use fp32")
    weights = pack(config, prepare(checkpoint, chosen, folder), chosen, planes)
    key_dtype = torch.bfloat16 if chosen == "bf16" else torch.float32
    sizes, head_sizes, inexact = _probe(config, weights, chosen, key_dtype)
    return TorchPasses(config, weights, Tiles(sizes), Tiles(head_sizes), key_dtype), chosen, inexact


def best_precision(config: ModelConfig) -> TorchPrecision:
    """int8 where this machine's product is exact, else bf16 where it has one, else fp32."""
    if exact_planes(config):
        return "int8"
    return "bf16" if has_bf16() else "fp32"


def has_bf16() -> bool:
    """Whether this machine has a bf16 product that oneDNN uses."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def exact_planes(config: ModelConfig) -> Planes | None:
    """The form in which this machine's 8-bit product is exact at every width of the model, if one is."""
    widths = sorted({config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size})

    def is_exact(form: Planes) -> bool:
        def product(planes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return Int8Linear(weight, torch.ones(len(weight)), planes=form).product(planes)

        return all(probe.integer_product_is_exact(product, width) for width in widths)

    return next((form for form in FORMS if is_exact(form)), None)


def pack(
    config: ModelConfig, prepared: Prepared, precision: TorchPrecision, planes: Planes | None
) -> Weights:
    """The decoder's weights out of prepared tensors. planes: for int8."""

    def linear(name: str) -> Linear:
        bias = prepared.get(f"{name}.bias")
        if planes:
            return Int8Linear(prepared[f"{name}.weight"], prepared[f"{name}.scale"], bias, planes)
        return (BFloat16Linear if precision == "bf16" else Float32Linear)(prepared[f"{name}.weight"], bias)

    def layer(index: int) -> Layer:
        at = f"layers.{index}"
        qkv, output, gate_up, down = (linear(f"{at}.{fused}") for fused in FUSED)
        norms = [prepared.get(f"{at}.{name}.weight") for name in NORMS]
        return Layer(
            prepared[f"{at}.attention_norm.weight"],
            prepared[f"{at}.mlp_norm.weight"],
            qkv,
            output,
            gate_up,
            down,
            *norms,
        )

    layers = [layer(index) for index in range(config.num_layers)]
    return Weights(prepared["embed"], layers, prepared["norm.weight"], _head(prepared, linear))


NORMS = ("q_norm", "k_norm", "attention_post_norm", "mlp_post_norm")


def _head(prepared: Prepared, linear: Callable[[str], Linear]) -> Linear:
    weight = prepared.get("head.weight")
    if weight is None:  # tied, in fp32: the embedding itself
        return Float32Linear(prepared["embed"])
    if weight.dtype != torch.float16:
        return linear("head")
    has_fp16 = "fbgemm" in torch.backends.quantized.supported_engines
    return Float16Linear(weight) if has_fp16 else Float32Linear(weight)


def _probe(
    config: ModelConfig, weights: Weights, precision: TorchPrecision, key_dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...], str | None]:
    """Row counts for the layers and for the head, and what keeps the promise from holding, if anything."""
    first = weights.layers[0]
    widths = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.hidden_size,
        config.intermediate_size,
    )
    linears = (first.qkv, first.output, first.gate_up, first.down)
    candidates, of_head = (
        [size for size in sizes if size >= SMALLEST[precision]] for sizes in (probe.CANDIDATES, HEAD_SIZES)
    )
    found = [
        probe.glue_sizes(
            config.hidden_size, config.intermediate_size, config.head_dim, config.activation, candidates
        )
    ]
    for linear, width in zip(linears, widths, strict=True):
        found.append(_linear_sizes(linear, width, precision, candidates))
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(max(HEAD_SIZES), config.hidden_size, generator=generator)

    def head(x: torch.Tensor) -> torch.Tensor:
        return weights.head(F.rms_norm(x, weights.norm.shape, weights.norm, config.norm_eps))

    sizes, head_sizes = probe.intersection(found), probe.agreeing(head, rows, of_head)
    fallback = (REFERENCE,)
    if not sizes or not head_sizes:
        return (
            sizes or fallback,
            head_sizes or fallback,
            "a matrix product gives a row other bits in other places",
        )
    if not probe.attention_is_canonical(config.num_heads, config.num_kv_heads, config.head_dim, key_dtype):
        return sizes, head_sizes, "attention gives a row other bits among other rows"
    return sizes, head_sizes, None


def _linear_sizes(
    linear: Linear, width: int, precision: TorchPrecision, candidates: Sequence[int]
) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(max(candidates), width, generator=generator)
    if precision == "int8":  # integer sums have no order; only the scaling is left to ask about
        return probe.agreeing(linear, rows, candidates)
    outs = linear(rows[:REFERENCE]).shape[1]
    return probe.linear_sizes(
        BFloat16Linear if precision == "bf16" else Float32Linear, outs, width, candidates
    )
