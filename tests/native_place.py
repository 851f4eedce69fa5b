"""A machine to compile on: kernels that do nothing, and a PATH with the compilers that a test puts there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from surefoot.native import compiler, isa, library
from tests.native import COMPILER, write_stub

NOTED = f"""#!/bin/sh
[ "$1" = --version ] || echo "$@" >>"$0.calls"
PATH='{os.environ["PATH"]}' exec {COMPILER} "$@"
"""

BROKEN = """#!/bin/sh
[ "$1" = --version ] && exit
echo "kernels/dot.c: In function 'dot':" >&2
echo "kernels/dot.c:7:1: error: unknown register name" >&2
echo "kernels/dot.c:9:1: error: and another" >&2
exit 1
"""


class Place:
    """Stub kernels, a folder to keep libraries in, and a PATH of its own with nothing on it but a shell's
    needs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept, self.kernels, self.bin = folder / "kept", folder / "kernels", folder / "bin"
        self.bin.mkdir()
        for tool in ("sh", "touch", "ls", "wc", "sleep"):
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        write_stub(self.kernels)
        monkeypatch.setattr(compiler, "KERNELS", self.kernels)
        monkeypatch.setattr(library, "PACKAGED", folder / "packaged")
        monkeypatch.setenv("PATH", str(self.bin))
        for variable in ("CC", isa.VARIABLE):
            monkeypatch.delenv(variable, raising=False)

    def install(self, text: str, name: str = "cc") -> Path:
        script = self.bin / name
        script.write_text(text)
        script.chmod(0o755)
        return script

    def install_real(self, name: str = "cc") -> Path:
        """The real compiler, which writes down how it is called, `--version` apart."""
        return self.install(NOTED, name)

    def links(self, name: str = "cc") -> int:
        """How many libraries it has made."""
        log = self.bin / f"{name}.calls"
        return log.read_text().count(" -shared ") if log.exists() else 0
