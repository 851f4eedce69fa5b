"""What a request's part of a round is in the target's pass: its rows, and which of their logits it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.request import Request
from surefoot.scheduler import Slot
from surefoot.tree import ROOT
from surefoot.types import Draft


def legal(request: Request, draft: Draft) -> Draft:
    """A draft up to the first token that its grammar forbids. Drawn ones were drawn from what it allows, and
    a tree's forbidden branches are never followed."""
    if request.grammar is None or draft.parents is not None or draft.probs is not None:
        return draft
    return replace(draft, tokens=draft.tokens[: request.grammar.legal(draft.tokens)])


def segment(slot: Slot[Request], draft: Draft) -> Segment:
    request = slot.job
    if slot.prompt_rows:
        chunk = request.tokens[request.num_computed : request.num_computed + slot.prompt_rows]
        return Segment(request.seq, chunk, wanted(slot, draft))
    parents = None if draft.parents is None else (ROOT, *(parent + 1 for parent in draft.parents))
    return Segment(request.seq, (request.tokens[-1], *draft.tokens), wanted(slot, draft), parents)


def wanted(slot: Slot[Request], draft: Draft) -> int:
    """Rows whose logits are needed: of a prompt the one that the first token is chosen from, or all that
    have no log-probabilities yet."""
    request = slot.job
    if not slot.prompt_rows:
        return 1 + len(draft.tokens)
    if request.every_row:
        known = max(0, len(request.prompt_logprobs) - request.num_computed)
        return max(slot.prompt_rows - known, int(chooses(slot)))
    return int(chooses(slot))


def chooses(slot: Slot[Request]) -> bool:
    """Whether a prompt's rows end in the one that the first token is chosen from."""
    return slot.prompt_rows == slot.job.prompt_left and not slot.job.output


def shares(
    slots: Sequence[Slot[Request]], drafts: Sequence[Draft], logits: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """Each request's rows of a pass, as views."""
    ends = list(accumulate(map(wanted, slots, drafts), initial=0))
    return [logits[start:end] for start, end in pairwise(ends)]
