"""Whether a drafter draws with the probabilities it returns, by how often each of its tokens comes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.drafters.contract import checked
from surefoot.testing.counts import log_p_value
from surefoot.testing.play import Asked, MakeDrafter, new_request
from surefoot.types import Draft

ALPHA = 1e-6  # how often a right drafter is called a wrong one, at most, all positions together
BUDGET = 3  # tokens of a draft
BATCH = 8  # sequences in a round
BINS = 8
LINES = 8


class _Place:
    """One index in the draft, over all runs. bins: where the tokens fell in their own distributions. came,
    expected: how often each token came, and should have, [vocabulary]."""

    def __init__(self, vocab_size: int) -> None:
        self.bins = np.zeros(BINS, np.int64)
        self.came = np.zeros(vocab_size)
        self.expected = np.zeros(vocab_size)


def drawn_otherwise(
    make_drafter: MakeDrafter, prompt: Sequence[int], vocab_size: int, runs: int, log_limit: float
) -> str | None:
    """How the tokens of many independent drafts differ from their probs; None if they don't.

    In a distribution's own order, likeliest first, a token that was drawn from it covers a piece of [0, 1);
    a point at random in that piece is uniform, whatever the distribution, given all that was settled before
    the token was drawn, that it would be submitted included. So all runs and all prefixes are one test per
    index of the draft. log_limit: of its p-value.
    """
    drafter, chance = make_drafter(), np.random.default_rng(0)
    places = [_Place(vocab_size) for _ in range(BUDGET)]
    for first in range(0, runs, BATCH):
        seqs = range(first, min(first + BATCH, runs))
        asked = [Asked(new_request(s, prompt, seed=s), BUDGET, "rejection", vocab_size) for s in seqs]
        for seq, share in zip(seqs, asked, strict=True):
            drafter.start(seq, share.request.prompt)
        requests = [share.as_seq(seq) for seq, share in zip(seqs, asked, strict=True)]
        drafts = checked(drafter.propose(requests), [BUDGET] * len(requests), vocab_size, drafter.name)
        for seq, draft in zip(seqs, drafts, strict=True):
            drafter.stop(seq)
            _note(places, draft, chance)
    for index, place in enumerate(places):
        if log_p_value(place.bins.tolist(), [1 / BINS] * BINS) < log_limit:
            return _told(index, place)
    return None


def _note(places: list[_Place], draft: Draft, chance: np.random.Generator) -> None:
    if draft.probs is None:
        return
    for place, token, row in zip(places, draft.tokens, draft.probs, strict=False):
        before = row[(row > row[token])].sum() + row[:token][row[:token] == row[token]].sum()
        point = before + chance.random() * row[token]
        place.bins[min(int(point * BINS), BINS - 1)] += 1
        place.came[token] += 1
        place.expected += row


def _told(index: int, place: _Place) -> str:
    total = place.came.sum()
    came, expected = place.came / total, place.expected / total
    tokens = np.argsort(-np.abs(came - expected), kind="stable")[:LINES]
    lines = [f"  token {t}: {expected[t]:.4f} by probs, {came[t]:.4f} drawn" for t in tokens.tolist()]
    return "\n".join(
        [
            f"token {index} of its drafts doesn't come with the probabilities it returns, given that it "
            f"comes at all (mean of {total:.0f} drafts):",
            *lines,
        ]
    )
