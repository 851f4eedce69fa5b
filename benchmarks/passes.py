"""How long one pass of a model takes, by the number of rows in it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from statistics import quantiles

from surefoot.models.base import Model, Segment

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 300


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(*quantiles(values, n=4, method="inclusive")) if len(values) > 1 else cls(*values * 3)

    def __format__(self, form: str) -> str:
        return f"{self.median:{form}} ({self.low:{form}}–{self.high:{form}})"


def pass_times(model: Model, vocab_size: int, repetitions: int) -> dict[int, Spread]:
    """Milliseconds of a pass over so many rows of one sequence, all of whose logits are wanted.

    The row counts take turns, so that what else the machine does meets all of them alike.
    """
    draw = random.Random(0)
    tokens = [draw.randrange(vocab_size) for _ in range(CONTEXT + max(ROWS))]
    seq = 1 << 40  # out of the way of any engine's own numbers
    model.cache.add(seq)
    model.forward([Segment(seq, tokens[:CONTEXT], num_wanted=0)])
    taken: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for repetition in range(repetitions + 1):
        for rows in ROWS:
            segment = Segment(seq, tokens[CONTEXT : CONTEXT + rows], num_wanted=rows)
            began = time.perf_counter()
            model.forward([segment])
            if repetition:  # the first turn warms up
                taken[rows].append(1000 * (time.perf_counter() - began))
            model.cache.truncate(seq, CONTEXT)
    model.cache.free(seq)
    return {rows: Spread.of(values) for rows, values in taken.items()}
