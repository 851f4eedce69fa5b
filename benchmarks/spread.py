"""What repetitions of a measurement differed by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The least, the median and the most."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), median(values), max(values))

    def __format__(self, form: str) -> str:
        return f"{self.median:{form}} ({self.min:{form}}–{self.max:{form}})"
