"""One round after another: schedule, draft, one pass of the target, verify, commit. Knows no text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from surefoot.drafters.base import Drafter, DraftRequest, Draw
from surefoot.drafters.contract import checked
from surefoot.lookahead import Controller
from surefoot.models.base import Model, Segment
from surefoot.request import Request
from surefoot.results import Load
from surefoot.rounds import draw_for, judge, logprobs_of
from surefoot.sampling import TopLogprobs
from surefoot.scheduler import Scheduler, Slot
from surefoot.tree import ROOT
from surefoot.types import Draft, SurefootError, Verdict, VerifyMode


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round did to one request. verdict: None while the prompt is not through, or on an error.
    emitted, logprobs: what was delivered. error: the request can't go on, and is released."""

    slot: Slot[Request]
    draft: Draft
    verdict: Verdict | None = None
    emitted: tuple[int, ...] = ()
    logprobs: tuple[TopLogprobs, ...] = ()
    error: SurefootError | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A round that was run. Times in seconds: `began` and `ended` on `time.perf_counter`'s clock, `drafting`
    in the drafter less what drawing its tokens took, `verifying` in the target's pass."""

    outcomes: tuple[Outcome, ...]
    began: float
    ended: float
    drafting: float
    verifying: float


class Loop:
    """The requests in flight, and the caches that hold them.

    Between rounds, for every request that decodes: num_computed == len(tokens) - 1 == cache.length(seq).
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter | None,
        controller: Controller,
        mode: VerifyMode,
        *,
        max_requests: int,
        max_rows: int,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._controller = controller
        self._mode = mode
        self._scheduler: Scheduler[Request] = Scheduler(max_requests, max_rows)
        self._drawing = 0.0  # seconds of this round

    def __len__(self) -> int:
        return len(self._scheduler)

    @property
    def load(self) -> Load:
        return Load(self._scheduler.running, self._scheduler.waiting)

    def add(self, request: Request) -> None:
        self._scheduler.add(request)

    def release(self, request: Request) -> None:
        """Forgets a request and frees what it holds, in whatever state a failure left it; nothing happens to
        one that is released already."""
        self._scheduler.remove(request)
        if not request.started:
            return
        request.started = False
        with suppress(KeyError):
            self._model.cache.free(request.seq)
        self._controller.stop(request.seq)
        if self._drafter:
            self._drafter.stop(request.seq)

    def schedule(self) -> list[Slot[Request]]:
        """Who takes part in the next round; empty when there is nothing to do."""
        return self._scheduler.schedule(self._budget)

    def run(self, slots: Sequence[Slot[Request]]) -> Round:
        """One round. When it raises, the requests of `slots` are in no state to go on: release them."""
        began = time.perf_counter()
        self._drawing = 0.0
        for slot in slots:
            self._start(slot.job)
        drafts = self._draft(slots)
        drafted = time.perf_counter()
        logits = self._model.forward([_segment(*pair) for pair in zip(slots, drafts, strict=True)])
        verified = time.perf_counter()
        shares = _shares(slots, drafts, logits)
        outcomes = tuple(map(self._settle, slots, drafts, shares))
        ended = time.perf_counter()
        drafting = drafted - began - self._drawing
        return Round(outcomes, began, ended, drafting, verifying=verified - drafted)

    def _budget(self, request: Request, load: int) -> int:
        if self._drafter is None:
            return 0
        # The target adds a token of its own, so a draft as long as what remains would waste its last row.
        budget = min(self._controller.budget(request.seq, load), request.remaining - 1)
        return budget if request.draft_tokens is None else min(budget, request.draft_tokens)

    def _start(self, request: Request) -> None:
        if request.started:
            return
        request.started = True
        self._model.cache.add(request.seq)
        if self._drafter:
            self._drafter.start(request.seq, request.prompt)

    def _draft(self, slots: Sequence[Slot[Request]]) -> list[Draft]:
        drafts = [Draft()] * len(slots)
        drafting = [i for i, slot in enumerate(slots) if slot.budget]
        if self._drafter is None or not drafting:
            return drafts
        asked = [self._asked(slots[i]) for i in drafting]
        budgets = [slots[i].budget for i in drafting]
        proposed = checked(self._drafter.propose(asked), budgets, self._model.vocab_size, self._drafter.name)
        for i, draft in zip(drafting, proposed, strict=True):
            drafts[i] = draft
        return drafts

    def _asked(self, slot: Slot[Request]) -> DraftRequest:
        request = slot.job
        draw = self._draw_for(request)

        def timed(
            logits: NDArray[np.float32], drafted: Sequence[int]
        ) -> tuple[int, NDArray[np.float64] | None]:
            began = time.perf_counter()
            drawn = draw(logits, drafted)
            self._drawing += time.perf_counter() - began
            return drawn

        return DraftRequest(request.seq, request.tokens, slot.budget, timed)

    # What decides about tokens, apart from the bookkeeping: `audit.broken` puts its faults here.

    def _draw_for(self, request: Request) -> Draw:
        return draw_for(request, self._mode, self._model.vocab_size)

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        return judge(request, draft, logits, self._mode)

    def _extend(self, request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
        return request.extend(tokens)

    def _settle(self, slot: Slot[Request], draft: Draft, logits: NDArray[np.float32]) -> Outcome:
        """Verifies and commits. An error of the request's own ends this request alone."""
        request = slot.job
        base = request.num_computed
        if not len(logits):
            request.num_computed += slot.prompt_rows
            return Outcome(slot, draft)
        try:
            verdict = self._judge(request, draft, logits)
        except SurefootError as error:
            self.release(request)
            return Outcome(slot, draft, error=error)
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.next_token]
        emitted = self._extend(request, tokens)
        logprobs = logprobs_of(request, emitted, verdict, logits)
        request.logprobs += logprobs
        if request.finished:
            self.release(request)
        else:
            request.num_computed += slot.prompt_rows or 1 + len(verdict.path)
            self._roll_back(request, base, draft, verdict)
            if slot.budget:
                self._observe(request, draft, verdict)
            assert request.num_computed == len(request.tokens) - 1 == self._model.cache.length(request.seq)
        return Outcome(slot, draft, verdict, emitted, logprobs)

    def _roll_back(self, request: Request, base: int, draft: Draft, verdict: Verdict) -> None:
        if draft.parents is not None:
            self._model.cache.keep(request.seq, base, [node + 1 for node in (ROOT, *verdict.path)])
        elif len(verdict.path) < len(draft.tokens):
            self._model.cache.truncate(request.seq, request.num_computed)

    def _observe(self, request: Request, draft: Draft, verdict: Verdict) -> None:
        self._controller.observe(request.seq, len(draft.tokens), verdict)
        if self._drafter:
            self._drafter.observe(request.seq, verdict)


def _segment(slot: Slot[Request], draft: Draft) -> Segment:
    request = slot.job
    if slot.prompt_rows:
        chunk = request.prompt[request.num_computed : request.num_computed + slot.prompt_rows]
        return Segment(request.seq, chunk, _wanted(slot, draft))
    parents = None if draft.parents is None else (ROOT, *(parent + 1 for parent in draft.parents))
    return Segment(request.seq, (request.tokens[-1], *draft.tokens), _wanted(slot, draft), parents)


def _wanted(slot: Slot[Request], draft: Draft) -> int:
    """Rows whose logits verification needs: none before the last chunk of a prompt."""
    if slot.prompt_rows:
        return int(slot.prompt_rows == slot.job.prompt_left)
    return 1 + len(draft.tokens)


def _shares(
    slots: Sequence[Slot[Request]], drafts: Sequence[Draft], logits: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """Each request's rows of a pass, as views."""
    ends = list(accumulate(map(_wanted, slots, drafts), initial=0))
    return [logits[start:end] for start, end in pairwise(ends)]
