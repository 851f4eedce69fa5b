"""Who takes part in a round, and with how many rows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.scheduler import Limits, Scheduler, Slot


@dataclass(eq=False)
class Fake:
    name: str
    prompt_left: int = 0
    draft: int = 0
    every_row: bool = False


class Endless:
    """Room for everyone."""

    def begin_round(self) -> None:
        pass

    def admit(self, job: Fake) -> bool:
        return True

    def reserve(self, job: Fake, rows: int) -> bool:
        return True

    def give_up(self, job: Fake) -> None:
        raise AssertionError(f"{job.name} was preempted")


def scheduling(
    max_requests: int, max_rows: int, prompt_rows: int = 99, logit_rows: int = 99
) -> Scheduler[Fake]:
    return Scheduler(Limits(max_requests, max_rows, prompt_rows, logit_rows), Endless())


def plan(scheduler: Scheduler[Fake]) -> list[tuple[str, int, int]]:
    return [(slot.job.name, slot.prompt_rows, slot.budget) for slot in run(scheduler)]


def run(scheduler: Scheduler[Fake]) -> list[Slot[Fake]]:
    """One round: prompts move on."""
    slots = scheduler.schedule(lambda job, load: job.draft)
    for slot in slots:
        slot.job.prompt_left -= slot.prompt_rows
    return slots


def test_a_prompt_is_computed_in_chunks_and_drafts_come_after_the_last_one() -> None:
    scheduler = scheduling(max_requests=4, max_rows=4)
    scheduler.add(Fake("a", prompt_left=9, draft=3))
    assert [plan(scheduler) for _ in range(4)] == [
        [("a", 4, 0)],
        [("a", 4, 0)],
        [("a", 1, 0)],
        [("a", 0, 3)],
    ]


def test_decoding_comes_first_and_prompts_fill_what_is_left() -> None:
    scheduler = scheduling(max_requests=4, max_rows=10)
    scheduler.add(Fake("decoding", draft=3))
    assert plan(scheduler) == [("decoding", 0, 3)]
    scheduler.add(Fake("long", prompt_left=20), Fake("next", prompt_left=2))
    assert plan(scheduler) == [("decoding", 0, 3), ("long", 6, 0)]


def test_requests_beyond_the_limit_wait_their_turn() -> None:
    scheduler = scheduling(max_requests=2, max_rows=10)
    jobs = [Fake(name) for name in "abc"]
    for job in jobs:
        scheduler.add(job)
    assert plan(scheduler) == [("a", 0, 0), ("b", 0, 0)]
    scheduler.remove(jobs[0])
    assert plan(scheduler) == [("b", 0, 0), ("c", 0, 0)]
    scheduler.remove(jobs[1])
    scheduler.remove(jobs[1])  # twice does no harm
    assert len(scheduler) == 1


def test_a_draft_is_never_trimmed_to_the_load_and_who_waited_goes_first() -> None:
    scheduler = scheduling(max_requests=8, max_rows=10)
    for name in "abc":
        scheduler.add(Fake(name, prompt_left=1, draft=4))
    assert plan(scheduler) == [("a", 1, 0), ("b", 1, 0), ("c", 1, 0)]
    assert plan(scheduler) == [("a", 0, 4), ("b", 0, 4)]
    assert plan(scheduler) == [("c", 0, 4), ("a", 0, 4)]
    assert plan(scheduler) == [("b", 0, 4), ("c", 0, 4)]


@pytest.mark.parametrize("max_rows", [5, 7, 16])
def test_nobody_starves_beside_larger_or_smaller_drafts(max_rows: int) -> None:
    scheduler = scheduling(max_requests=6, max_rows=max_rows)
    jobs = [Fake(str(i), prompt_left=1, draft=i % 5) for i in range(6)]
    for job in jobs:
        scheduler.add(job)
    turns = [slot.job.name for _ in range(60) for slot in run(scheduler)]
    assert min(turns.count(job.name) for job in jobs) >= 60 // len(jobs)


@given(
    jobs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7)), min_size=1, max_size=12),
    max_rows=st.integers(8, 64),
    max_requests=st.integers(1, 12),
)
def test_a_round_keeps_its_limits_and_is_never_empty(
    jobs: list[tuple[int, int]], max_rows: int, max_requests: int
) -> None:
    scheduler = scheduling(max_requests, max_rows)
    for i, (prompt, draft) in enumerate(jobs):
        scheduler.add(Fake(str(i), prompt, draft))
    for _ in range(20):
        slots = scheduler.schedule(lambda job, load: job.draft)
        assert slots
        assert len(slots) <= max_requests
        assert sum(slot.prompt_rows or 1 + slot.budget for slot in slots) <= max_rows
        for slot in slots:
            assert slot.prompt_rows <= slot.job.prompt_left
            assert bool(slot.prompt_rows) == bool(slot.job.prompt_left)
            assert slot.budget == (0 if slot.prompt_rows else slot.job.draft)
            slot.job.prompt_left -= slot.prompt_rows
