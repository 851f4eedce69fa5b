"""surefoot: speculative decoding with the same seed's tokens, speculated or not.

Names are imported when they are first used: `import surefoot` loads neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.oracle import plain_decode, speculative_decode
    from surefoot.types import Draft, SamplingParams, SurefootError, Usage, Verdict

_HOMES = {
    "Draft": "types",
    "Engine": "engine",
    "SamplingParams": "types",
    "SurefootError": "types",
    "Usage": "types",
    "Verdict": "types",
    "plain_decode": "oracle",
    "speculative_decode": "oracle",
}

__all__ = [
    "Draft",
    "SamplingParams",
    "SurefootError",
    "Usage",
    "Verdict",
    "plain_decode",
    "speculative_decode",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
    return getattr(import_module(f"surefoot.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
