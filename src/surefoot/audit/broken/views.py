"""Requests seen wrongly: faults of engines that apply parameters here and forget them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.broken.engines import Judges
from surefoot.request import Request
from surefoot.rounds import judge
from surefoot.sampling import History
from surefoot.types import Draft, Verdict, VerifyMode


def with_params(request: Request, **changes: float | dict[int, float]) -> Request:
    """The same request, asking for something else."""
    view = copy(request)
    view.params = replace(request.params, **changes)  # type: ignore[arg-type]
    return view


def with_history(request: Request, kind: type[History], **changes: Sequence[int]) -> Request:
    """The same request, with a history that behaves otherwise, or has other tokens in it."""
    view = copy(request)
    known = {field.name: getattr(request.history, field.name) for field in fields(History)}
    view.history = kind(**(known | changes))
    return view


def judges_as(seen: Callable[[Request], Request]) -> Judges:
    """The target's side takes the request for another one; the draft's side doesn't."""

    def judges(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
        return judge(seen(request), draft, logits, mode)

    return judges


def untransformed(request: Request) -> Request:
    """At temperature 1, with nothing cut off."""
    return with_params(without_temperature(request), top_p=1, top_k=0, min_p=0)


def without_temperature(request: Request) -> Request:
    """vLLM #9834: sampling parameters don't reach the target's row."""
    return with_params(request, temperature=1) if request.params.temperature else request


def without_top_p(request: Request) -> Request:
    """MLC #2940."""
    return with_params(request, top_p=1)


def greedy(request: Request) -> Request:
    """Silently the most likely token (mistral.rs #2424)."""
    return with_params(request, temperature=0)


class _Committed(History):
    """Knows nothing of drafted tokens."""

    def then(self, drafted: Sequence[int]) -> History:
        return self


def without_drafted(request: Request) -> Request:
    """The rows of a block are penalised for what was said before the block alone (vLLM #18902)."""
    return with_history(request, _Committed)


class _EndsAnywhere(History):
    """May end behind any drafted token."""

    def then(self, drafted: Sequence[int]) -> History:
        return replace(super().then(drafted), end_ids=() if drafted else self.end_ids)


def ends_inside(request: Request) -> Request:
    """`min_tokens` holds for the first row of a block alone (vLLM #46243)."""
    return with_history(request, _EndsAnywhere)


def counts_rejected() -> Judges:
    """Penalties count rejected tokens too: their counters are never rolled back."""
    rejected: dict[int, list[int]] = {}

    def judges(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
        dropped = rejected.setdefault(request.seq, [])
        view = with_history(request, History, output=[*request.output, *dropped])
        verdict = judge(view, draft, logits, mode)
        dropped += draft.tokens[len(verdict.path) :]
        return verdict

    return judges


def min_p_on_bonus(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
    """vLLM #42744."""
    floor = logits[-1].max() + request.params.temperature * np.log(request.params.min_p)
    bonus = np.where(logits[-1] < floor, -np.inf, logits[-1])
    view = with_params(request, min_p=0)
    return judge(view, draft, np.vstack([logits[:-1], bonus]).astype(np.float32), mode)


def bias_on_bonus(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
    """The logit bias reaches the last row alone."""
    biased = logits.copy()
    for token, bias in request.params.logit_bias.items():
        biased[-1, token] += bias
    return judge(with_params(request, logit_bias={}), draft, biased, mode)
