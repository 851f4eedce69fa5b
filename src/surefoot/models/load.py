"""Opening a model file, whatever its format."""

from __future__ import annotations

from pathlib import Path

from surefoot.models.config import Checkpoint
from surefoot.models.gguf_file import GgufCheckpoint
from surefoot.models.safetensors_file import SafetensorsCheckpoint
from surefoot.types import SurefootError

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a .gguf file, or a folder with config.json and safetensors.

    Raises SurefootError, one line, for anything else, for a damaged or truncated file, and for a model that
    the decoder can't compute exactly as it was meant. Pickled weights are refused: reading them runs
    whatever code their author put in.
    """
    if path.is_dir():
        if not any(path.glob("*.safetensors")) and (pickled := _pickles(path)):
            raise _refuse_pickle(pickled[0])
        return SafetensorsCheckpoint(path)
    if path.suffix in _PICKLES:
        raise _refuse_pickle(path)
    if path.suffix == ".safetensors":
        raise SurefootError(f"{path}: name its folder, which holds config.json and the tokenizer too")
    return GgufCheckpoint(path)


def _pickles(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _PICKLES)


def _refuse_pickle(path: Path) -> SurefootError:
    return SurefootError(
        f"{path}: pickled weights are refused, since reading them can run any code; "
        "convert them to safetensors, or take a model that has them"
    )
