"""The instruction sets that the kernels are compiled for, and which of them this processor has."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from surefoot.types import SurefootError

VARIABLE = "SUREFOOT_ISA"
PYTORCH = "pytorch"  # the variable's value for none of the kernels


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set.

    flags: the compiler's. machines: those that have it, as `platform.machine()` names them; all where
    empty. features: what the processor must have, as Linux names them.
    """

    name: str
    flags: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()


X86 = ("x86_64",)
ARM = ("aarch64", "arm64")

AVX2 = Isa("avx2", ("-mavx2", "-mfma", "-mf16c"), X86, frozenset({"avx2", "fma", "f16c"}))
AVX512 = Isa(
    "avx512",
    (
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ),
    X86,
    AVX2.features | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
)
AMX = Isa(
    "amx",
    (*AVX512.flags, "-mamx-tile", "-mamx-int8"),
    X86,
    AVX512.features | {"amx_tile", "amx_int8"},
)
NEON = Isa("neon", ("-march=armv8.2-a+dotprod+fp16",), ARM, frozenset({"asimddp", "asimdhp"}))
PORTABLE = Isa("portable")  # plain C: to compare with, too slow to be of use

ISAS = (AMX, AVX512, AVX2, NEON, PORTABLE)


def supported() -> tuple[Isa, ...]:
    """What this processor can run, best first, `PORTABLE` left out."""
    machine, found = platform.machine(), features()
    return tuple(isa for isa in ISAS if machine in isa.machines and isa.features <= found)


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The names of what this processor can do; empty where the system doesn't tell."""
    if platform.system() == "Darwin":  # every ARM processor of Apple's Macs has these
        return NEON.features if platform.machine() in NEON.machines else frozenset()
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    return next(
        (frozenset(values.split()) for name, _, values in named if name.strip() in ("flags", "Features")),
        frozenset(),
    )


def candidates(asked: str | None) -> tuple[Isa, ...]:
    """The instruction sets to try, best first. `asked` is the value of $SUREFOOT_ISA, which leaves one of
    them, or none where it is "pytorch"; None or empty where it isn't set.

    Raises SurefootError for a value that is unknown, or that this processor hasn't.
    """
    have = supported()
    if not asked:
        return have
    if asked == PYTORCH:
        return ()
    usable = {isa.name: isa for isa in (*have, PORTABLE)}
    if asked not in usable:
        state = "not on this machine" if asked in {isa.name for isa in ISAS} else "unknown"
        raise SurefootError(f"{VARIABLE}: {asked} is {state}; it is {', '.join(usable)} or {PYTORCH}")
    return (usable[asked],)
