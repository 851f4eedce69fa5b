"""What passes are timed of: a model of ours, and llama.cpp on the same file in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from surefoot.loading import LoadedModel
from surefoot.models.base import Segment
from surefoot.types import SurefootError

SCRIPT = Path(__file__).parent / "llama_peer.py"


class Subject(Protocol):
    def hold(self, tokens: Sequence[int]) -> None:
        """Makes these the context of the passes that follow."""

    def milliseconds(self, tokens: Sequence[int], wanted: int) -> float:
        """Of one pass over tokens behind the context, the logits of the last `wanted` rows included."""


class Ours:
    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self._seq = 1 << 40  # out of the way of any engine's own numbers
        self._held = 0
        self._model.cache.add(self._seq)

    def hold(self, tokens: Sequence[int]) -> None:
        self._model.cache.truncate(self._seq, 0)
        if tokens:
            self._model.forward([Segment(self._seq, tokens, num_wanted=0)])
        self._held = len(tokens)

    def milliseconds(self, tokens: Sequence[int], wanted: int) -> float:
        segment = Segment(self._seq, tokens, num_wanted=wanted)
        began = time.perf_counter()
        self._model.forward([segment])
        taken = 1000 * (time.perf_counter() - began)
        self._model.cache.truncate(self._seq, self._held)
        return taken


class Peer:
    """llama_peer.py, run by the interpreter of an environment that has llama.cpp. name, system: what it says
    that it is, and which instructions it was built for."""

    def __init__(self, python: str, file: Path, threads: int) -> None:
        if not file.is_file():
            raise SurefootError(f"llama.cpp reads GGUF files alone; {file} is a folder")
        # The reason why it ended, where it does, is in there among much else.
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115, closed with the peer
        # That one is for our threads; the peer shall have its own library's default.
        environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        try:
            self._process = subprocess.Popen(
                [python, str(SCRIPT), str(file), str(threads)],
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

    def hold(self, tokens: Sequence[int]) -> None:
        self._ask({"context": list(tokens)})

    def milliseconds(self, tokens: Sequence[int], wanted: int) -> float:
        return float(self._ask({"rows": list(tokens), "wanted": wanted})["ms"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # _answer says why it ended
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

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
