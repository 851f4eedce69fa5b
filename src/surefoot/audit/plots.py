"""A curve of evidence as a drawing: coordinates in a box of `WIDTH` by `HEIGHT` pixels, y downwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from surefoot.audit.report import Curve
from surefoot.audit.words import counted, power_of_ten

WIDTH, HEIGHT = 540, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 20, 40  # margins, for what is written beside the axes
DRAWN = 500  # points of a line, about
HOVERED = 80  # places that say their value under the pointer, at most

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Spot:
    """A point that says its value while the pointer is in the strip around it."""

    x: float
    y: float
    left: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """line: the points of an SVG polyline. limit: the height at which a loss is shown."""

    title: str
    line: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    limit: Tick
    spots: tuple[Spot, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def plot(curve: Curve) -> Plot | None:
    """The drawing of a curve; None for one of fewer than two points."""
    points = [point for point in curve.points if math.isfinite(point[1])]
    if len(points) < 2:
        return None
    values = [value for _, value in points]
    x = _Axis(points[0][0], points[-1][0], LEFT, WIDTH - RIGHT)
    low, high = min(0.0, *values), max(curve.limit, *values)
    room = (high - low) * 0.08 or 1.0
    y = _Axis(low - room, high + room, HEIGHT - BOTTOM, TOP)
    return Plot(
        title=curve.title,
        line=" ".join(f"{x(tokens):.1f},{y(value):.1f}" for tokens, value in _thinned(points)),
        x_ticks=tuple(Tick(x(tick), f"{round(tick):,}") for tick in x.ticks(5)),
        y_ticks=tuple(Tick(y(tick), f"{tick:.0f}") for tick in y.ticks(5)),
        limit=Tick(y(curve.limit), power_of_ten(curve.limit)),
        spots=tuple(_spots(points, x, y)),
    )


class _Axis:
    """Numbers from `low` to `high` → pixels from `start` to `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high if high > low else low + 1
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self, most: int) -> list[float]:
        """Whole multiples of 1, 2 or 5 times a power of ten, at most `most` + 1 of them."""
        rough = max((self._high - self._low) / most, 1.0)
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self._low / step)
        return [number * step for number in range(first, math.floor(self._high / step) + 1)]


def _thinned(points: Sequence[Point]) -> Iterator[Point]:
    """Fewer points, with every peak and trough that a drawing could show."""
    size = max(1, 3 * len(points) // DRAWN)
    for start in range(0, len(points), size):
        part = range(start, min(start + size, len(points)))
        kept = {
            part[-1],
            min(part, key=lambda number: points[number][1]),
            max(part, key=lambda number: points[number][1]),
        }
        yield from (points[number] for number in sorted(kept))


def _spots(points: Sequence[Point], x: _Axis, y: _Axis) -> Iterator[Spot]:
    chosen = [points[number] for number in range(0, len(points), math.ceil(len(points) / HOVERED))]
    if chosen[-1] != points[-1]:
        chosen[-1] = points[-1]
    centres = [x(tokens) for tokens, _ in chosen]
    edges = [LEFT, *((left + right) / 2 for left, right in pairwise(centres)), WIDTH - RIGHT]
    for (tokens, value), centre, (left, right) in zip(chosen, centres, pairwise(edges), strict=True):
        label = f"after {counted(tokens, 'token')}: {power_of_ten(value)}"
        yield Spot(round(centre, 1), round(y(value), 1), round(left, 1), round(right - left, 1), label)
