"""What passes are timed of: a model of ours, and llama.cpp on the same file in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from peers import Child

from surefoot.loading import LoadedModel
from surefoot.models.base import Segment


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
    """llama_peer.py in a process of its own. name, system: what it says of itself."""

    def __init__(self, python: str, file: Path, threads: int) -> None:
        self._child = Child(python, "llama_peer.py", file, threads)
        self.name, self.system = self._child.name, self._child.system

    def hold(self, tokens: Sequence[int]) -> None:
        self._child.ask({"context": list(tokens)})

    def milliseconds(self, tokens: Sequence[int], wanted: int) -> float:
        return float(self._child.ask({"rows": list(tokens), "wanted": wanted})["ms"])

    def close(self) -> None:
        self._child.close()
