"""The tensors a decoder of a given configuration needs, and checks every file must pass."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from surefoot.models.config import ModelConfig
from surefoot.models.fields import shown
from surefoot.types import SurefootError

Shape = tuple[int, ...]

MAX_LAYERS = 1024


def check_config(where: Path, config: ModelConfig) -> None:
    """Raises SurefootError when sizes don't fit each other."""
    if config.num_heads % config.num_kv_heads:
        raise SurefootError(
            f"{where}: {config.num_heads} attention heads can't share {config.num_kv_heads} key heads evenly"
        )
    if config.head_dim % 2:
        raise SurefootError(
            f"{where}: a head of size {config.head_dim} can't be rotated; the size must be even"
        )
    for token in config.eos_token_ids:
        if not 0 <= token < config.vocab_size:
            raise SurefootError(
                f"{where}: end-of-sequence id {token} is outside its {config.vocab_size} tokens"
            )


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor by the names of `Checkpoint`, with its shape."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, Shape] = {"embed.weight": (vocab, hidden), "norm.weight": (hidden,)}
    if not config.tied_head:
        shapes["head.weight"] = (vocab, hidden)
    for layer in range(config.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    shapes: dict[str, Shape] = {
        "attention_norm.weight": (hidden,),
        "mlp_norm.weight": (hidden,),
        "q.weight": (queries, hidden),
        "k.weight": (keys, hidden),
        "v.weight": (keys, hidden),
        "o.weight": (hidden, queries),
        "gate.weight": (inner, hidden),
        "up.weight": (inner, hidden),
        "down.weight": (hidden, inner),
    }
    if config.attention_bias:
        shapes |= {"q.bias": (queries,), "k.bias": (keys,), "v.bias": (keys,)}
    if config.qk_norm:
        shapes |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
    if config.post_norms:
        shapes |= {"attention_post_norm.weight": (hidden,), "mlp_post_norm.weight": (hidden,)}
    return shapes


def check_tensors(
    where: Path, expected: Mapping[str, Shape], found: Mapping[str, Shape], family: str, extra: Iterable[str]
) -> None:
    """Raises SurefootError for a tensor that is missing or misshapen, and for one that the decoder would
    leave out: weights silently ignored are wrong output.

    expected, found: shapes by the file's own names. extra: names that may be there and are not needed.
    """
    for name, shape in expected.items():
        if name not in found:
            raise SurefootError(f"{where}: tensor {name!r} is missing")
        if found[name] != shape:
            has, wanted = list(found[name]), list(shape)
            raise SurefootError(f"{where}: tensor {name!r} has shape {has}; the configuration says {wanted}")
    unknown = found.keys() - expected.keys() - set(extra)
    if unknown:
        raise SurefootError(
            f"{where}: tensor {shown(min(unknown))} is not part of a {family} model as supported here"
        )


def check_finite(where: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself. Raises SurefootError when it holds a NaN or an infinity: such a model is damaged,
    and one such key would poison every row that can see its page."""
    low, high = torch.aminmax(tensor)
    if not (low.isfinite() and high.isfinite()):
        raise SurefootError(f"{where}: tensor {shown(name)} is damaged: it holds numbers that are not finite")
    return tensor


def fingerprint(paths: Iterable[Path]) -> str:
    """Sizes, modification times and samples of some files, hashed: cheap, and changes when one does."""
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with path.open("rb") as file:
            for part in range(8):
                file.seek(part * stat.st_size // 8)
                digest.update(file.read(1 << 16))
    return digest.hexdigest()
