"""Logits by us and by transformers, held against float64, so that a difference says whose it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from surefoot.models.base import Segment
from surefoot.models.decoder import Decoder

Logits = NDArray[np.float32]  # [rows, vocabulary]


def our_logits(decoder: Decoder, tokens: list[int]) -> Logits:
    decoder.cache.add(1)
    try:
        return decoder.forward([Segment(1, tokens, len(tokens))])
    finally:
        decoder.cache.free(1)


def their_logits(model: Any, tokens: list[int]) -> Logits:
    with torch.no_grad():
        logits: Logits = model(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


class _InFloat64(TorchFunctionMode):
    """float64 wherever transformers asks for float32 whatever the model's type: norms, softmax, angles."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(_wide, args), **{name: _wide(value) for name, value in (kwargs or {}).items()})


def _wide(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def exact_logits(model: Any, tokens: list[int]) -> NDArray[np.float64]:
    """What transformers' model gives in float64, where rounding no longer matters. The model stays so."""
    with torch.no_grad(), _InFloat64():
        logits: NDArray[np.float64] = model.double()(torch.tensor([tokens])).logits[0].numpy()
    return logits


@dataclass(frozen=True, slots=True)
class Side:
    """Logits in float32, and those of the same pass done again."""

    logits: Logits
    again: Logits


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides, each loaded once, and what float64 makes of the weights that transformers loaded."""

    ours: Side
    theirs: Side
    exact: NDArray[np.float64]


def compute(decoder: Decoder, model: Any, tokens: list[int]) -> Sides:
    """model: transformers', in float32; float64 afterwards."""
    ours, theirs = (
        Side(logits(loaded, tokens), logits(loaded, tokens))
        for logits, loaded in ((our_logits, decoder), (their_logits, model))
    )
    return Sides(ours, theirs, exact_logits(model, tokens))


def agree(sides: Sides, limit: float) -> bool:
    """Whether all passes are within `limit` of float64, and ours has the same bits twice, as we promise."""
    passes = (sides.ours.logits, sides.ours.again, sides.theirs.logits, sides.theirs.again)
    return np.array_equal(*passes[:2]) and all(_apart(logits, sides.exact) <= limit for logits in passes)


def account(sides: Sides, load: Callable[[], Sides]) -> str:
    """Which side is off and what became of it: in the same pass again, and when both were loaded anew."""
    rounding = "to nearest" if rounds_to_nearest() else "NOT to nearest"
    anew = load()
    lines = [
        f"{torch.get_num_threads()} threads, rounding {rounding}, "
        f"float32 products {torch.get_float32_matmul_precision()}; how far from float64:",
        *(
            f"{name}: {_apart(side.logits, anew.exact):.2g}, again {_apart(side.again, anew.exact):.2g} "
            f"({_bits(side.logits, side.again)}), loaded anew {_apart(fresh.logits, anew.exact):.2g} "
            f"({_bits(side.logits, fresh.logits)})"
            for name, side, fresh in (
                ("ours", sides.ours, anew.ours),
                ("theirs", sides.theirs, anew.theirs),
            )
        ),
        f"float64 itself moved by {_apart(sides.exact, anew.exact):.2g} when it was loaded anew",
    ]
    return "\n".join(lines)


def rounds_to_nearest() -> bool:
    """Whether every thread of PyTorch rounds as it should. Where one rounds up, down or to zero, SmolLM2's
    logits move by .001 to .01; another order of summation moves them by .0005 at most."""
    ones = torch.ones(1 << 20)  # enough for all threads
    low, high = (ones + part * 2.0**-23 for part in (0.25, 0.75))
    return bool((low == 1).all() and (high == 1 + 2.0**-23).all())


def _apart(a: NDArray[Any], b: NDArray[np.float64]) -> float:
    return float(np.abs(a - b).max())


def _bits(a: Logits, b: Logits) -> str:
    return "the same bits" if np.array_equal(a, b) else "other bits"
