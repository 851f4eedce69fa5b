"""The real models that tests run on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from surefoot.models.catalog import resolve
from surefoot.models.pull import pull
from tests.workers import alone

SMOLLM2 = "smollm2-135m-instruct"


@cache
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in the user's own model folder; pulled when it is not there."""
    with alone():
        return pull(SMOLLM2)


def catalogue_path(name: str) -> Path:
    """Another model of the catalogue, for tests marked `models`; it must have been pulled."""
    return resolve(name)
