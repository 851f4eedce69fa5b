"""The kernels in every form that this machine can run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from surefoot.models.catalog import home
from surefoot.native.isa import AVX2, PORTABLE, Isa, supported
from surefoot.native.library import Library, open_library


def emulated_amx() -> Isa:
    """The kernels of AMX over plain C in place of its tiles, and over AVX2 where there is that."""
    base = AVX2 if AVX2 in supported() else PORTABLE
    return replace(base, name="amx-emulated", flags=(*base.flags, "-DSUREFOOT_EMULATE_TILES"))


@cache
def libraries() -> tuple[Library, ...]:
    """One library for each instruction set here, best first, then plain C and emulated AMX; compiled as for
    a user, and kept where a user's are, so that a run of the tests compiles each once at most."""
    isas = (*supported(), PORTABLE, emulated_amx())
    return tuple(open_library(isa, home() / "native") for isa in isas)
