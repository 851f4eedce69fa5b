"""Listening to `generate`: the drafts it verified, and the processors it built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Round:
    """One draft, as verification got it.

    start: tokens before it, prompt included. tokens: drafted. logits: [drafted, vocabulary] float32, whose
    softmax transformers takes for the distribution they were drawn from; None for a guess without one.
    """

    start: int
    tokens: tuple[int, ...]
    logits: NDArray[np.float32] | None

    def probs(self, index: int) -> NDArray[np.float64] | None:
        """[vocabulary]: what drafted token `index` is said to be drawn from; None for a guess."""
        return None if self.logits is None else softmax(self.logits[index])


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of one row, in float64."""
    row = logits.astype(np.float64)
    row -= row.max()
    np.exp(row, out=row)
    row /= row.sum()
    return row


@contextmanager
def rounds_of(model: Any) -> Iterator[list[Round]]:
    """The rounds of every assisted `generate` of this model inside the block, in order."""
    rounds: list[Round] = []
    build = model._get_candidate_generator

    def listened(*args: Any, **kwargs: Any) -> Any:
        generator = build(*args, **kwargs)
        draft = generator.get_candidates

        def get_candidates(input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            ids, logits = draft(input_ids, *args, **kwargs)
            start = input_ids.shape[1]
            rows = None if logits is None else logits[0].float().numpy().copy()
            rounds.append(Round(start, tuple(ids[0, start:].tolist()), rows))
            return ids, logits

        generator.get_candidates = get_candidates
        return generator

    model._get_candidate_generator = listened
    try:
        yield rounds
    finally:
        del model._get_candidate_generator


@contextmanager
def processors_of(model: Any) -> Iterator[list[Any]]:
    """The LogitsProcessorList of every `generate` of this model inside the block, in order."""
    built: list[Any] = []
    build = model._get_logits_processor

    def listened(*args: Any, **kwargs: Any) -> Any:
        built.append(build(*args, **kwargs))
        return built[-1]

    model._get_logits_processor = listened
    try:
        yield built
    finally:
        del model._get_logits_processor
