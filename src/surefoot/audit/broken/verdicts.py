"""Verdicts of same-seed verification that are off by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from surefoot.request import Request
from surefoot.rounds import judge
from surefoot.types import Draft, Verdict, VerifyMode


def first_mismatch_kept(
    request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode
) -> Verdict:
    """Says the draft's token, where it should say what the target chose instead."""
    verdict = judge(request, draft, logits, mode)
    kept = len(verdict.path)
    return verdict if verdict.bonus else replace(verdict, next_token=draft.tokens[kept])


def first_token_agreed(
    request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode
) -> Verdict:
    """Never looks at the first draft token (lattice #243): the target is taken to agree."""
    if draft.tokens:
        logits = logits.copy()
        logits[0, np.arange(logits.shape[1]) != draft.tokens[0]] = -np.inf
    return judge(request, draft, logits, mode)


def bonus_from_the_row_before(
    request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode
) -> Verdict:
    """After a draft that was accepted to its end (gpt-fast #107 lacks that row in the cache)."""
    if draft.tokens:
        logits = np.vstack([logits[:-1], logits[-2:-1]])
    return judge(request, draft, logits, mode)
