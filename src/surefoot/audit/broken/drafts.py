"""Drafts that are not what they say they are, or whose length knows too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot import sampling
from surefoot.audit.broken.engines import Submits
from surefoot.audit.broken.views import untransformed
from surefoot.drafters.base import Draw
from surefoot.request import Request
from surefoot.rounds import draw_for
from surefoot.tree import ROOT
from surefoot.types import Draft, SamplingParams, VerifyMode
from surefoot.verify import Row, exclude

# Single draft tokens


def argmax_said_to_be_drawn(request: Request, mode: VerifyMode, vocab_size: int) -> Draw:
    """The draft's favourite, with all of its row (transformers #32867)."""
    draw = draw_for(request, mode, vocab_size)

    def favourite(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, Any]:
        token, row = draw(logits, drafted)
        return (token, row) if row is None else (int(row.argmax()), row)

    return favourite


def raw_row_of_a_warped_draw(request: Request, mode: VerifyMode, vocab_size: int) -> Draw:
    """Drawn after the transforms, recorded without them (transformers #47932)."""
    draw = draw_for(request, mode, vocab_size)

    def raw(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, Any]:
        return draw(logits, drafted)[0], softmax(logits)

    return raw


def warped_row_of_a_raw_draw(request: Request, mode: VerifyMode, vocab_size: int) -> Draw:
    """Drawn without the transforms, recorded with them."""
    draw = draw_for(request, mode, vocab_size)
    raw = draw_for(untransformed(request), mode, vocab_size)

    def warped(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, Any]:
        return raw(logits, drafted)[0], draw(logits, drafted)[1]

    return warped


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """[vocabulary], without any transform."""
    params = SamplingParams(temperature=1, top_p=1)
    return sampling.target_probs(logits, params, sampling.History()).dense(len(logits))


# Whole drafts


def submits(change: Callable[[Draft], Draft]) -> Submits:
    """Every draft, changed."""
    return lambda requests, drafts: [change(draft) for draft in drafts]


def rows_of_a_neighbour(requests: Sequence[Request], drafts: list[Draft]) -> list[Draft]:
    """Every draft bears the rows of the one beside it in the batch (1Cat-vLLM #656)."""
    beside = [*drafts[1:], *drafts[:1]]
    return [
        replace(draft, probs=other.probs)
        if draft.probs is not None and other.probs is not None and len(other.probs) == len(draft.probs)
        else draft
        for draft, other in zip(drafts, beside, strict=True)
    ]


# Siblings. The eldest's row is what the draft has after the text; each other's lacks its elders.


def resubmitted(tokens: Sequence[int], row: Row) -> Draft:
    """Children of the root, said to have been drawn in this order, without replacement."""
    rows = [row]
    for token in tokens[:-1]:
        rows.append(exclude(rows[-1], token))
    return Draft(tuple(tokens), (ROOT,) * len(tokens), np.array(rows[: len(tokens)], dtype=row.dtype))


Rearranges = Callable[[list[int], Row], list[int]]
"""(siblings as they were drawn, the row of the eldest) → siblings as they are submitted."""


def rearranged(change: Rearranges) -> Submits:
    """Drawn siblings, changed in a way that looks at them."""

    def changed(draft: Draft) -> Draft:
        if draft.probs is None or draft.parents is None:
            return draft
        row = draft.probs[0]
        return replace(resubmitted(change(list(draft.tokens), row), row), source=draft.source)

    return submits(changed)


def likeliest_first(tokens: list[int], row: Row) -> list[int]:
    return sorted(tokens, key=lambda token: -row[token])


def without_unlikely(tokens: list[int], row: Row) -> list[int]:
    return [token for token in tokens if row[token] * 10 >= 3]


def likeliest_of_all(tokens: list[int], row: Row) -> list[int]:
    """The top k in place of k draws (EAGLE #183)."""
    return [int(token) for token in np.argsort(-row, kind="stable")[: len(tokens)]]


# Lengths


LengthOf = Callable[[list[Any]], int]
"""The draft's probabilities of its own tokens → how many of them to submit."""


def trimmed(length_of: LengthOf) -> Submits:
    """Cuts a drawn chain to a length that was found by looking at what was drawn."""

    def cut(draft: Draft) -> Draft:
        if draft.probs is None:
            return draft
        length = length_of([row[token] for row, token in zip(draft.probs, draft.tokens, strict=True)])
        return replace(draft, tokens=draft.tokens[:length], probs=draft.probs[:length] if length else None)

    return submits(cut)


UNLIKELY = Fraction(2, 5)


def up_to_an_unlikely_token(probs: list[Any], keep: bool) -> int:
    for index, prob in enumerate(probs):
        if prob < UNLIKELY:
            return index + keep
    return len(probs)


def without_unlikely_token(probs: list[Any]) -> int:
    """Ends before a token that the draft was unsure of (llama.cpp #22506, safe there, and not by
    rejection)."""
    return up_to_an_unlikely_token(probs, keep=False)


def best_prefix(probs: list[Any]) -> int:
    """Up to the token that the draft was surest of."""
    return probs.index(max(probs)) + 1


def best_rate(probs: list[Any]) -> int:
    """The length of most expected tokens per cost, the cost of a token being a third of a pass (DSpark,
    appendix A)."""

    def rate(length: int) -> Any:
        reached, expected = 1, 1
        for prob in probs[:length]:
            reached = reached * prob
            expected = expected + reached
        return expected / (1 + Fraction(length, 3))

    return max(range(len(probs) + 1), key=rate)
