"""Chance as a script: a stand-in for `numpy.random.Generator` that takes every branch, one play each.

What it draws comes from `exact.Chances`, so that `exact.outcomes` can go through all a function makes of it.
Its uniforms are numbers of which only the comparisons so far are known, and the probabilities it is used with
are fractions that stay exact beside floats. Whatever would need a uniform's own value raises `NotEnumerable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Self

import numpy as np

from surefoot.exact import Chances, ScriptedUniform

CALLS = 1000  # of one play; a loop that chance alone ends would never come to its end
_SLACK = Fraction(1, 10**8)  # numpy's own, for probabilities that should sum to 1


class NotEnumerable(Exception):  # noqa: N818 - says what it is, and is no fault of anyone's
    """Something was done with a number that only its value could answer."""


def _exactly(name: str) -> Any:
    operate = getattr(Fraction, name)

    def method(self: Fraction, *others: Any) -> Any:
        result = operate(self, *(Fraction(other) if isinstance(other, float) else other for other in others))
        return Exact(result) if isinstance(result, Fraction) else result

    return method


class Exact(Fraction):
    """A fraction that stays one beside floats: they are fractions as well, and nothing is rounded."""

    __add__, __radd__ = _exactly("__add__"), _exactly("__radd__")
    __sub__, __rsub__ = _exactly("__sub__"), _exactly("__rsub__")
    __mul__, __rmul__ = _exactly("__mul__"), _exactly("__rmul__")
    __truediv__, __rtruediv__ = _exactly("__truediv__"), _exactly("__rtruediv__")
    __neg__, __pos__, __abs__ = _exactly("__neg__"), _exactly("__pos__"), _exactly("__abs__")

    def __float__(self) -> float:
        raise NotEnumerable("a probability was made a float")


class Number:
    """factor · u + shift, for a uniform u in (0, 1) of which only comparisons are known.

    An array does its arithmetic and comparisons item by item, and gets back to the methods here.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, uniform: ScriptedUniform, factor: Fraction, shift: Fraction) -> None:
        self._uniform, self._factor, self._shift = uniform, factor, shift

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, np.ndarray) else self._changed(_known(other), 0)

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, np.ndarray) else self._changed(1 / _known(other), 0)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        if isinstance(other, Number) and other._uniform is self._uniform:
            return _number(self._uniform, self._factor + other._factor, self._shift + other._shift)
        return self._changed(1, _known(other))

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, np.ndarray) else self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self._changed(-1, 0)

    __rmul__, __radd__ = __mul__, __add__

    def __lt__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        difference = self - other
        if not isinstance(difference, Number):
            return difference < 0
        below = difference._uniform < -difference._shift / difference._factor
        return below if difference._factor > 0 else not below

    def __gt__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, np.ndarray) else -self < -other

    __le__, __ge__ = __lt__, __gt__  # a single point has no probability

    def __eq__(self, other: object) -> bool:
        return NotImplemented if isinstance(other, np.ndarray) else False

    def _changed(self, factor: Fraction | int, shift: Fraction | int) -> Any:
        return _number(self._uniform, self._factor * factor, self._shift * factor + shift)

    def _valued(self, *_: Any) -> Any:
        raise NotEnumerable("the value of a uniform was asked for")

    __float__ = __int__ = __index__ = __bool__ = __round__ = __floor__ = __trunc__ = _valued
    __rtruediv__ = __pow__ = __rpow__ = __mod__ = __floordiv__ = __abs__ = _valued


def _number(uniform: ScriptedUniform, factor: Fraction, shift: Fraction) -> Any:
    return Number(uniform, factor, shift) if factor else Exact(shift)


def _known(value: Any) -> Fraction:
    if isinstance(value, Number):
        raise NotEnumerable("two uniforms were compared or combined")
    return Fraction(value)


class ScriptedGenerator:
    """Has the methods of `numpy.random.Generator` that can be enumerated.

    chances: where its draws come from. uniforms_at_zero: every uniform is exactly 0, the one end that
    `random()` includes. Any other method raises NotEnumerable, and so does the thousandth call.
    """

    def __init__(self, chances: Chances, *, uniforms_at_zero: bool = False) -> None:
        self._chances = chances
        self._uniforms_at_zero = uniforms_at_zero
        self._calls = 0

    def random(self, size: int | Sequence[int] | None = None) -> Any:
        return self.uniform(size=size)

    def uniform(self, low: Any = 0, high: Any = 1, size: int | Sequence[int] | None = None) -> Any:
        return self._sized(size, lambda: low + (high - low) * self._uniform())

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: int | Sequence[int] | None = None,
        *,
        endpoint: bool = False,
    ) -> Any:
        start, end = (0, low) if high is None else (low, high)
        count = end - start + endpoint
        return self._sized(size, lambda: start + self._pick([Fraction(1, count)] * count))

    def choice(
        self,
        a: Any,
        size: int | Sequence[int] | None = None,
        replace: bool = True,
        p: Any = None,
    ) -> Any:
        items = range(a) if isinstance(a, (int, np.integer)) else a
        weights = [Fraction(1, len(items))] * len(items) if p is None else list(map(_known, p))
        total = sum(weights, Fraction(0))
        if len(weights) != len(items):
            raise ValueError(f"{len(weights)} probabilities for {len(items)} items")
        if min(weights) < 0 or abs(total - 1) > _SLACK:
            raise ValueError(f"probabilities {', '.join(map(str, weights))} are no distribution")
        if not replace and size is not None and math.prod(np.atleast_1d(size)) > 1:
            raise NotEnumerable("several items were drawn without replacement")
        shares = [weight / total for weight in weights]
        return self._sized(size, lambda: items[self._pick(shares)])

    def multinomial(self, n: int, pvals: Any, size: None = None) -> Any:
        """One draw only. As numpy's, it gives the last item whatever the others leave."""
        weights = list(map(_known, pvals))
        rest = 1 - sum(weights[:-1], Fraction(0))
        if min(weights) < 0 or rest < 0:
            raise ValueError(f"probabilities {', '.join(map(str, weights))} are no distribution")
        if n != 1 or size is not None:
            raise NotEnumerable(f"multinomial was asked for {n} draws, size {size}")
        counts = np.zeros(len(weights), np.int64)
        counts[self._pick([*weights[:-1], rest])] = 1
        return counts

    def __getattr__(self, name: str) -> Any:
        raise NotEnumerable(f"the generator's {name} can't be enumerated")

    def _uniform(self) -> Any:
        self._count()
        if self._uniforms_at_zero:
            return Exact(0)
        return Number(ScriptedUniform(self._chances), Fraction(1), Fraction(0))

    def _pick(self, weights: Sequence[Fraction]) -> int:
        self._count()
        return self._chances.pick(weights)

    def _count(self) -> None:
        self._calls += 1
        if self._calls > CALLS:
            raise NotEnumerable(f"more than {CALLS} draws were made for one output")

    def _sized(self, size: int | Sequence[int] | None, draw: Callable[[], Any]) -> Any:
        if size is None:
            return draw()
        shape = tuple(np.atleast_1d(size))
        drawn = [draw() for _ in range(math.prod(shape))]
        whole = all(isinstance(item, (int, np.integer)) for item in drawn)
        array = np.empty(len(drawn), np.int64 if whole else object)
        array[:] = drawn
        return array.reshape(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise NotEnumerable("the generator was copied")
