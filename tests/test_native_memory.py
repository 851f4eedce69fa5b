"""Random shapes through the kernels (kernels/fuzz.c): memory is theirs to the byte, no two threads race, and
the bits are the same on everything that can be had here, another architecture included."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from surefoot.native.compiler import FLAGS, KERNELS, find_compiler
from surefoot.native.isa import NEON, PORTABLE, Isa, supported
from tests.native import COMPILER, emulated_amx

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

DRIVER = Path(__file__).parent / "kernels" / "fuzz.c"
SEEDS = 48
ISAS = (*supported(), PORTABLE)
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Og", "-g1")  # -Og compiles fast
RACES = ("-fsanitize=thread", "-Og", "-g1")
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")


@dataclass(frozen=True)
class Variant:
    """One way to build and run the driver. threads: 0 = as each seed has it."""

    isa: Isa
    flags: Sequence[str] = ()
    cross: bool = False
    seeds: int = SEEDS
    threads: int = 0

    def run(self, room: Path) -> str:
        """What the driver prints. Skips where there is no compiler, emulator or sanitizer for it."""
        runner = [_tool(EMULATORS)] if self.cross else []
        call = [_tool([CROSS_COMPILER]), "-static"] if self.cross else [*find_compiler()]
        call += [*FLAGS, *self.isa.flags, *self.flags]
        if self.flags or self.cross:
            empty = room / "empty.c"
            empty.write_text("int main(void) { return 0; }\n")
            _required([*call, str(empty), "-o", str(room / "empty")])
            _required([*runner, str(room / "empty")])
        sources, fuzz = map(str, (DRIVER, *sorted(KERNELS.glob("*.c")))), room / "fuzz"
        _printed([*call, f"-I{KERNELS}", *sources, "-lm", "-o", str(fuzz)])
        return _printed([*runner, str(fuzz), "0", str(self.seeds), str(self.threads)])


EXPECTED = Variant(ISAS[0])
VARIANTS = {
    **{f"memory-{isa.name}": Variant(isa, MEMORY) for isa in (*ISAS, emulated_amx())},
    "races": Variant(ISAS[0], RACES, seeds=SEEDS // 2, threads=3),
    "other-architecture": Variant(NEON, cross=True),
}


def _tool(names: Sequence[str]) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"there is no {names[0]}")
    return found


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # Fresh memory of a sanitizer is full of NaNs, so that what is read before it is written shows.
    memory = "malloc_fill_byte=255:max_malloc_fill_size=1000000000"
    env = {**os.environ, "ASAN_OPTIONS": memory, "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def _required(command: Sequence[str]) -> None:
    result = _run(command)
    if result.returncode != 0:
        pytest.skip(f"{command[0]}: {result.stderr.strip().partition(chr(10))[0]}")


def _printed(command: Sequence[str]) -> str:
    result = _run(command)
    assert result.returncode == 0, f"{result.stdout[-200:]}\n{result.stderr[:5000]}"
    return result.stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Variant, Future[str]]]:
    """What each variant prints, two of them at work at a time."""
    with ThreadPoolExecutor(2) as workers:
        yield {
            variant: workers.submit(variant.run, tmp_path_factory.mktemp("fuzz"))
            for variant in (EXPECTED, *VARIANTS.values())
        }


@pytest.mark.parametrize("name", VARIANTS)
def test_every_byte_is_the_kernels_own_and_the_same(name: str, outputs: dict[Variant, Future[str]]) -> None:
    variant = VARIANTS[name]
    expected = outputs[EXPECTED].result().splitlines()
    assert outputs[variant].result().splitlines() == expected[: 3 * variant.seeds]
