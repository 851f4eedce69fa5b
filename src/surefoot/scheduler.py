"""Who takes part in a round, and with how many rows. Knows no torch, no model and no tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """What the scheduler asks of a request."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not computed yet; 0 once the request decodes."""


J = TypeVar("J", bound=Job)


@dataclass(frozen=True, slots=True)
class Slot(Generic[J]):
    """One request's part of a round: `prompt_rows` of its prompt, or, when that is 0, its last token and
    a draft of at most `budget` tokens."""

    job: J
    prompt_rows: int
    budget: int


class Scheduler(Generic[J]):
    """First come, first served.

    Requests that decode go first, each with its whole draft: a length trimmed to fit the load would be
    one that looks at the neighbours. One that doesn't fit waits a round and is then first. What rows are
    left go to prompts, oldest first, in chunks.

    max_requests: requests in flight at once; the rest wait. max_rows: rows of a pass.
    """

    def __init__(self, max_requests: int, max_rows: int) -> None:
        self._max_requests = max_requests
        self._max_rows = max_rows
        self._waiting: deque[J] = deque()
        self._running: list[J] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, job: J) -> None:
        self._waiting.append(job)

    def remove(self, job: J) -> None:
        """Forgets a request, in flight or waiting; nothing happens when it is neither."""
        for queue in (self._running, self._waiting):
            if job in queue:
                queue.remove(job)

    def schedule(self, budget: Callable[[J, int], int]) -> list[Slot[J]]:
        """The slots of the next round, empty only when nothing is left to do.

        budget: the draft length of a request, given how many are running.
        """
        while self._waiting and len(self._running) < self._max_requests:
            self._running.append(self._waiting.popleft())
        slots, rows_left = self._decoding(budget)
        for job in self._running:
            rows = min(job.prompt_left, rows_left)
            if rows:
                slots.append(Slot(job, prompt_rows=rows, budget=0))
                rows_left -= rows
        return slots

    def _decoding(self, budget: Callable[[J, int], int]) -> tuple[list[Slot[J]], int]:
        rows_left = self._max_rows
        slots: list[Slot[J]] = []
        passed_over: list[J] = []
        for job in self._running:
            if job.prompt_left:
                continue
            draft = budget(job, len(self._running))
            if 1 + draft > rows_left:
                passed_over.append(job)
                continue
            slots.append(Slot(job, prompt_rows=0, budget=draft))
            rows_left -= 1 + draft
        late = {id(job) for job in passed_over}
        self._running = passed_over + [job for job in self._running if id(job) not in late]
        return slots, rows_left
