"""Scripts that run in the environment of a peer, and are asked by lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from surefoot.models.catalog import resolve
from surefoot.types import SurefootError


def gguf(name: str) -> Path:
    """The file of a model, for llama.cpp to read."""
    file = resolve(name)
    if not file.is_file():
        raise SurefootError(f"llama.cpp reads GGUF files alone; {file} is a folder")
    return file


class Child:
    """A script of this folder, run by an interpreter that has llama.cpp. name, system: what it says that it
    is, and which instructions it was built for."""

    def __init__(self, python: str, script: str, *arguments: object) -> None:
        # The reason why it ended, where it does, is in there among much else.
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115, closed with the child
        # That one is for our threads; the peer shall have its own library's default.
        environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        try:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).parent / script), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=environment,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise SurefootError(f"--peer {python}: {error.strerror}") from error
        greeting = self._answer()
        self.name, self.system = str(greeting["peer"]), str(greeting["system"])

    def ask(self, request: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # _answer says why it ended
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            reason = self._log.read().strip().rpartition("\n")[2]
            self.close()
            raise SurefootError(f"the peer ended: {reason or f'exit code {self._process.returncode}'}")
        answer: dict[str, Any] = json.loads(line)
        return answer
