"""From the kernels' sources to a shared library: compiled on first use, kept for the next."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from surefoot.native.isa import Isa
from surefoot.types import SurefootError

KERNELS = Path(__file__).parent / "kernels"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-std=gnu11", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    # Multiplication and addition are fused where a kernel says so, never where a compiler likes to.
    *("-ffp-contract=off", "-fno-math-errno"),
)
LINKED = ("-lm",) if platform.system() == "Darwin" else ("-lm", "-Wl,--no-undefined")  # its linker's default

log = logging.getLogger("surefoot")


def compiled(isa: Isa, folder: Path) -> Path:
    """The library of an instruction set, kept in `folder`: compiled now, or found whole from before.

    Its file is named by a digest of itself, so that a damaged one is seen, and put in place complete, so
    that two processes may compile at once. Raises SurefootError, one line, where that fails.
    """
    compiler = find_compiler()
    try:
        kept = folder / _digest_of_inputs(isa, compiler)
        return _whole(kept, isa) or _compile_into(kept, isa, compiler)
    except OSError as error:
        raise SurefootError(f"{error.filename}: {error.strerror}") from error


def find_compiler() -> tuple[str, ...]:
    """The command that compiles C: $CC, else the first of cc, gcc and clang on PATH."""
    if named := shlex.split(os.environ.get("CC", "")):
        if shutil.which(named[0]) is None:
            raise SurefootError(f"no C compiler: {named[0]}, named by CC, is not on PATH")
        return tuple(named)
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        raise SurefootError(f"no C compiler ({', '.join(COMPILERS)}) on PATH")
    return (found,)


def _compile_into(kept: Path, isa: Isa, compiler: Sequence[str]) -> Path:
    # Not a mishap, but a warning is what shows without being asked for, and a first start takes longer.
    log.warning("compiling kernels for %s (once, some seconds)", isa.name)
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as room:
        fresh = Path(room) / "library.so"
        compile_library(isa, compiler, fresh, report=kept / f"{isa.name}.log")
        return fresh.rename(kept / _name(isa, fresh.read_bytes()))


def compile_library(isa: Isa, compiler: Sequence[str], library: Path, report: Path) -> None:
    """Compiles every kernel, as many at once as there are processors, into one library.

    Raises SurefootError where the compiler fails; what it said is kept in `report`.
    """
    sources = sorted(KERNELS.glob("*.c"))
    objects = [f"{library}.{source.stem}.o" for source in sources]
    call = [*compiler, *FLAGS, *isa.flags]
    commands = [[*call, "-c", str(source), "-o", made] for source, made in zip(sources, objects, strict=True)]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        results = list(workers.map(_run, commands))
    if not any(code for code, _ in results):
        commands.append([*call, "-shared", *objects, *LINKED, "-o", str(library)])
        results.append(_run(commands[-1]))
    for command, (code, said) in zip(commands, results, strict=True):
        if code != 0:
            report.write_text(f"{shlex.join(command)}\n{said}")
            reason = _first_error(said) or f"exit code {code}"
            raise SurefootError(
                f"{compiler[0]} can't compile the kernels for {isa.name}: {reason} (all of it: {report})"
            )


def _run(command: Sequence[str]) -> tuple[int, str]:
    """The exit code of a compiler, and what it says, in English."""
    english = {**os.environ, "LC_ALL": "C"}
    result = subprocess.run(
        command,
        env=english,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return result.returncode, result.stdout


def _first_error(said: str) -> str | None:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "undefined" in line]
    return next(iter(errors + lines), None)


def _digest_of_inputs(isa: Isa, compiler: Sequence[str]) -> str:
    """Names what a library is made of: sources, flags, and the compiler with its version and machine."""
    digest = hashlib.sha256()
    _, version = _run([*compiler, "--version"])
    parts = [*FLAGS, *isa.flags, *LINKED, *compiler, version, platform.machine()]
    digest.update("\0".join(parts).encode())
    for path in sorted(KERNELS.glob("*.[ch]")):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _name(isa: Isa, content: bytes) -> str:
    return f"libsurefoot-{isa.name}-{hashlib.sha256(content).hexdigest()[:16]}.so"


def _whole(kept: Path, isa: Isa) -> Path | None:
    """A library from before whose content is what its name says."""
    for path in sorted(kept.glob(f"libsurefoot-{isa.name}-*.so")):
        if path.name == _name(isa, path.read_bytes()):
            return path
    return None
