"""The best library that can be had is taken, and where there is none, one line says so."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.native import isa, library
from surefoot.native.compiler import compiled
from surefoot.native.isa import PORTABLE
from surefoot.native.library import native_library
from surefoot.types import SurefootError
from tests.native import COMPILER, write_stub
from tests.native_place import BROKEN, Place

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[isa.Isa, isa.Isa]:
    """A machine with two instruction sets, the better of which needs a flag that compilers don't know."""
    better, worse = (
        replace(PORTABLE, name="better", flags=("-mbetter-than-all",)),
        replace(PORTABLE, name="worse"),
    )
    monkeypatch.setattr(isa, "supported", lambda: (better, worse))
    monkeypatch.setattr(isa, "ISAS", (better, worse))
    return better, worse


def test_without_a_compiler_there_is_one_line_and_no_library(
    place: Place, two: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert native_library(place.kept) is None
    assert native_library(place.kept) is None
    assert caplog.messages == [
        "no C compiler (cc, gcc, clang) on PATH: running on PyTorch, several times slower on small models"
    ]


def test_a_broken_compiler_is_one_line_and_no_library(
    place: Place, two: object, caplog: pytest.LogCaptureFixture
) -> None:
    place.install(BROKEN)
    assert native_library(place.kept) is None
    *_, line = caplog.messages
    assert line.startswith("cc can't compile the kernels for better: kernels/dot.c:7:1: error: unknown")
    assert line.endswith(": running on PyTorch, several times slower on small models")


def test_where_the_best_cannot_be_compiled_the_next_is_used(
    place: Place, two: tuple[isa.Isa, isa.Isa], caplog: pytest.LogCaptureFixture
) -> None:
    place.install_real()
    found = native_library(place.kept)
    assert found is not None
    assert found.isa == two[1]
    assert native_library(place.kept) is found
    *_, line = caplog.messages
    assert line.startswith("cc can't compile the kernels for better: ")
    assert line.endswith(": running on worse instead")


def test_instructions_that_the_system_refuses_are_not_used(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place.install_real()
    write_stub(place.kernels, ready=False)
    monkeypatch.setattr(isa, "supported", lambda: (PORTABLE,))
    caplog.set_level(logging.WARNING)
    assert native_library(place.kept) is None
    assert caplog.messages[1:] == [
        "portable: the system refuses these instructions: "
        "running on PyTorch, several times slower on small models"
    ]


def test_what_is_asked_for_by_name_is_had_or_is_a_mistake(
    place: Place, two: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(isa.VARIABLE, "worse")
    with pytest.raises(SurefootError, match=r"^no C compiler \(cc, gcc, clang\) on PATH$"):
        native_library(place.kept)
    monkeypatch.setenv(isa.VARIABLE, "pytorch")
    assert native_library(place.kept) is None
    assert caplog.messages == []
    place.install_real()
    monkeypatch.setenv(isa.VARIABLE, "worse")
    found = native_library(place.kept)
    assert found is not None
    assert found.isa.name == "worse"


def test_a_packaged_library_is_preferred_and_needs_no_compiler(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = place.install_real()
    packaged = library.PACKAGED / "libsurefoot-portable.so"
    packaged.parent.mkdir()
    shutil.copy(compiled(PORTABLE, place.kept), packaged)
    script.unlink()
    caplog.clear()
    monkeypatch.setenv(isa.VARIABLE, "portable")
    found = native_library(place.kept)
    assert found is not None
    assert found.path == packaged
    assert caplog.messages == []


def test_a_library_that_cannot_be_loaded_is_named(place: Place, tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_bytes(b"not a library")
    with pytest.raises(SurefootError, match=rf"^{tmp_path}/kernels.so: "):
        library.Library(PORTABLE, tmp_path / "kernels.so")
