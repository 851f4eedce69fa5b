"""What a request's tokens should have been: computed apart from any engine that speculates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.subject import Subject
from surefoot.audit.trial import Asked
from surefoot.models.base import Model, Segment
from surefoot.pairing import open_target
from surefoot.prompts import prepare
from surefoot.request import Limits, Request

SEQUENCE = 2**62  # engines count from 0, and their drafters from -1 downwards
_CHUNK = 128  # rows of a pass: over a large vocabulary the logits of more would fill the memory


def request_of(subject: Subject, asked: Asked) -> Request:
    """The state a request has before its first output token. Give it tokens, and it says where they end."""
    target = open_target(subject.model, subject.tokenizer, "auto", None)
    prepared = prepare(asked.ids, asked.params, target.tokenizer)
    limits = Limits(target.model.max_length, target.eos_ids, target.vocab_limit, prepared.bad_words)
    detokenizer = None
    if target.tokenizer is not None:
        from surefoot.text import Detokenizer

        detokenizer = Detokenizer(target.tokenizer, continues=True)
    seed = asked.params.seed or 0  # no noise is asked for
    return Request(SEQUENCE, 0, 0, prepared.ids, asked.params, limits, seed=seed, detokenizer=detokenizer)


def rows(model: Model, prompt: Sequence[int], output: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """The row that each output token is to be chosen from, [vocabulary]; the sequence has every pass to
    itself."""
    tokens = [*prompt, *output][:-1]
    model.cache.add(SEQUENCE)
    try:
        for start in range(0, len(tokens), _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            wanted = min(len(chunk), max(0, start + len(chunk) - (len(prompt) - 1)))
            yield from model.forward([Segment(SEQUENCE, chunk, num_wanted=wanted)])
    finally:
        model.cache.free(SEQUENCE)
