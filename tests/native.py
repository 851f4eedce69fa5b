"""The kernels in every form that this machine can run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from surefoot.models.catalog import home
from surefoot.native.compiler import COMPILERS
from surefoot.native.isa import AVX2, PORTABLE, Isa, supported
from surefoot.native.library import SIGNATURES, Library, open_library
from tests.workers import alone

COMPILER = next(filter(None, map(shutil.which, COMPILERS)), None)


def emulated_amx() -> Isa:
    """The kernels of AMX over plain C in place of its tiles, and over AVX2 where there is that."""
    base = AVX2 if AVX2 in supported() else PORTABLE
    return replace(base, name="amx-emulated", flags=(*base.flags, "-DSUREFOOT_EMULATE_TILES"))


@cache
def libraries() -> tuple[Library, ...]:
    """One library for each instruction set here, best first, then plain C and emulated AMX; compiled as for
    a user, and kept where a user's are, so that a run of the tests compiles each once at most. None without
    a C compiler, where tests over them are skipped."""
    if COMPILER is None:
        return ()
    isas = (*supported(), PORTABLE, emulated_amx())
    with alone():
        return tuple(open_library(isa, home() / "native") for isa in isas)


def write_stub(kernels: Path, ready: bool = True) -> None:
    """Sources of a library that has every function, none of which does anything: compiled in no time."""
    kernels.mkdir(parents=True, exist_ok=True)
    bodies = [f"int {name}(void) {{ return {int(ready)}; }}" for name in SIGNATURES]
    lines = ["#pragma GCC visibility push(default)", *bodies, ""]
    (kernels / "stub.c").write_text("\n".join(lines))
