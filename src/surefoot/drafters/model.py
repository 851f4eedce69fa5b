"""A smaller model that guesses for a larger one (Leviathan et al. 2211.17192; Chen et al. 2302.01318)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from surefoot.drafters.base import DraftRequest
from surefoot.models.base import Model, Segment
from surefoot.types import Draft, SurefootError, Verdict

logger = logging.getLogger(__name__)


class ModelDrafter:
    """Drafts with a model of its own, all requests in every pass.

    Its cache holds committed tokens only, between rounds; after a draft that was accepted whole it lacks
    the last of them, which the next round feeds before drafting on. Sequences longer than the model's
    context, or with a token that it hasn't, get no drafts. When its cache is full, a sequence that doesn't
    fit gets none and loses its rows; it drafts again once there is room for it.

    max_rows: the longest pass it makes while it catches up with a prompt.
    """

    def __init__(self, model: Model, *, name: str = "model", max_rows: int = 512) -> None:
        self.model = model
        self.name = name
        self._max_rows = max_rows
        self._committed: dict[int, int] = {}  # tokens of each sequence when its draft began
        self._beyond: set[int] = set()  # sequences that this model can't follow any more
        self._told: set[str] = set()

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.model.cache.add(_own(seq))

    def num_computed(self, seq: int) -> int:
        """Committed tokens that the cache holds."""
        return self.model.cache.length(_own(seq))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        budgets = self._affordable(requests, [self._fitting(request) for request in requests])
        drafting = [i for i, budget in enumerate(budgets) if budget]
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[NDArray[np.float64]]] = [[] for _ in requests]
        rows = self._catch_up({i: requests[i] for i in drafting})
        while drafting:
            for i in drafting:
                try:
                    token, drawn_from = requests[i].draw(rows[i], tokens[i])
                except SurefootError:  # all that this model knows is banned: the target may know more
                    budgets[i] = len(tokens[i])
                    continue
                tokens[i].append(token)
                if drawn_from is not None:
                    probs[i].append(drawn_from)
            drafting = [i for i in drafting if len(tokens[i]) < budgets[i]]
            rows = self._step({i: (requests[i].seq, tokens[i][-1]) for i in drafting})
        return [
            Draft(tuple(drafted), probs=np.stack(drawn) if drawn else None, source=self.name)
            for drafted, drawn in zip(tokens, probs, strict=True)
        ]

    def observe(self, seq: int, verdict: Verdict) -> None:
        accepted = self._committed[seq] + len(verdict.path)
        self.model.cache.truncate(_own(seq), min(accepted, self.num_computed(seq)))
        computed = self.num_computed(seq)
        assert seq in self._beyond or not computed or computed in (accepted, accepted - 1)

    def stop(self, seq: int) -> None:
        self._committed.pop(seq, None)
        self._beyond.discard(seq)
        with suppress(KeyError):
            self.model.cache.free(_own(seq))

    def _fitting(self, request: DraftRequest) -> int:
        """The budget, as far as the model's own context and vocabulary allow."""
        seq, length = request.seq, len(request.tokens)
        self._committed[seq] = length
        if seq in self._beyond:
            return 0
        fitting = min(request.budget, self.model.max_length - length + 1)  # the last token is never fed
        unknown = any(t >= self.model.vocab_size for t in request.tokens[self.num_computed(seq) :])
        if fitting > 0 and not unknown:
            return fitting
        self._beyond.add(seq)
        if fitting <= 0:
            self._tell(f"no drafts beyond its context of {self.model.max_length} tokens")
        return 0

    def _affordable(self, requests: Sequence[DraftRequest], budgets: list[int]) -> list[int]:
        """The budgets, 0 for drafts that the cache has no room for. Known before a token is drawn, so no
        draft's length depends on what it says. Who holds rows comes before who would have to begin anew."""
        cache = self.model.cache
        taken = 0
        for i in sorted(range(len(requests)), key=lambda i: not self.num_computed(requests[i].seq)):
            seq, free = requests[i].seq, cache.free_pages()
            if free is None or not budgets[i]:
                continue
            rows = len(requests[i].tokens) - self.num_computed(seq) + budgets[i] - 1
            pages = cache.cost(_own(seq), rows)
            if taken + pages <= free:
                taken += pages
                continue
            cache.truncate(_own(seq), 0)
            budgets[i] = 0
            self._tell("its cache is full, so some drafts are left out")
        return budgets

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s: %s", self.name, what)

    def _catch_up(self, requests: dict[int, DraftRequest]) -> dict[int, NDArray[np.float32]]:
        """Feeds every request its uncomputed tokens, in passes of at most `max_rows`; returns the logits
        of each one's last token."""
        rows: dict[int, NDArray[np.float32]] = {}
        batch: list[Segment] = []
        wanted: list[int] = []
        room = self._max_rows
        for i, request in requests.items():
            rest = request.tokens[self.num_computed(request.seq) :]
            while rest:
                chunk, rest = rest[:room], rest[room:]
                batch.append(Segment(_own(request.seq), chunk, num_wanted=0 if rest else 1))
                room -= len(chunk)
                if not rest:
                    wanted.append(i)
                if not room:
                    rows.update(zip(wanted, self.model.forward(batch), strict=True))
                    batch, wanted, room = [], [], self._max_rows
        if batch:
            rows.update(zip(wanted, self.model.forward(batch), strict=True))
        return rows

    def _step(self, last: dict[int, tuple[int, int]]) -> dict[int, NDArray[np.float32]]:
        """One more token for each (sequence, token); returns the logits after it."""
        if not last:
            return {}
        logits = self.model.forward(
            [Segment(_own(seq), (token,), num_wanted=1) for seq, token in last.values()]
        )
        return dict(zip(last, logits, strict=True))


def _own(seq: int) -> int:
    """The drafter's number for a sequence, which the target's cache hasn't: a model may draft for itself."""
    return -1 - seq
