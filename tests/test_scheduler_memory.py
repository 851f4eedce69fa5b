"""Who gives way when there are too few pages: a scheduler over a memory of plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from surefoot.scheduler import Limits, Scheduler, Slot


@dataclass(eq=False)
class Job:
    """prompt, output: tokens, of the latter those it will have in the end. draft: their number in each of its
    drafts, none of which is accepted."""

    name: str
    prompt: int
    output: int
    draft: int = 0
    every_row: bool = False
    written: int = 0
    computed: int = 0

    @property
    def prompt_left(self) -> int:
        return self.prompt + self.written - bool(self.written) - self.computed

    @property
    def done(self) -> bool:
        return self.written == self.output


class Rows:
    """Room for so many rows; one row is a page."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: dict[str, Job] = {}
        self.reserved: dict[str, int] = {}
        self.gave_up: list[str] = []

    @property
    def left(self) -> int:
        return self.room - sum(job.computed for job in self.held.values()) - sum(self.reserved.values())

    def begin_round(self) -> None:
        self.reserved.clear()

    def admit(self, job: Job) -> bool:
        if self.held and self.left < job.prompt + job.written:
            return False
        self.held[job.name] = job
        return True

    def reserve(self, job: Job, rows: int) -> bool:
        if rows > self.left:
            return False
        self.reserved[job.name] = rows
        return True

    def give_up(self, job: Job) -> None:
        del self.held[job.name]
        self.reserved.pop(job.name, None)
        job.computed = 0
        self.gave_up.append(job.name)


class World:
    def __init__(self, room: int, limits: Limits) -> None:
        self.memory, self.limits = Rows(room), limits
        self.scheduler: Scheduler[Job] = Scheduler(limits, self.memory)
        self.over: list[str] = []

    def round(self) -> list[Slot[Job]]:
        before = list(self.scheduler.running)
        self.memory.gave_up.clear()
        slots = self.scheduler.schedule(lambda job, load: job.draft)
        given = list(self.memory.gave_up)
        # whoever gave way was the youngest, one after the other
        assert given == [job.name for job in reversed(before)][: len(given)]
        assert sum(slot.rows for slot in slots) <= self.limits.max_rows
        assert {slot.job.name: slot.rows for slot in slots} == self.memory.reserved
        for slot in slots:
            self.play(slot)
        return slots

    def play(self, slot: Slot[Job]) -> None:
        job = slot.job
        chooses = not slot.prompt_rows or (slot.prompt_rows == job.prompt_left and not job.written)
        job.computed += slot.prompt_rows or 1
        job.written += chooses
        if job.done:
            self.scheduler.remove(job)
            del self.memory.held[job.name]
            self.over.append(job.name)


def limits(**changes: int) -> Limits:
    return Limits(**{"max_requests": 8, "max_rows": 64, "prompt_rows": 64, "logit_rows": 64, **changes})


def names(slots: list[Slot[Job]]) -> list[tuple[str, int]]:
    return [(slot.job.name, slot.rows) for slot in slots]


def test_the_youngest_gives_way_and_is_the_next_to_come_back() -> None:
    world = World(12, limits())
    a, b, c = Job("a", 4, 9), Job("b", 4, 3), Job("c", 2, 2)
    world.scheduler.add(a, b, c)
    assert names(world.round()) == [("a", 4), ("b", 4), ("c", 2)]
    assert names(world.round()) == [("a", 1), ("b", 1)]  # the youngest waits, with what it has
    assert names(world.round()) == [("a", 1), ("b", 1)]
    assert (world.memory.gave_up, list(world.scheduler.waiting)) == (["c"], [c])
    assert world.over == ["b"]
    assert names(world.round()) == [("a", 1), ("c", 2)]


def test_nobody_new_is_admitted_while_pages_are_short() -> None:
    world = World(9, limits())
    world.scheduler.add(Job("a", 4, 9, draft=2), Job("b", 4, 9), Job("c", 1, 9))
    assert names(world.round()) == [("a", 4), ("b", 4), ("c", 1)]
    assert names(world.round()) == [("a", 3)]
    assert world.memory.gave_up == ["c", "b"]
    assert [job.name for job in world.scheduler.waiting] == ["b", "c"]


def test_a_request_that_decodes_is_never_preempted_for_a_younger_prompt() -> None:
    world = World(10, limits())
    world.scheduler.add(Job("a", 4, 5), Job("b", 5, 5))
    world.round()
    for _ in range(4):
        assert ("a", 1) in names(world.round())
    assert world.over[0] == "a"


def test_an_older_prompt_takes_the_pages_of_a_younger_one_that_decodes() -> None:
    world = World(14, limits(max_rows=4, prompt_rows=4))
    world.scheduler.add(Job("old", 13, 1))
    world.round()
    young = Job("young", 1, 9)
    world.memory.room = 99
    world.scheduler.add(young)
    world.round()
    while not world.over:
        world.memory.room = 14
        world.round()
    assert world.over[0] == "old"


def test_while_somebody_decodes_prompts_get_so_many_rows() -> None:
    world = World(999, limits(prompt_rows=5))
    world.scheduler.add(Job("a", 40, 9), Job("b", 40, 9))
    assert names(world.round()) == [("a", 40), ("b", 24)]  # nobody decodes yet
    assert names(world.round()) == [("a", 1), ("b", 5)]
    assert names(world.round()) == [("a", 1), ("b", 5)]


def test_prompts_whose_logits_are_all_wanted_share_what_is_bearable() -> None:
    world = World(999, limits(logit_rows=7))
    world.scheduler.add(Job("a", 10, 1, every_row=True), Job("b", 10, 1, every_row=True), Job("c", 10, 1))
    assert names(world.round()) == [("a", 7)]  # "b" has its turn before "c"
    assert names(world.round()) == [("a", 3), ("b", 4), ("c", 10)]


def test_one_that_cannot_go_on_though_it_is_alone_is_left_to_the_caller() -> None:
    world = World(3, limits())
    world.scheduler.add(Job("a", 5, 5))
    assert world.scheduler.schedule(lambda job, load: 0) == []
    assert [job.name for job in (*world.scheduler.running, *world.scheduler.waiting)] == ["a"]


@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=9
    ),
    room=st.integers(32, 80),  # any of them fits alone
    max_rows=st.integers(5, 40),
    max_requests=st.integers(1, 9),
    prompt_rows=st.integers(1, 9),
    arrivals=st.integers(1, 4),
)
def test_everyone_is_served_whatever_the_room(
    jobs: list[tuple[int, int, int]],
    room: int,
    max_rows: int,
    max_requests: int,
    prompt_rows: int,
    arrivals: int,
) -> None:
    world = World(room, limits(max_requests=max_requests, max_rows=max_rows, prompt_rows=prompt_rows))
    left = [Job(str(number), *numbers) for number, numbers in enumerate(jobs)]
    number_of_rounds = 0
    while left or len(world.scheduler):
        for job in left[:arrivals] if number_of_rounds % 3 == 0 else ():
            world.scheduler.add(job)
            left.remove(job)
        oldest = next(iter(world.scheduler.running), None)
        slots = world.round()
        assert slots or not len(world.scheduler)
        assert len(slots) <= max_requests
        if oldest is not None:
            assert oldest.name not in world.memory.gave_up
        assert sum(job.computed for job in world.memory.held.values()) <= room
        number_of_rounds += 1
        assert number_of_rounds < 3000
    assert len(world.over) == len(jobs)


def test_rows_that_went_to_one_without_pages_go_to_the_oldest() -> None:
    """The youngest has the first turn, takes the rows of the oldest with it, and gets no pages."""
    world = World(11, limits(max_rows=4))
    old, young = Job("old", 2, 5, draft=2), Job("young", 2, 5, draft=2)
    world.scheduler.add(old, young)
    assert names(world.round()) == [("old", 2), ("young", 2)]
    assert names(world.round()) == [("old", 3)]
    world.memory.room = 6
    assert names(world.round()) == [("old", 3)]


def test_rows_that_went_to_a_draft_without_pages_go_to_the_oldest_prompt() -> None:
    world = World(9, limits(max_rows=4, prompt_rows=1))
    old, young = Job("old", 8, 1), Job("young", 5, 5, draft=3)
    old.computed, young.computed, young.written = 1, 5, 1
    for job in (old, young):
        world.memory.held[job.name] = job
        world.scheduler._running.append(job)
        world.scheduler._turns.append(job)
    assert names(world.round()) == [("old", 4)]
    assert world.memory.gave_up == ["young"]
