"""What the tests of damaged model files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, settings

from surefoot.models.config import Checkpoint
from surefoot.models.load import open_checkpoint
from surefoot.text import load_tokenizer
from surefoot.types import SurefootError

FEW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
TINIEST: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
}


def use(path: Path) -> bool:
    """Opens a model and reads all of it. False when it is refused as it should be, in one line."""
    try:
        checkpoint: Checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            assert checkpoint.tensor(name).dtype == torch.float32
        load_tokenizer(path).encode("hello", add_special=True)
    except SurefootError as error:
        if "\n" in str(error) or path.name not in str(error):
            raise AssertionError(f"not one line that names the file: {error}") from error
        return False
    return True
