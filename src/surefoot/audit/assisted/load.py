"""A name → a model of transformers and its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from surefoot.models.catalog import resolve
from surefoot.types import SurefootError

_MISSING = "auditing transformers needs transformers 5 or later: pip install 'surefoot[transformers]'"
_HOOKS = ("_get_candidate_generator", "_get_logits_processor")  # what the audit listens to


@dataclass(frozen=True)
class Loaded:
    """model: a transformers causal language model, float32, on the CPU, in eval mode. tokenizer: its own."""

    name: str
    model: Any
    tokenizer: Any

    def copy(self) -> Loaded:
        """Another one with the same weights: some modes of transformers rebuild their assistant in place."""
        return Loaded(self.name, copy.deepcopy(self.model), copy.deepcopy(self.tokenizer))


def library() -> Any:
    """The module `transformers`. Raises SurefootError where it is missing or too old."""
    try:
        import transformers
    except ImportError:
        raise SurefootError(_MISSING) from None
    if int(transformers.__version__.partition(".")[0]) < 5:
        raise SurefootError(f"{_MISSING} (here is {transformers.__version__})")
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' advice and progress bars, which would stand between the lines of a report."""
    logging = library().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load(name: str) -> Loaded:
    """name: a folder as transformers saves it, a .gguf file, a catalogue name or a hub id that was pulled.

    Raises SurefootError when there is no such model here, and when transformers can't load it.
    """
    transformers, path = library(), resolve(name)
    import torch

    try:
        with redirect_stderr(StringIO()):  # GGUF files have a progress bar that none of the settings stops
            model = transformers.AutoModelForCausalLM.from_pretrained(**_source(path), dtype=torch.float32)
            tokenizer = transformers.AutoTokenizer.from_pretrained(**_source(path))
    except Exception as error:  # of any kind: it reads files of many formats
        raise SurefootError(f"transformers can't load {name}: {first_line(error)}") from error
    for hook in _HOOKS:
        if not hasattr(model, hook):
            raise SurefootError(f"transformers {transformers.__version__} can't be audited: it has no {hook}")
    return Loaded(name, model.eval(), tokenizer)


def _source(path: Path) -> dict[str, str]:
    folder = {"pretrained_model_name_or_path": str(path if path.is_dir() else path.parent)}
    return folder if path.is_dir() else {**folder, "gguf_file": path.name}


def first_line(error: BaseException) -> str:
    """An exception's kind and the first line of what it says."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
