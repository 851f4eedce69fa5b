"""surefoot: speculative decoding with the same seed's tokens, speculated or not.

Names are imported when they are first used: `import surefoot` loads neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.asynchronous import AsyncEngine
    from surefoot.engine import Engine
    from surefoot.loading import load_model
    from surefoot.oracle import plain_decode, speculative_decode
    from surefoot.results import Choice, Chunk, Load, Result
    from surefoot.sampling import TopLogprobs
    from surefoot.trace import Stats
    from surefoot.types import (
        BusyError,
        ClosedError,
        Constraint,
        DeadlineError,
        Draft,
        SamplingParams,
        SurefootError,
        Usage,
        Verdict,
    )

__all__ = [
    "AsyncEngine",
    "BusyError",
    "Choice",
    "Chunk",
    "ClosedError",
    "Constraint",
    "DeadlineError",
    "Draft",
    "Engine",
    "Load",
    "Result",
    "SamplingParams",
    "Stats",
    "SurefootError",
    "TopLogprobs",
    "Usage",
    "Verdict",
    "load_model",
    "plain_decode",
    "speculative_decode",
]

_HOMES = {
    "asynchronous": ("AsyncEngine",),
    "engine": ("Engine",),
    "loading": ("load_model",),
    "oracle": ("plain_decode", "speculative_decode"),
    "results": ("Choice", "Chunk", "Load", "Result"),
    "sampling": ("TopLogprobs",),
    "trace": ("Stats",),
    "types": (
        "BusyError",
        "ClosedError",
        "Constraint",
        "DeadlineError",
        "Draft",
        "SamplingParams",
        "SurefootError",
        "Usage",
        "Verdict",
    ),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"surefoot.{home}"), name)
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
