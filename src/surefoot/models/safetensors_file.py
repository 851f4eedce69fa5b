"""A folder of safetensors as a checkpoint: one file, or several with an index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from surefoot.models.config import ModelConfig
from surefoot.models.fields import one_line, read_json, shown
from surefoot.models.hf_config import read_config
from surefoot.models.layout import check_finite, check_tensors, expected_shapes, fingerprint
from surefoot.types import SurefootError

_DTYPES = ("F32", "F16", "BF16")
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
_NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_GEMMA_NAMES = _NAMES | {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_NOT_TEXT = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.|.*\.rotary_emb\.inv_freq$")


class SafetensorsCheckpoint:
    """An opened folder. Raises SurefootError naming the file and what it lacks or has too much."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = _weight_files(folder)
        self._found: dict[str, tuple[Path, tuple[int, ...]]] = {}
        for path in self._files:
            self._found |= {name: (path, shape) for name, shape in _header(path).items()}
        self._prefix = self._find_prefix()
        self._config = read_config(
            folder, has_bias=f"{self._prefix}layers.0.self_attn.q_proj.bias" in self._found
        )
        shapes = expected_shapes(self._config)
        self._names = tuple(shapes)
        expected = {self._file_name(name): shape for name, shape in shapes.items()}
        found = {name: shape for name, (_, shape) in self._found.items() if not _NOT_TEXT.match(name)}
        tied_head = (self._file_name("head.weight"),) if self._config.tied_head else ()
        check_tensors(folder, expected, found, self._config.family, extra=tied_head)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def fingerprint(self) -> str:
        return fingerprint([self._folder / "config.json", *self._files])

    def names(self) -> tuple[str, ...]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        file_name = self._file_name(name)
        path, _ = self._found[file_name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(file_name).to(torch.float32)
        except (SafetensorError, OSError) as error:
            raise SurefootError(
                f"{path}: tensor {shown(file_name)} cannot be read: {one_line(error)}"
            ) from error
        check_finite(path, file_name, tensor)
        if self._config.family == "gemma3" and name.endswith("norm.weight"):
            return tensor + 1.0  # stored as the difference from one
        return tensor

    def blocks(self, name: str) -> None:
        if name not in self._names:
            raise KeyError(name)

    def metadata(self) -> Mapping[str, object]:
        return {"folder": self._folder, "config": read_json(self._folder / "config.json")}

    def _find_prefix(self) -> str:
        for prefix in _PREFIXES:
            if f"{prefix}embed_tokens.weight" in self._found:
                return prefix
        raise SurefootError(f"{self._folder}: tensor 'model.embed_tokens.weight' is missing")

    def _file_name(self, name: str) -> str:
        if name == "embed.weight":
            return f"{self._prefix}embed_tokens.weight"
        if name == "norm.weight":
            return f"{self._prefix}norm.weight"
        if name == "head.weight":
            return (
                "language_model.lm_head.weight"
                if self._prefix == "language_model.model."
                else "lm_head.weight"
            )
        _, layer, part, suffix = name.split(".")
        names = _GEMMA_NAMES if self._config.family == "gemma3" else _NAMES
        return f"{self._prefix}layers.{layer}.{names[part]}.{suffix}"


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise SurefootError(f"{index}: has no weight_map from tensor to file name")
        names = sorted(set(weight_map.values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise SurefootError(f"{index}: names {shown(outside[0])}, which is not a file of its folder")
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise SurefootError(f"{folder}: weight file {name} is missing")
    return [folder / name for name in names]


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape per tensor of one file, dtypes checked."""
    try:
        with safe_open(path, framework="pt") as file:
            shapes: dict[str, tuple[int, ...]] = {}
            for name in file.keys():  # noqa: SIM118 - the handle is not a mapping
                piece = file.get_slice(name)
                dtype = piece.get_dtype()
                if dtype not in _DTYPES:
                    supported = ", ".join(_DTYPES)
                    raise SurefootError(
                        f"{path}: tensor {shown(name)} has type {dtype}; only {supported} may be"
                    )
                shapes[name] = tuple(piece.get_shape())
            return shapes
    except (SafetensorError, OSError) as error:
        raise SurefootError(f"{path}: damaged or truncated safetensors: {one_line(error)}") from error
