"""Where a fault can sit in an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.drafters.base import Draw
from surefoot.engine import Engine
from surefoot.loop import Loop
from surefoot.models.base import Model
from surefoot.request import Request
from surefoot.rounds import draw_for, judge, judge_by
from surefoot.scheduler import Slot
from surefoot.types import Draft, Verdict, VerifyMode
from surefoot.verify import Rule

Draws = Callable[[Request, VerifyMode, int], Draw]
"""In place of `rounds.draw_for`."""

Judges = Callable[[Request, Draft, NDArray[np.float32], VerifyMode], Verdict]
"""In place of `rounds.judge`."""

Submits = Callable[[Sequence[Request], list[Draft]], list[Draft]]
"""(requests, what was drafted for each) → the drafts that are verified."""

Extends = Callable[[Request, Sequence[int]], tuple[int, ...]]
"""In place of `Request.extend`."""


def as_drafted(requests: Sequence[Request], drafts: list[Draft]) -> list[Draft]:
    """What a sound engine submits."""
    return drafts


def engine_with(
    *,
    draws: Draws = draw_for,
    judges: Judges = judge,
    submits: Submits = as_drafted,
    extends: Extends = Request.extend,
) -> type[Engine]:
    """An engine, sound but for what is given."""

    class FaultyLoop(Loop):
        def _draw_for(self, request: Request) -> Draw:
            return draws(request, self._mode, self._model.vocab_size)

        def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
            return judges(request, draft, logits, self._mode)

        def _draft(self, slots: Sequence[Slot[Request]]) -> list[Draft]:
            return submits([slot.job for slot in slots], super()._draft(slots))

        def _extend(self, request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
            return extends(request, tokens)

    class FaultyEngine(Engine):
        loop_type = FaultyLoop

    return FaultyEngine


def engine_by(rule: Rule) -> type[Engine]:
    """An engine that verifies by this rule, whatever its mode."""
    return engine_with(judges=lambda request, draft, logits, mode: judge_by(rule, request, draft, logits))


def engine_over(wrapped: Callable[[Model], Model]) -> type[Engine]:
    """A sound engine over a faulty pass."""

    class FaultyEngine(Engine):
        def __init__(self, model: Model, draft: Any, **settings: Any) -> None:
            super().__init__(wrapped(model), draft, **settings)

    return FaultyEngine
