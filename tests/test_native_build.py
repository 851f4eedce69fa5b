"""Kernels are compiled once, by whichever compiler there is, and what goes wrong is one line."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.models.catalog import home
from surefoot.native import isa
from surefoot.native.compiler import compiled, find_compiler
from surefoot.native.isa import ISAS, PORTABLE
from surefoot.types import SurefootError
from tests.native import COMPILER
from tests.native_place import BROKEN, NOTED, Place

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

TOGETHER = f"""#!/bin/sh
if [ "$1" != --version ]; then
    touch "$0.$$"
    while [ "$(ls "$0".* | wc -l)" -lt 2 ]; do sleep .01; done
fi
PATH='{os.environ["PATH"]}' exec {COMPILER} "$@"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_cc_goes_before_the_compilers_on_path(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.install_real("clang")
    assert find_compiler() == ("clang",)
    place.install_real("gcc")
    assert find_compiler() == ("gcc",)
    place.install_real("cc")
    assert find_compiler() == ("cc",)
    monkeypatch.setenv("CC", "clang -m64")
    assert find_compiler() == ("clang", "-m64")
    monkeypatch.setenv("CC", "icc")
    with pytest.raises(SurefootError, match=r"^no C compiler: icc, named by CC, is not on PATH$"):
        find_compiler()


def test_kernels_are_compiled_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.install_real()
    first = compiled(PORTABLE, place.kept)
    assert ctypes.CDLL(str(first)).sf_ready() == 1
    assert caplog.messages == ["compiling kernels for portable (once, some seconds)"]
    assert compiled(PORTABLE, place.kept) == first
    assert place.links() == len(caplog.messages) == 1
    assert [path.name for path in first.parent.iterdir()] == [first.name]


@pytest.mark.parametrize("change", ["source", "header", "flags", "compiler"])
def test_another_source_flag_or_compiler_makes_another_library(place: Place, change: str) -> None:
    script = place.install_real()
    before = compiled(PORTABLE, place.kept)
    wanted = PORTABLE
    if change == "source":
        with (place.kernels / "stub.c").open("a") as file:
            file.write("int another;\n")
    elif change == "header":
        (place.kernels / "stub.h").write_text("int another;\n")
    elif change == "flags":
        wanted = replace(PORTABLE, flags=("-DANOTHER",))
    else:
        script.write_text(NOTED.replace("sh\n", 'sh\n[ "$1" = --version ] && echo version 2\n'))
    assert compiled(wanted, place.kept) != before
    assert place.links() == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_library_is_compiled_anew(place: Place, damage: str) -> None:
    place.install_real()
    path = compiled(PORTABLE, place.kept)
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"cut": content[:middle], "changed": changed, "emptied": b""}[damage])
    ctypes.CDLL(str(compiled(PORTABLE, place.kept)))
    assert place.links() == 2
    assert compiled(PORTABLE, place.kept).read_bytes() == content
    assert place.links() == 2


def test_two_processes_may_compile_at_once(place: Place) -> None:
    place.install(TOGETHER)  # goes on when there are two of it
    code = (
        "import ctypes, sys; from pathlib import Path; from surefoot.native import compiler, isa\n"
        f"compiler.KERNELS = Path({str(place.kernels)!r})\n"
        f"ctypes.CDLL(str(compiler.compiled(isa.PORTABLE, Path({str(place.kept)!r}))))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    [folder] = place.kept.iterdir()
    assert [path.suffix for path in folder.iterdir()] == [".so"]


def test_a_compiler_that_fails_is_named_with_its_first_error(place: Place) -> None:
    place.install(BROKEN)
    with pytest.raises(SurefootError) as caught:
        compiled(PORTABLE, place.kept)
    [report] = place.kept.glob("*/portable.log")
    assert str(caught.value) == (
        "cc can't compile the kernels for portable: kernels/dot.c:7:1: error: unknown register name "
        f"(all of it: {report})"
    )
    assert "In function" in report.read_text()
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_a_compiler_that_says_nothing_is_told_by_its_exit_code(place: Place) -> None:
    place.install("#!/bin/sh\nexit 3\n")
    with pytest.raises(SurefootError, match=r"^cc can't compile the kernels for portable: exit code 3 "):
        compiled(PORTABLE, place.kept)


def test_a_folder_that_cannot_be_written_to_is_named(place: Place) -> None:
    place.install_real()
    place.kept.write_text("a file")
    with pytest.raises(SurefootError, match=rf"^{place.kept}/\w+: Not a directory$"):
        compiled(PORTABLE, place.kept)


@pytest.mark.parametrize(
    "wanted",
    [each for each in ISAS if not each.machines or platform.machine() in each.machines],
    ids=lambda each: each.name,
)
def test_the_kernels_compile_without_a_warning(wanted: isa.Isa) -> None:
    strict = replace(wanted, flags=(*wanted.flags, "-Wall", "-Wextra", "-Werror"))
    path = compiled(strict, home() / "native")  # kept: compiled again where a source has changed
    assert {name.partition(".")[0] for name in needed(path)} <= {
        *("libc", "libm", "libpthread"),
        *("ld-linux-x86-64", "ld-linux-aarch64"),  # the loader, which has a part in thread-local variables
    }


def needed(path: Path) -> set[str]:
    """The libraries that one needs at run time, where there is something to tell."""
    if shutil.which("readelf") is None:
        return set()
    said = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    lines = [line for line in said.splitlines() if "(NEEDED)" in line]
    return {line.partition("[")[2].rstrip("]") for line in lines}
