"""What loading computes from a checkpoint, in one precision: once, then read back from the disk cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from surefoot.models.config import Checkpoint, ModelConfig
from surefoot.models.linear import TorchPrecision, quantize_weight

FORMAT = 2  # of the names and numbers below; raise it when either changes

Prepared = Mapping[str, torch.Tensor]
"""Norms and biases float32 under the checkpoint's own names; `embed` in the precision's float type; each
linear (layers.N.{qkv,o,gate_up,down}, head) as NAME.weight, and NAME.scale in int8. A head that needs more
than the layers is fp16."""

HEAD_LOSS = 0.01  # ‖rounding error‖ / ‖weight‖ past which a head's eight bits cost too many top tokens

FUSED = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}

log = logging.getLogger("surefoot")


def prepare(checkpoint: Checkpoint, precision: TorchPrecision, folder: Path) -> Prepared:
    """The prepared tensors of a checkpoint, from `folder` where they have been before.

    A folder that can't be written to costs the time again next time, and is logged.
    """
    path = folder / f"{checkpoint.fingerprint}-{precision}-{FORMAT}.safetensors"
    if path.exists():
        try:
            kept = _read(path)
        except (OSError, SafetensorError) as error:
            log.warning("%s: %s; made anew", path, error)
        else:
            if _needed(checkpoint.config) <= kept.keys():
                return kept
            log.warning("%s: it lacks tensors; made anew", path)
    tensors = dict(_derive(checkpoint, precision))
    try:
        _write(tensors, path)
    except (OSError, SafetensorError) as error:
        log.warning("%s: could not be kept for the next start: %s", path, error)
        return tensors
    return _read(path)


def _needed(config: ModelConfig) -> set[str]:
    linears = {f"layers.{layer}.{fused}.weight" for layer in range(config.num_layers) for fused in FUSED}
    return {"embed", "norm.weight"} | linears


def _read(path: Path) -> Prepared:
    """Memory-mapped: what is packed afterwards never stands in memory twice for long."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict


def _write(tensors: Prepared, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        save_file(dict(tensors), partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _derive(checkpoint: Checkpoint, precision: TorchPrecision) -> Iterator[tuple[str, torch.Tensor]]:
    config, names = checkpoint.config, set(checkpoint.names())
    embedding = checkpoint.tensor("embed.weight")
    yield "embed", embedding if precision == "fp32" else embedding.bfloat16()
    if config.tied_head:
        if precision != "fp32":
            yield from _linear("head", embedding, precision)
    else:
        yield from _linear("head", checkpoint.tensor("head.weight"), precision)
    del embedding
    yield "norm.weight", checkpoint.tensor("norm.weight")
    for layer in range(config.num_layers):
        at = f"layers.{layer}"
        for fused, parts in FUSED.items():
            weights = [checkpoint.tensor(f"{at}.{part}.weight") for part in parts]
            yield from _linear(f"{at}.{fused}", torch.cat(weights), precision)
            if f"{at}.{parts[0]}.bias" in names:
                yield (
                    f"{at}.{fused}.bias",
                    torch.cat([checkpoint.tensor(f"{at}.{part}.bias") for part in parts]),
                )
        for name in sorted(names):
            if name.startswith(f"{at}.") and "norm" in name:
                yield name, checkpoint.tensor(name)


def _linear(name: str, weight: torch.Tensor, precision: TorchPrecision) -> Iterator[tuple[str, torch.Tensor]]:
    if precision == "int8":
        quantized, scale = quantize_weight(weight)
        if name == "head" and _loss(weight, quantized, scale) > HEAD_LOSS:
            yield f"{name}.weight", weight.to(torch.float16)
            return
        yield f"{name}.weight", quantized
        yield f"{name}.scale", scale
    elif precision == "bf16":
        # The head of a bf16 model is kept in fp16: see Float16Linear.
        yield f"{name}.weight", weight.to(torch.float16 if name == "head" else torch.bfloat16)
    else:
        yield f"{name}.weight", weight


def _loss(weight: torch.Tensor, quantized: torch.Tensor, scale: torch.Tensor) -> float:
    error = torch.addcmul(weight, quantized.float(), scale[:, None], value=-1)
    return float(error.norm() / weight.norm())
