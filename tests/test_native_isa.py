"""Which instruction sets a processor has, and what $SUREFOOT_ISA makes of them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from surefoot.native import isa
from surefoot.native.isa import AMX, AVX2, AVX512, NEON, PORTABLE, candidates, features, supported
from surefoot.types import SurefootError


def processor(monkeypatch: pytest.MonkeyPatch, machine: str, found: frozenset[str]) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(isa, "features", lambda: found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\nbugs\t: spectre\n", {"fpu", "avx2", "fma"}),
        ("processor\t: 0\nFeatures\t: fp asimddp\nCPU part\t: 0xd40\n", {"fp", "asimddp"}),
        ("processor\t: 0\n", set()),
    ],
)
def test_features_are_those_of_the_first_processor(tmp_path: Path, text: str, found: set[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert features(tmp_path / "cpuinfo") == found


def test_a_system_that_does_not_tell_has_no_features(tmp_path: Path) -> None:
    assert features(tmp_path / "none") == frozenset()


@pytest.mark.parametrize(
    ("machine", "found", "expected"),
    [
        ("x86_64", AMX.features, (AMX, AVX512, AVX2)),
        ("x86_64", AVX512.features, (AVX512, AVX2)),
        ("x86_64", AVX512.features - {"avx512_vnni"}, (AVX2,)),
        ("x86_64", AVX2.features - {"f16c"}, ()),
        ("aarch64", NEON.features, (NEON,)),
        ("arm64", NEON.features, (NEON,)),
        ("aarch64", NEON.features - {"asimddp"}, ()),
        ("riscv64", AMX.features | NEON.features, ()),
    ],
)
def test_what_a_processor_lacks_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, machine: str, found: frozenset[str], expected: tuple[isa.Isa, ...]
) -> None:
    processor(monkeypatch, machine, found)
    assert supported() == candidates(None) == expected


def test_the_variable_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    processor(monkeypatch, "x86_64", AVX512.features)
    assert candidates("avx2") == (AVX2,)
    assert candidates("portable") == (PORTABLE,)
    assert candidates("pytorch") == ()


@pytest.mark.parametrize("unset", [None, ""])
def test_without_it_or_with_nothing_in_it_the_best_come_first(
    monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    processor(monkeypatch, "x86_64", AVX512.features)
    assert candidates(unset) == (AVX512, AVX2)


@pytest.mark.parametrize(("asked", "state"), [("amx", "not on this machine"), ("sse9", "unknown")])
def test_a_name_that_is_of_no_use_is_told_what_is(
    monkeypatch: pytest.MonkeyPatch, asked: str, state: str
) -> None:
    processor(monkeypatch, "x86_64", AVX512.features)
    with pytest.raises(SurefootError) as caught:
        candidates(asked)
    assert str(caught.value) == f"SUREFOOT_ISA: {asked} is {state}; it is avx512, avx2, portable or pytorch"
