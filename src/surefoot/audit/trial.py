"""One run of the speculated engine: how it is set, and who takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from surefoot.audit.budget import Budget
from surefoot.audit.subject import Plan, Subject
from surefoot.audit.words import counted
from surefoot.drafters.base import Drafter
from surefoot.results import Result
from surefoot.types import SamplingParams, SurefootError

MAX_SEED = 2**63


@dataclass(frozen=True, slots=True)
class Setting:
    """What may not matter: draft length, companions of a request, rows of a pass."""

    draft_tokens: int
    companions: int
    max_rows: int

    def __str__(self) -> str:
        lengths = counted(self.draft_tokens, "draft token"), counted(self.companions, "companion")
        return f"{', '.join(lengths)}, passes of at most {self.max_rows} rows"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. prompt: its number in the plan, from 0. ids: its tokens. params: its seed included."""

    prompt: int
    ids: tuple[int, ...]
    params: SamplingParams


def settings(plan: Plan, generator: np.random.Generator) -> Iterator[Setting]:
    """Every combination in random order, then every one in another order, and so on without end.

    Raises SurefootError when no pass is large enough for any draft.
    """
    every = [
        Setting(draft_tokens, companions, max_rows)
        for draft_tokens, companions, max_rows in product(plan.draft_tokens, plan.companions, plan.chunks)
        if draft_tokens < max_rows
    ]
    if not every:
        raise SurefootError(
            f"draft_tokens: {min(plan.draft_tokens, default=0)} are too many for passes of "
            f"{max(plan.chunks, default=0)} rows, the last committed token's included"
        )
    while True:
        for number in generator.permutation(len(every)):
            yield every[number]


class Pace:
    """Keeps the last trial from going on long after a budget is used: it gets fewer companions.

    companions: that a request may have.
    """

    def __init__(self, budget: Budget, companions: Sequence[int]) -> None:
        self._budget, self._companions = budget, sorted(companions)
        self._began, self._requests = budget.used, 0

    def cut(self, setting: Setting) -> Setting:
        """With as many companions as what is left is enough for, by what requests took so far; with the
        fewest as long as that isn't known."""
        used = self._budget.used - self._began
        affordable = (1 - self._budget.used) * self._requests / used if used > 0 else 0.0
        fitting = [number for number in self._companions if number < affordable]
        most = max(fitting, default=self._companions[0])
        return replace(setting, companions=min(setting.companions, most))

    def add(self, requests: int) -> None:
        """So many were answered."""
        self._requests += requests


def speculate(
    subject: Subject, drafter: Drafter, setting: Setting, requests: Sequence[Asked]
) -> list[Result]:
    """Answers some requests together, in a new engine.

    It has room for all but a quarter of them: the last ones wait, and join a batch that is under way in the
    place of one that ended.
    """
    with subject.speculated(
        drafter,
        draft_tokens=setting.draft_tokens,
        max_rows=setting.max_rows,
        max_requests=len(requests) - len(requests) // 4,
    ) as engine:
        return engine.generate([request.ids for request in requests], [r.params for r in requests])


def raised(error: Exception) -> str:
    """An exception in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True, slots=True)
class Reference:
    """A request, and what plain decoding answers."""

    asked: Asked
    result: Result


@dataclass(frozen=True, slots=True)
class Trial:
    """Some requests, together in one speculated engine."""

    setting: Setting
    references: tuple[Reference, ...]

    def run(self, subject: Subject) -> list[Result]:
        asked = [reference.asked for reference in self.references]
        return speculate(subject, subject.drafter(), self.setting, asked)
