"""The two-sample tests: their forms are the statistics they stand for, and their p-values keep their word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.audit.servers.twosample import (
    Kernel,
    after_first_word,
    first_word,
    string_kernel,
    two_sample,
    word_kernel,
)

WORDS = ("one", "two", "three", "four")
TEXTS = st.lists(st.sampled_from([f"{a} {b}" for a in WORDS for b in WORDS]), min_size=1, max_size=9)


@given(st.text())
def test_a_text_is_its_first_word_and_the_rest(text: str) -> None:
    assert first_word(text) + after_first_word(text) in (text, after_first_word(text))
    if text.strip():
        assert first_word(text).split() == text.split()[:1]


def test_a_word_that_ends_the_text_is_another() -> None:
    assert first_word(" one two") == " one "
    assert first_word(" one") == " one"
    assert first_word("  ") == first_word("") == ""


@given(TEXTS, TEXTS)
def test_the_form_of_first_words_is_pearsons_chi_square(one: list[str], other: list[str]) -> None:
    """Two samples of unequal size: Σ (√(n/m) a − √(m/n) b)² / (a + b) over the words."""
    found = two_sample([(one, other)], word_kernel, 0.5, np.random.default_rng(0)).statistic
    a, b = (Counter(first_word(text) for text in texts) for texts in (one, other))
    ratio = np.sqrt(len(other) / len(one))
    expected = sum((ratio * a[word] - b[word] / ratio) ** 2 / (a[word] + b[word]) for word in {*a, *b})
    assert found == pytest.approx(expected, abs=1e-9)


@given(TEXTS, TEXTS)
def test_the_form_of_the_rest_is_a_squared_discrepancy(one: list[str], other: list[str]) -> None:
    """Mean likeness within each side less that between them, both counted with each text itself."""
    found = two_sample([(one, other)], string_kernel, 0.5, np.random.default_rng(0)).statistic
    length = max(1, *(len(after_first_word(text)) for text in (*one, *other)))

    def likeness(these: Sequence[str], those: Sequence[str]) -> float:
        pairs = [(after_first_word(a), after_first_word(b)) for a in these for b in those]
        return float(np.mean([sum(x == y for x, y in zip(a, b, strict=False)) / length for a, b in pairs]))

    discrepancy = likeness(one, one) + likeness(other, other) - 2 * likeness(one, other)
    assert found == pytest.approx(len(one) * len(other) * discrepancy, abs=1e-9)


def texts(rng: np.random.Generator, number: int, weights: Sequence[float]) -> list[str]:
    """Five words each, drawn with the weights."""
    return [" ".join(rng.choice(WORDS, size=5, p=weights)) for _ in range(number)]


EVEN = (0.25, 0.25, 0.25, 0.25)
KERNELS = [pytest.param(word_kernel, id="first words"), pytest.param(string_kernel, id="the rest")]


@pytest.mark.parametrize("kernel", KERNELS)
def test_alarms_for_one_source_are_as_rare_as_alpha_says(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    alarms = sum(
        two_sample([(texts(rng, 8, EVEN), texts(rng, 4, EVEN)) for _ in range(3)], kernel, 0.1, rng).p <= 0.1
        for _ in range(200)
    )
    assert alarms <= 30  # the upper 1% of a binomial of 200 and .1


@pytest.mark.parametrize("kernel", KERNELS)
def test_another_source_is_found(kernel: Kernel) -> None:
    rng = np.random.default_rng(1)
    other = (0.7, 0.1, 0.1, 0.1)
    heaps = [(texts(rng, 20, EVEN), texts(rng, 10, other)) for _ in range(8)]
    assert two_sample(heaps, kernel, 0.005, rng).p <= 0.005


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_share_that_is_stated_is_found_as_often_as_is_stated(kernel: Kernel) -> None:
    """Foreign texts on one side, of that share; of 60 tests not fewer than the lower 1% of a binomial."""
    rng = np.random.default_rng(2)
    foreign = ["five five five five five five"]

    def heaps(share: float) -> list[tuple[list[str], list[str]]]:
        found = [(texts(rng, 16, EVEN), texts(rng, 8, EVEN)) for _ in range(6)]
        return [
            (one, [foreign[0] if rng.random() < share else text for text in other]) for one, other in found
        ]

    stated = two_sample(heaps(0.0), kernel, 0.05, rng, foreign).detectable
    assert stated is not None
    assert stated < 0.6
    found = sum(two_sample(heaps(stated), kernel, 0.05, rng).p <= 0.05 for _ in range(60))
    assert found >= 47


def test_prompts_without_texts_on_both_sides_are_left_out() -> None:
    rng = np.random.default_rng(3)
    found = two_sample([([], ["a"]), (["a"], [])], word_kernel, 0.05, rng, ["b"])
    assert (found.p, found.texts, found.detectable) == (1.0, 0, None)
