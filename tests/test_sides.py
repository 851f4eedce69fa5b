"""That a difference between us and transformers is laid at the right door."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tests.sides import Side, Sides, account, agree, exact_logits, rounds_to_nearest, their_logits
from tests.tiny import FAMILIES, tiny_model

RIGHT = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
OFF = RIGHT + np.float32(0.005)
SOUND = Sides(Side(RIGHT, RIGHT), Side(RIGHT, RIGHT), RIGHT.astype(np.float64))
LIMIT = 1e-3
DOWN, UP, TO_ZERO = 0x400, 0x800, 0xC00  # as x86 numbers them


def with_side(name: str, side: Side) -> Sides:
    return replace(SOUND, ours=side) if name == "ours" else replace(SOUND, theirs=side)


def test_sound_sides_agree() -> None:
    assert agree(SOUND, LIMIT)


@pytest.mark.parametrize("side", ["ours", "theirs"])
@pytest.mark.parametrize("moved", [Side(OFF, RIGHT), Side(RIGHT, OFF), Side(OFF, OFF)])
def test_a_pass_that_is_off_is_no_agreement(side: str, moved: Side) -> None:
    assert not agree(with_side(side, moved), LIMIT)


def test_ours_must_have_the_same_bits_twice_and_theirs_need_not() -> None:
    nearly = np.nextafter(RIGHT, np.float32(9))
    assert not agree(replace(SOUND, ours=Side(RIGHT, nearly)), LIMIT)
    assert agree(replace(SOUND, theirs=Side(RIGHT, nearly)), LIMIT)


@pytest.mark.parametrize(("side", "other"), [("ours", "theirs"), ("theirs", "ours")])
def test_the_account_names_the_side_that_moved_in_one_pass(side: str, other: str) -> None:
    told = account(with_side(side, Side(OFF, RIGHT)), lambda: SOUND)
    assert f"\n{side}: 0.005, again 0 (other bits), loaded anew 0 (other bits)\n" in told
    assert f"\n{other}: 0, again 0 (the same bits), loaded anew 0 (the same bits)\n" in told
    assert "rounding to nearest" in told


def test_the_account_tells_what_loading_anew_mends() -> None:
    told = account(replace(SOUND, ours=Side(OFF, OFF)), lambda: SOUND)
    assert "ours: 0.005, again 0.005 (the same bits), loaded anew 0 (other bits)" in told


def test_weights_that_transformers_loaded_wrong_are_not_laid_at_our_door() -> None:
    wrong = replace(SOUND, theirs=Side(OFF, OFF), exact=OFF.astype(np.float64))
    assert not agree(wrong, LIMIT)
    told = account(wrong, lambda: SOUND)
    assert "ours: 0, again 0" in told
    assert "theirs: 0.005, again 0.005" in told
    assert "float64 itself moved by 0.005" in told


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_is_float64_in_every_step(family: str) -> None:
    model = tiny_model(family)
    tokens = list(range(3, 40))
    rounded, exact = their_logits(model, tokens), exact_logits(model, tokens)
    assert exact.dtype == np.float64
    assert 0 < np.abs(rounded - exact).max() < 1e-4
    with _rounding(DOWN):  # a step in float32 would move it by more than 10⁻⁸
        assert np.abs(exact_logits(model, tokens) - exact).max() < 1e-12


@pytest.mark.parametrize("mode", [DOWN, UP, TO_ZERO])
def test_a_thread_that_rounds_otherwise_is_noticed(mode: int) -> None:
    assert rounds_to_nearest()
    with _rounding(mode):
        assert not rounds_to_nearest()
    assert rounds_to_nearest()


@contextmanager
def _rounding(mode: int) -> Iterator[None]:
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("the number of the rounding mode is another one here")
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(mode) == 0
    try:
        yield
    finally:
        libm.fesetround(0)
