"""Who takes part in a round, and with how many rows. Knows no torch, no model and no tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Job(Protocol):
    """What the scheduler asks of a request."""

    @property
    def prompt_left(self) -> int:
        """Rows to compute before it decodes; 0 once it does."""

    @property
    def every_row(self) -> bool:
        """Whether the logits of all its prompt rows are wanted."""


J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)


class Memory(Protocol[J_contra]):
    """Where requests keep their rows."""

    def begin_round(self) -> None:
        """Nothing is reserved yet."""

    def admit(self, job: J_contra) -> bool:
        """Gives a waiting request a place, with what is known of its prompt; False when there is no room. It
        has room for one that would run alone."""

    def reserve(self, job: J_contra, rows: int) -> bool:
        """Sets pages aside for so many rows of a running request in this round; False, and nothing changed,
        when there aren't enough."""

    def give_up(self, job: J_contra) -> None:
        """Takes a running request's place away: it will have to be admitted anew."""


@dataclass(frozen=True, slots=True)
class Slot(Generic[J]):
    """One request's part of a round: `prompt_rows` of its prompt, or, when that is 0, its last token and
    a draft of at most `budget` tokens."""

    job: J
    prompt_rows: int
    budget: int

    @property
    def rows(self) -> int:
        """The most rows that it takes."""
        return self.prompt_rows or 1 + self.budget


@dataclass(frozen=True, slots=True)
class Limits:
    """max_requests: in flight at once; the rest wait. max_rows: of a pass. prompt_rows: of these, rows of
    prompts while others decode. logit_rows: rows of prompts whose logits are wanted."""

    max_requests: int
    max_rows: int
    prompt_rows: int
    logit_rows: int


class Scheduler(Generic[J]):
    """First come, first served; who came first is who was admitted first.

    Rows go to requests that decode first, each with its whole draft: a length trimmed to fit the load would
    be one that looks at the neighbours. One that doesn't fit waits a round and is then first. What rows are
    left go to prompts, oldest first, in chunks.

    Pages go to the oldest first, whatever it does. When there aren't enough the youngest is preempted, and is
    then the next to be admitted; one that is the youngest itself waits with what it has. So the oldest always
    goes on.
    """

    def __init__(self, limits: Limits, memory: Memory[J]) -> None:
        self._limits, self._memory = limits, memory
        self._waiting: deque[J] = deque()
        self._running: list[J] = []  # in the order of admission
        self._turns: list[J] = []  # the same, in the order in which they get rows

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> Sequence[J]:
        """In flight, the oldest first."""
        return self._running

    @property
    def waiting(self) -> Sequence[J]:
        """Not in flight, the next one first."""
        return self._waiting

    def add(self, *jobs: J, first: bool = False) -> None:
        """Requests that wait, in this order. first: before all others."""
        if first:
            self._waiting.extendleft(reversed(jobs))
        else:
            self._waiting.extend(jobs)

    def remove(self, job: J) -> None:
        """Forgets a request, in flight or waiting; nothing happens when it is neither."""
        for queue in (self._running, self._waiting, self._turns):
            if job in queue:
                queue.remove(job)

    def schedule(self, budget: Callable[[J, int], int]) -> list[Slot[J]]:
        """The slots of the next round. Empty when nothing is left to do, or when the oldest request doesn't
        get the pages that it needs though it has the memory to itself.

        budget: the draft length of a request, given how many are running.
        """
        self._memory.begin_round()
        room = _Room(self._limits)
        decoding = self._decoding(budget, room)
        prompts = [slot for job in self._running if job.prompt_left and (slot := room.prompt(job))]
        slots, short = self._reserved([*decoding, *prompts])
        if not short:
            return slots + self._admitted(budget, room)
        if not slots:  # whoever had the rows got no pages
            oldest = self._slot(self._running[0], budget, _Room(self._limits))
            slots, _ = self._reserved([oldest] if oldest else [])
        return slots

    def _decoding(self, budget: Callable[[J, int], int], room: _Room) -> list[Slot[J]]:
        """Those that decode and fit; those that don't have the first turn next time."""
        slots: list[Slot[J]] = []
        passed_over: list[J] = []
        for job in self._turns:
            if job.prompt_left:
                continue
            slot = self._slot(job, budget, room)
            if slot is None:
                passed_over.append(job)
            else:
                slots.append(slot)
        late = {id(job) for job in passed_over}
        self._turns = passed_over + [job for job in self._turns if id(job) not in late]
        return slots

    def _slot(self, job: J, budget: Callable[[J, int], int], room: _Room) -> Slot[J] | None:
        """What of a job fits into a round."""
        return room.prompt(job) if job.prompt_left else room.draft(job, budget(job, len(self._running)))

    def _reserved(self, asked: list[Slot[J]]) -> tuple[list[Slot[J]], bool]:
        """The slots that get their pages, and whether there were too few for all."""
        ages = {id(job): age for age, job in enumerate(self._running)}
        by_age = sorted(asked, key=lambda slot: ages[id(slot.job)])
        got: set[int] = set()
        short = False
        while by_age:
            slot = by_age.pop(0)
            while not self._memory.reserve(slot.job, slot.rows):
                short = True
                if self._running[-1] is slot.job:
                    break
                self._preempt()
                by_age = [later for later in by_age if any(later.job is job for job in self._running)]
            else:
                got.add(id(slot.job))
        return [slot for slot in asked if id(slot.job) in got], short

    def _preempt(self) -> None:
        job = self._running[-1]
        self.remove(job)
        self._memory.give_up(job)
        self._waiting.appendleft(job)

    def _admitted(self, budget: Callable[[J, int], int], room: _Room) -> list[Slot[J]]:
        """Slots for requests that waited, as long as there is room for one more and rows for it."""
        slots: list[Slot[J]] = []
        while self._waiting and len(self._running) < self._limits.max_requests and room.left:
            job = self._waiting[0]
            if not self._memory.admit(job):
                break
            self._waiting.popleft()
            self._running.append(job)
            self._turns.append(job)
            slot = self._slot(job, budget, room)
            if slot is None:
                break
            if not self._memory.reserve(job, slot.rows):
                self._preempt()
                break
            slots.append(slot)
        return slots


class _Room:
    """The rows that are left of a round."""

    def __init__(self, limits: Limits) -> None:
        self._rows, self._prompt_rows = limits.max_rows, limits.max_rows
        self._limits, self._logit_rows = limits, limits.logit_rows

    @property
    def left(self) -> int:
        """Rows of prompts."""
        return min(self._rows, self._prompt_rows)

    def draft(self, job: J, budget: int) -> Slot[J] | None:
        """A draft as long as that, or nothing."""
        if 1 + budget > self._rows:
            return None
        self._rows -= 1 + budget
        self._prompt_rows = min(self._prompt_rows, self._limits.prompt_rows)
        return Slot(job, prompt_rows=0, budget=budget)

    def prompt(self, job: J) -> Slot[J] | None:
        """As much of a prompt as fits, if anything does."""
        rows = min(job.prompt_left, self.left)
        if job.every_row:
            rows = min(rows, self._logit_rows)
            self._logit_rows -= rows
        if not rows:
            return None
        self._rows -= rows
        self._prompt_rows -= rows
        return Slot(job, prompt_rows=rows, budget=0)
