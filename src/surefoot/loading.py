"""From a name to a model that is ready to run. Importing this imports no torch; loading does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.types import SurefootError, whole

if TYPE_CHECKING:
    from surefoot.models.build import Precision
    from surefoot.models.decoder import Decoder
    from surefoot.text import Tokenizer


MAX_THREADS = 1024  # as many more only crash the library that starts them


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    name: as it was asked for. precision: the one in use. kernels: who computes, an instruction set of the
    native core or "pytorch". inexact: why the promise of the same tokens doesn't hold on this machine, None
    where it does.
    """

    name: str
    model: Decoder
    tokenizer: Tokenizer
    precision: Precision
    kernels: str
    inexact: str | None


def load_model(name: str | Path, precision: str = "auto", threads: int | None = None) -> LoadedModel:
    """Loads a catalogue name, hub id, folder with safetensors, or .gguf file.

    precision: "file" (the quantized blocks of a GGUF file), "int8", "bf16", "fp32", or "auto" for the
    fastest that is exact here. threads: for this process's products from now on; None leaves them as they
    are. $SUREFOOT_ISA names the native core's instruction set, or "pytorch" to do without the core.
    Raises SurefootError, one line, for whatever can't be loaded.
    """
    # Read when torch loads. Its threads wait for each other by spinning, by default for so long that another
    # busy program makes generation ten times slower. Where there is none, this costs some 5%.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import torch

    from surefoot.models.build import PRECISIONS, build
    from surefoot.models.catalog import home, resolve
    from surefoot.models.load import open_checkpoint
    from surefoot.native.library import native_library
    from surefoot.text import load_tokenizer

    chosen = next((known for known in PRECISIONS if known == precision), None)
    if chosen is None and precision != "auto":
        raise SurefootError(f"precision: {precision} is unknown; it is auto, {', '.join(PRECISIONS)}")
    if threads is not None:
        torch.set_num_threads(whole("threads", threads, 1, MAX_THREADS))
    checkpoint = open_checkpoint(resolve(str(name)))
    library = native_library(home() / "native") if chosen in (None, "file", "int8") else None
    built = build(checkpoint, chosen, home() / "prepared", library)
    return LoadedModel(
        str(name),
        built.decoder,
        load_tokenizer(checkpoint),
        built.precision,
        built.kernels,
        built.inexact,
    )
