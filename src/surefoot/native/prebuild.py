"""For scripts/build-wheels: the kernels compiled for all of a platform's instruction sets, and its tag."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from surefoot.native.compiler import compile_library, find_compiler
from surefoot.native.isa import ISAS
from surefoot.native.library import packaged
from surefoot.types import SurefootError


def prebuild(folder: Path) -> str:
    """Compiles into `folder`, and returns the platform tag of a wheel with these libraries in it.

    Raises SurefootError where there is nothing to compile for this machine, or it can't be compiled.
    """
    compiler, machine = find_compiler(), platform.machine()
    isas = [isa for isa in ISAS if machine in isa.machines]
    if not isas:
        raise SurefootError(f"{machine}: there are no kernels for this machine")
    folder.mkdir(parents=True)
    libraries = [packaged(isa, folder) for isa in isas]
    for isa, library in zip(isas, libraries, strict=True):
        with tempfile.TemporaryDirectory() as room:  # which leaves the compiler's own files behind
            fresh = Path(room) / library.name
            compile_library(isa, compiler, fresh, report=folder.with_name(f"{isa.name}.log"))
            library.write_bytes(fresh.read_bytes())
    if platform.system() != "Linux":
        return re.sub(r"\W", "_", sysconfig.get_platform())
    major, minor = max(map(glibc_needed, libraries))
    return f"manylinux_{major}_{minor}_{machine}"


def glibc_needed(library: Path) -> tuple[int, int]:
    """The oldest glibc that has all the symbols a library takes from it."""
    command = ["readelf", "--version-info", "--wide", str(library)]
    return newest_glibc(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def newest_glibc(text: str) -> tuple[int, int]:
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", text)]
    if not versions:
        raise SurefootError("the libraries take nothing from glibc, on which Linux wheels are built")
    return max(versions)


if __name__ == "__main__":
    try:
        print(prebuild(Path(sys.argv[1])))
    except SurefootError as error:
        sys.exit(f"surefoot: {error}")
