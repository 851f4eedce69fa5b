"""Who writes whole answers: an engine of ours, and llama.cpp on the same file in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peers import Child

from surefoot.engine import Engine
from surefoot.types import SamplingParams

PEER = "llama.cpp"

Speculation = Mapping[str, object]
"""As llama_answers.py takes it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """decode_ms: from the first token, which the prompt's own pass gave, to the last. rounds: passes in that
    time. drafted, accepted: tokens. rounds_ms, other_ms: the rounds' time, and what of it neither model took;
    0 where nobody says."""

    token_ids: tuple[int, ...]
    decode_ms: float
    rounds: int
    drafted: int
    accepted: int
    rounds_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def timed_tokens(self) -> int:
        return len(self.token_ids) - 1


class Writer(Protocol):
    def write(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        """Until the text ends, or as many tokens are there as params allow."""


class Ours:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def write(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        [result] = self._engine.generate([list(prompt)], params)
        stats = result.stats
        return Answer(
            token_ids=result.token_ids,
            decode_ms=stats.decode_ms,
            rounds=stats.rounds,
            drafted=stats.draft_tokens,
            accepted=stats.accepted_tokens,
            rounds_ms=stats.draft_ms + stats.verify_ms + stats.other_ms,
            other_ms=stats.other_ms,
        )


class Llama:
    """llama_answers.py with one way to speculate. It knows temperature 0 alone."""

    def __init__(self, child: Child, speculation: Speculation) -> None:
        self._child, self._speculation = child, speculation

    def write(self, prompt: Sequence[int], params: SamplingParams) -> Answer:
        told = self._child.ask(
            {
                "prompt": list(prompt),
                "max_tokens": params.max_tokens,
                "speculation": dict(self._speculation),
            }
        )
        timings, token_ids = told["timings"], tuple(told["tokens"])
        accepted = timings.get("draft_n_accepted", 0)
        return Answer(
            token_ids=token_ids,
            decode_ms=timings["predicted_ms"],
            rounds=len(token_ids) - 1 - accepted,
            drafted=timings.get("draft_n", 0),
            accepted=accepted,
        )


def llamas(child: Child, drafts: Mapping[str, Path]) -> dict[str, Writer]:
    """llama.cpp plain and with its drafters, by what they are called. drafts: the files of draft models."""
    speculations: dict[str, Speculation] = {
        PEER: {"type": "none"},
        f"{PEER} ngram-simple": {"type": "ngram_simple"},
        f"{PEER} ngram-simple 3/8": {"type": "ngram_simple", "size_n": 3, "size_m": 8},
        f"{PEER} ngram-mod": {"type": "ngram_mod"},
    }
    speculations |= {
        f"{PEER} {name}": {"type": "draft_simple", "model": str(file)} for name, file in drafts.items()
    }
    return {name: Llama(child, speculation) for name, speculation in speculations.items()}
