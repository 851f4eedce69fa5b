"""One round after another: schedule, draft, one pass of the target, verify, commit. Knows no text."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.batch import chooses, legal, segment, shares
from surefoot.drafters.base import Drafter, DraftRequest, Draw
from surefoot.drafters.contract import checked
from surefoot.lookahead import Controller
from surefoot.memory import Memory
from surefoot.models.base import Model
from surefoot.request import Request
from surefoot.results import Load
from surefoot.rounds import draw_for, judge, logprobs_of, prompt_logprobs_of
from surefoot.sampling import TopLogprobs
from surefoot.scheduler import Limits, Scheduler, Slot
from surefoot.tree import ROOT
from surefoot.types import Draft, Verdict, VerifyMode

logger = logging.getLogger(__name__)

_LOGIT_BYTES = 64 * 2**20  # of the prompt rows of a pass, where all their logits are wanted


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round did to one request. verdict: None while the prompt is not through, or on an error.
    emitted, logprobs: what was delivered. error: the request can't go on, and is dropped. cached_tokens: of
    its prompt, in its first round."""

    slot: Slot[Request]
    draft: Draft
    verdict: Verdict | None = None
    emitted: tuple[int, ...] = ()
    logprobs: tuple[TopLogprobs, ...] = ()
    error: Exception | None = None
    cached_tokens: int = 0


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
        prompt_rows: int,
        prefix_cache: bool,
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._controller = controller
        self._mode = mode
        self._memory = Memory(model.cache, reuse=prefix_cache, preempted=self._stop_drafting)
        logit_rows = max(1, _LOGIT_BYTES // (4 * model.vocab_size))
        self._limits = Limits(max_requests, max_rows, prompt_rows, logit_rows)
        self._scheduler: Scheduler[Request] = Scheduler(self._limits, self._memory)
        self._drawing = 0.0  # seconds of this round

    def __len__(self) -> int:
        return len(self._scheduler)

    @property
    def load(self) -> Load:
        """What is in flight, and what it takes."""
        cache = self._model.cache
        used, free = cache.used_pages(), cache.free_pages()
        return Load(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            pages_used=used,
            pages_total=None if free is None else used + free,
            pages_cached=self._memory.cached_pages,
            preemptions=self._memory.preemptions,
        )

    @property
    def oldest(self) -> Request | None:
        """The request that is never preempted."""
        return next(iter((*self._scheduler.running, *self._scheduler.waiting)), None)

    def add(self, request: Request) -> None:
        self._scheduler.add(request)

    def add_first(self, *requests: Request) -> None:
        """Adds requests that go before all others that wait."""
        self._scheduler.add(*requests, first=True)

    def release(self, request: Request) -> None:
        """Forgets a request between rounds; its rows stay for others that begin alike, while there is room.
        Nothing happens to one that is released already."""
        self._forget(request)
        self._memory.retire(request)

    def drop(self, request: Request) -> None:
        """Forgets a request and frees what it holds, in whatever state a failure left it."""
        self._forget(request)
        self._memory.drop(request)

    def close(self) -> None:
        """Drops every request, and what others left behind."""
        for request in (*self._scheduler.running, *self._scheduler.waiting):
            self.drop(request)
        self._memory.clear()

    def schedule(self) -> list[Slot[Request]]:
        """Who takes part in the next round; empty when there is nothing to do, or when the oldest request
        can't be given the pages that it needs."""
        return self._scheduler.schedule(self._budget)

    def run(self, slots: Sequence[Slot[Request]]) -> list[Round]:
        """One round. When drafting or the pass fails it is undone, and each request runs it alone, so that
        none fails of another's fault. A request that fails ends with an error, and is dropped."""
        first = {slot.job.seq for slot in slots if not (slot.job.started or slot.job.preemptions)}
        return [
            replace(round_, outcomes=tuple(_with_cached_tokens(each, first) for each in round_.outcomes))
            for round_ in self._run(slots)
        ]

    def _run(self, slots: Sequence[Slot[Request]]) -> list[Round]:
        began = time.perf_counter()
        try:
            found = self._pass(slots)
        except Exception as error:
            if len(slots) > 1:
                logger.warning("a round failed, so its %d requests run alone: %r", len(slots), error)
            failed = {slot.job.seq: self._undo(slot.job) for slot in slots}
            alone = len(slots) == 1
            rounds = []
            for slot in slots:
                fault = failed[slot.job.seq] or (error if alone else None)
                rounds += [self._fault(slot, fault, began)] if fault else self._run([slot])
            return rounds
        outcomes = tuple(map(self._settle, slots, found.drafts, found.shares))
        return [Round(outcomes, began, time.perf_counter(), found.drafting, found.verifying)]

    def _pass(self, slots: Sequence[Slot[Request]]) -> _Found:
        """Drafts and the target's logits: nothing is committed yet."""
        began = time.perf_counter()
        self._drawing = 0.0
        for slot in slots:
            self._start(slot.job)
        drafts = self._draft(slots)
        drafted = time.perf_counter()
        logits = self._model.forward([segment(*pair) for pair in zip(slots, drafts, strict=True)])
        verifying = time.perf_counter() - drafted
        return _Found(drafts, shares(slots, drafts, logits), drafted - began - self._drawing, verifying)

    def _undo(self, request: Request) -> Exception | None:
        """Brings a request back to where the round began; what kept it from that, if anything did."""
        try:
            if self._model.cache.length(request.seq) > request.num_computed:
                self._model.cache.truncate(request.seq, request.num_computed)
            if request.started and self._drafter:
                self._drafter.stop(request.seq)
                self._drafter.start(request.seq, request.tokens)
        except Exception as error:
            return error
        return None

    def _fault(self, slot: Slot[Request], error: Exception, began: float) -> Round:
        self.drop(slot.job)
        return Round((Outcome(slot, Draft(), error=error),), began, time.perf_counter(), 0.0, 0.0)

    def _forget(self, request: Request) -> None:
        self._scheduler.remove(request)
        self._controller.stop(request.seq)
        self._stop_drafting(request)

    def _stop_drafting(self, request: Request) -> None:
        if not request.started:
            return
        request.started = False
        try:
            if self._drafter:
                self._drafter.stop(request.seq)
        except Exception:  # the request has no more use for it
            logger.exception("drafter %s: it failed to stop", self._drafter.name if self._drafter else "")

    def _budget(self, request: Request, load: int) -> int:
        if self._drafter is None:
            return 0
        longest = request.draft_tokens
        if longest is None:
            longest = self._controller.budget(request.seq, load)
        # The target adds a token of its own, so a draft as long as what remains would waste its last row.
        return min(longest, self._limits.max_rows - 1, request.remaining - 1)

    def _start(self, request: Request) -> None:
        if request.started:
            return
        request.started = True
        if self._drafter:
            self._drafter.start(request.seq, request.tokens)

    def _draft(self, slots: Sequence[Slot[Request]]) -> list[Draft]:
        drafts = [Draft()] * len(slots)
        drafting = [i for i, slot in enumerate(slots) if slot.budget]
        if self._drafter is None or not drafting:
            return drafts
        asked = [self._asked(slots[i]) for i in drafting]
        budgets = [slots[i].budget for i in drafting]
        proposed = checked(self._drafter.propose(asked), budgets, self._model.vocab_size, self._drafter.name)
        for i, draft in zip(drafting, proposed, strict=True):
            drafts[i] = legal(slots[i].job, draft)
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
        try:
            if not slot.prompt_rows:
                return self._decode(slot, draft, logits)
            return self._compute_prompt(slot, logits)
        except Exception as error:
            self.drop(slot.job)
            return Outcome(slot, draft, error=error)

    def _compute_prompt(self, slot: Slot[Request], logits: NDArray[np.float32]) -> Outcome:
        request, count = slot.job, slot.job.params.prompt_logprobs
        if request.every_row and count is not None:
            first = len(request.prompt_logprobs) + 1
            following = request.prompt[first : request.num_computed + slot.prompt_rows + 1]
            request.prompt_logprobs += prompt_logprobs_of(following, logits[: len(following)], count)
        if chooses(slot):
            return self._decode(slot, Draft(), logits[-1:])
        request.num_computed += slot.prompt_rows
        self._memory.commit(request)
        return Outcome(slot, Draft())

    def _decode(self, slot: Slot[Request], draft: Draft, logits: NDArray[np.float32]) -> Outcome:
        request = slot.job
        verdict = self._judge(request, draft, logits)
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.next_token]
        emitted = self._extend(request, tokens)
        logprobs = logprobs_of(request, emitted, verdict, logits)
        request.logprobs += logprobs
        self._roll_back(request, draft, verdict)
        if request.finished:
            self.release(request)
        else:
            self._memory.commit(request)
            if slot.budget:
                self._observe(request, draft, verdict)
            assert request.num_computed == len(request.tokens) - 1 == self._model.cache.length(request.seq)
        return Outcome(slot, draft, verdict, emitted, logprobs)

    def _roll_back(self, request: Request, draft: Draft, verdict: Verdict) -> None:
        """Leaves the rows of all tokens but the last in the cache."""
        base, rows = request.num_computed, len(request.tokens) - 1
        if draft.parents is not None:
            path = [node + 1 for node in (ROOT, *verdict.path)]
            self._model.cache.keep(request.seq, base, path[: rows - base])
        elif rows < self._model.cache.length(request.seq):
            self._model.cache.truncate(request.seq, rows)
        request.num_computed = rows

    def _observe(self, request: Request, draft: Draft, verdict: Verdict) -> None:
        self._controller.observe(request.seq, len(draft.tokens), verdict)
        if self._drafter:
            self._drafter.observe(request.seq, verdict)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a pass found. shares: of each slot, the logits that it wanted. Times as in `Round`."""

    drafts: list[Draft]
    shares: list[NDArray[np.float32]]
    drafting: float
    verifying: float


def _with_cached_tokens(outcome: Outcome, first: set[int]) -> Outcome:
    request = outcome.slot.job
    return replace(outcome, cached_tokens=request.cached_tokens) if request.seq in first else outcome
