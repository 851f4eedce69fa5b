"""A wheel brings the kernels of every instruction set along, and needs no compiler."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from surefoot.native import isa
from surefoot.native.prebuild import newest_glibc, prebuild
from surefoot.types import SurefootError
from tests.native import COMPILER, write_stub
from tests.native_place import BROKEN, Place

ROOT = Path(__file__).resolve().parent.parent
OWN = [each for each in isa.ISAS if platform.machine() in each.machines]
USING_LIBC = """#include <stdlib.h>
__attribute__((visibility("default"))) void *room(int n) { return malloc(n); }
"""

pytestmark = pytest.mark.skipif(
    COMPILER is None or not OWN, reason="there is no C compiler, or there are no kernels for this machine"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_the_newest_symbol_is_the_oldest_system() -> None:
    text = "Name: GLIBC_2.2.5 Flags: none\nName: GLIBC_2.34\nName: GLIBC_2.9\nName: OTHERGLIBC_9.9"
    assert newest_glibc(text) == (2, 34)
    with pytest.raises(SurefootError, match=r"^the libraries take nothing from glibc"):
        newest_glibc("Name: OTHERGLIBC_9.9")


def test_a_platform_without_kernels_is_a_mistake(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.install_real()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SurefootError, match=r"^riscv64: there are no kernels for this machine$"):
        prebuild(place.kept)


def test_a_compiler_that_does_not_know_an_instruction_set_ends_the_build(place: Place) -> None:
    place.install(BROKEN)
    with pytest.raises(SurefootError, match=f"^cc can't compile the kernels for {OWN[0].name}: "):
        prebuild(place.kept)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that scripts/build-wheels builds in a clone whose kernels do nothing."""
    clone = tmp_path_factory.mktemp("a clone").resolve()
    for name in ("scripts", "src"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.c", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    kernels = clone / "src" / "surefoot" / "native" / "kernels"
    write_stub(kernels)
    (kernels / "libc.c").write_text(USING_LIBC)
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{clone}/src" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    stamp = f"{clone}\nextra: none\n{(ROOT / 'pyproject.toml').read_text()}"
    (clone / ".venv" / "installed-none").write_text(stamp)  # so that nothing is installed
    result = subprocess.run(
        [clone / "scripts" / "build-wheels"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    [wheel] = (clone / "dist").iterdir()
    assert result.stdout == f"dist/{wheel.name}\n"
    return wheel


def test_a_wheel_is_for_any_python_of_its_platform(built: Path) -> None:
    system = r"manylinux_2_\d+" if platform.system() == "Linux" else r"\w+"
    assert re.fullmatch(rf"surefoot-[\d.]+-py3-none-{system}_{platform.machine()}\.whl", built.name)


def test_a_wheel_has_libraries_and_sources_and_nothing_of_the_build(built: Path) -> None:
    names = zipfile.ZipFile(built).namelist()
    inside = [Path(name) for name in names if name.startswith("surefoot/native/")]
    assert {path.name for path in inside if path.suffix != ".py" and "kernels" not in path.parts} == {
        f"libsurefoot-{each.name}.so" for each in OWN
    }
    assert {path.name for path in inside if path.suffix == ".h"} == {
        path.name for path in (ROOT / "src/surefoot/native/kernels").glob("*.h")
    }
    assert {path.name for path in inside if path.suffix == ".c"} == {"stub.c", "libc.c"}
    assert {Path(name).parts[0].partition("-")[0] for name in names} == {"surefoot"}


@pytest.mark.skipif(not isa.supported(), reason="this processor runs none of the kernels")
def test_its_library_is_found_without_a_compiler(built: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(built).extractall(site)
    code = (
        "from pathlib import Path; from surefoot.native.library import native_library\n"
        "print(native_library(Path('nowhere')).path)"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("CC", isa.VARIABLE)}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PATH": "nowhere", "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.stderr == ""
    expected = site / "surefoot" / "native" / "prebuilt" / f"libsurefoot-{isa.supported()[0].name}.so"
    assert Path(result.stdout.strip()) == expected
