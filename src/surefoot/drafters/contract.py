"""Holds a drafter to its contract: whatever it returns instead is named, with the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import index

import numpy as np

from surefoot.tree import parents_of
from surefoot.types import Draft, SurefootError


def checked(drafts: object, budgets: Sequence[int], vocab_size: int, name: str) -> list[Draft]:
    """What `propose` returned, with plain numbers for tokens: numpy's would reach results, and JSON has none
    of them.

    budgets: one for each request. vocab_size: of the target. name: the drafter's, for messages. Raises
    SurefootError for anything but one well-formed draft per request.
    """
    if not isinstance(drafts, Sequence):
        raise SurefootError(f"drafter {name}: it proposed {type(drafts).__name__}, not a list of drafts")
    if len(drafts) != len(budgets):
        raise SurefootError(f"drafter {name}: {len(drafts)} drafts proposed, {len(budgets)} asked for")
    try:
        return [_checked(draft, budget, vocab_size) for draft, budget in zip(drafts, budgets, strict=True)]
    except (TypeError, ValueError) as error:
        raise SurefootError(f"drafter {name}: {error}") from error


def _checked(draft: object, budget: int, vocab_size: int) -> Draft:
    if not isinstance(draft, Draft):
        raise TypeError(f"{type(draft).__name__} proposed, not a Draft")
    tokens = _whole("tokens", draft.tokens)
    if len(tokens) > budget:
        raise ValueError(f"{len(tokens)} tokens drafted, {budget} allowed")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {token} is out of range; allowed is [0, {vocab_size - 1}]")
    parents = None if draft.parents is None else parents_of(_whole("parents", draft.parents), len(tokens))
    if draft.probs is not None and np.shape(draft.probs) != (len(tokens), vocab_size):
        shape, wanted = list(np.shape(draft.probs)), [len(tokens), vocab_size]
        raise ValueError(f"probs have shape {shape}, not {wanted}")
    return replace(draft, tokens=tokens, parents=parents)


def _whole(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(index, values))
    except TypeError:
        raise TypeError(f"{name} {values!r} are not whole numbers") from None
