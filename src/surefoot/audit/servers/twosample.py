"""Whether two heaps of texts come from one source, when nothing but the texts is known.

Both tests are one quadratic form sᵀKs, summed over prompts: K holds the likeness of every two texts of a
prompt, and s is positive for one heap's texts and negative for the other's. For first words K is 1 / count
where the words are equal, which makes the form Pearson's two-sample chi-square; for the rest K is the share
of characters that agree place by place, which makes it the squared maximum mean discrepancy (Gretton et al.,
JMLR 13, 2012) with a string kernel, as Gao et al. 2410.20247 test models. Whose text is whose is then
shuffled within every prompt: how often a shuffled form is as large is the p-value, and needs no theory.

No model and no server in here: texts are arguments.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Gram = NDArray[np.float64]
Kernel = Callable[[Sequence[str]], Gram]
Heaps = Sequence[tuple[Sequence[str], Sequence[str]]]  # per prompt: one side's texts, the other's

_WORD = re.compile(r"\s*\S+\s?")
_LONGEST = 1000  # characters
_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
_TRIALS = 60
_SHUFFLES = 20  # expected above the limit
POWER = 0.9


@dataclass(frozen=True, slots=True)
class TwoSample:
    """p: the p-value. statistic: the form. detectable: the smallest share of foreign texts on one side, of
    those tried, that was found in `POWER` of all trials; None where none was. texts: compared, both sides.
    """

    p: float
    statistic: float
    detectable: float | None
    texts: int


def first_word(text: str) -> str:
    """With the space around it, so that a text that ends there differs from one that goes on."""
    found = _WORD.match(text)
    return "" if found is None else found[0]


def after_first_word(text: str) -> str:
    return text[len(first_word(text)) :]


def word_kernel(texts: Sequence[str]) -> Gram:
    """[n, n]: 1 / count of the first word, for texts that have it in common."""
    _, words, counts = np.unique(
        np.array([first_word(text) for text in texts]), return_inverse=True, return_counts=True
    )
    return np.asarray((words[:, None] == words[None]) / counts[words], dtype=np.float64)


def string_kernel(texts: Sequence[str]) -> Gram:
    """[n, n]: the share of places at which both have the same character behind the first word."""
    rests = [after_first_word(text)[:_LONGEST] for text in texts]
    length = max(1, *(len(rest) for rest in rests))
    # An array of texts is one of code points, with 0 behind each end, where nothing agrees.
    letters = np.array(rests, dtype=f"U{length}").view(np.uint32).reshape(len(rests), length)
    same = [((letters == row) & (row > 0)).sum(axis=1) for row in letters]
    return np.asarray(same, dtype=np.float64) / length


def two_sample(
    heaps: Heaps, kernel: Kernel, alpha: float, rng: np.random.Generator, foreign: Sequence[str] = ()
) -> TwoSample:
    """The permutation test, and its power. Prompts that lack texts on one side are left out.

    alpha: the p-value that would show a difference; the number of shuffles follows from it. foreign: texts
    that should be found when they stand in for one side's, for the power; without any it isn't computed.
    """
    heaps = [(list(one), list(other)) for one, other in heaps if one and other]
    shuffles = int(np.ceil(_SHUFFLES / alpha))
    statistic, shuffled = _forms(heaps, kernel, shuffles, rng)
    # Equal forms, which rounding may part, count as being as large.
    p = (1 + int((shuffled >= statistic - 1e-9 * abs(statistic)).sum())) / (1 + shuffles)
    detectable = _detectable(heaps, kernel, alpha, rng, foreign) if heaps and foreign else None
    return TwoSample(p, statistic, detectable, sum(len(one) + len(other) for one, other in heaps))


def _forms(
    heaps: Heaps, kernel: Kernel, shuffles: int, rng: np.random.Generator
) -> tuple[float, NDArray[np.float64]]:
    """The form, and the forms with the sides shuffled so many times."""
    form, shuffled = 0.0, np.zeros(shuffles)
    for one, other in heaps:
        gram, sign = kernel([*one, *other]), _signs(len(one), len(other))
        form += float(sign @ gram @ sign)
        if shuffles:
            rows = rng.permuted(np.tile(sign, (shuffles, 1)), axis=1)
            shuffled += ((rows @ gram) * rows).sum(axis=1)
    return form, shuffled


def _signs(one: int, other: int) -> NDArray[np.float64]:
    """√(other/one) for one side's texts, −√(one/other) for the other's: they sum to 0."""
    ratio = np.sqrt(other / one)
    return np.concatenate([np.full(one, ratio), np.full(other, -1 / ratio)])


def _detectable(
    heaps: Heaps, kernel: Kernel, alpha: float, rng: np.random.Generator, foreign: Sequence[str]
) -> float | None:
    """Puts foreign texts among real ones, shuffled so that nothing else differs, and looks.

    A larger share is found more often, so that halving finds the smallest.
    """
    seen = bisect_left(_SHARES, True, key=lambda share: _is_found(heaps, kernel, alpha, rng, foreign, share))
    return _SHARES[seen] if seen < len(_SHARES) else None


def _is_found(
    heaps: Heaps, kernel: Kernel, alpha: float, rng: np.random.Generator, foreign: Sequence[str], share: float
) -> bool:
    """Whether nine forms of ten exceed the limit that shuffles of such heaps give."""
    _, shuffled = _forms(_mixed(heaps, rng, foreign, share), kernel, int(np.ceil(_SHUFFLES / alpha)), rng)
    limit = np.quantile(shuffled, 1 - alpha)
    missed = 0
    for _ in range(_TRIALS):
        form, _ = _forms(_mixed(heaps, rng, foreign, share), kernel, 0, rng)
        missed += int(form <= limit)
        if missed > (1 - POWER) * _TRIALS:
            return False
    return True


def _mixed(heaps: Heaps, rng: np.random.Generator, foreign: Sequence[str], share: float) -> Heaps:
    """The same texts in other places, and foreign ones for that share of the other side's."""
    mixed = []
    for one, other in heaps:
        texts = [*one, *other]
        texts = [texts[int(at)] for at in rng.permutation(len(texts))]
        for at in range(len(one), len(texts)):
            if rng.random() < share:
                texts[at] = foreign[int(rng.integers(len(foreign)))]
        mixed.append((texts[: len(one)], texts[len(one) :]))
    return mixed
