"""A drafter on a stage: requests come and go as in the engine, and a script says what becomes of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from surefoot.drafters.base import Drafter, DraftRequest
from surefoot.drafters.contract import checked
from surefoot.request import Limits, Request
from surefoot.rounds import draw_for
from surefoot.tree import ROOT, children, parents_of, path_to
from surefoot.types import Draft, SamplingParams, SurefootError, Verdict, VerifyMode

MakeDrafter = Callable[[], Drafter]

# So warm that drafts vary; and the raw row is not the one that is drawn from.
PARAMS = SamplingParams(temperature=1.5, top_p=0.95, max_tokens=10**6, seed=1)
LIMITS = Limits(max_length=10**6)
FRESH = 10**6  # sequences of the drafters that others are compared with have numbers from here on
CLOSE = 1e-5  # probabilities: the same row computed in other company may differ by its rounding


@dataclass(frozen=True)
class Ask:
    """One request's share of a round. accepted: how many levels of the draft stand, as far as it goes; None
    when the request ends in this round, and the drafter never hears of it."""

    seq: int
    budget: int
    accepted: int | None


@dataclass(frozen=True)
class Drawn:
    """What `draw` gave. drafted: the tokens it was told of."""

    drafted: tuple[int, ...]
    token: int
    probs: NDArray[np.float64] | None


@dataclass
class Asked:
    """A request as a drafter gets it, with a record of what is drawn for it."""

    request: Request
    budget: int
    mode: VerifyMode
    vocab_size: int
    draws: list[Drawn] = field(default_factory=list)

    def as_seq(self, seq: int) -> DraftRequest:
        return DraftRequest(seq, self.request.tokens, self.budget, self._draw)

    def _draw(
        self, logits: NDArray[np.float32], drafted: Sequence[int]
    ) -> tuple[int, NDArray[np.float64] | None]:
        token, probs = draw_for(self.request, self.mode, self.vocab_size)(logits, drafted)
        kept = None if probs is None else probs.copy()  # the drafter may do with its own what it likes
        self.draws.append(Drawn(tuple(drafted), token, kept))
        return token, probs


class Play:
    """One drafter and everything that happens to it. Whatever it does wrong raises AssertionError, with all
    that happened before.

    learns: its drafts may depend on more than the tokens of their own request.
    """

    def __init__(self, make_drafter: MakeDrafter, mode: VerifyMode, vocab_size: int, learns: bool) -> None:
        self._make_drafter, self._mode = make_drafter, mode
        self._vocab_size, self._learns = vocab_size, learns
        self._drafter = make_drafter()
        self._requests: dict[int, Request] = {}
        self._events: list[str] = []
        self._fresh = count(FRESH)
        self.drafted = 0  # tokens

    def start(self, seq: int, prompt: Sequence[int]) -> None:
        self._requests[seq] = new_request(seq, prompt, seed=1)
        self._events.append(f"start {seq} with {list(prompt)}")
        with self._blaming("start"):
            self._drafter.start(seq, self._requests[seq].prompt)

    def stop(self, seq: int) -> None:
        del self._requests[seq]
        self._events.append(f"stop {seq}")
        with self._blaming("stop"):
            self._drafter.stop(seq)

    def end(self) -> None:
        """Stops what is left."""
        for seq in list(self._requests):
            self.stop(seq)

    def decode(self, seq: int, tokens: int) -> None:
        """Tokens that the target adds without asking for drafts."""
        request = self._requests[seq]
        for _ in range(tokens):
            request.extend([next_token(request, (), self._vocab_size)])
        self._events.append(f"{seq} gets {request.tokens[-tokens:]} without a draft")

    def round(self, *asks: Ask) -> None:
        """One round of drafting for all of `asks`, in this order, checked in every respect."""
        shares = [Asked(self._requests[a.seq], a.budget, self._mode, self._vocab_size) for a in asks]
        self._events.append("propose " + ", ".join(f"at most {a.budget} for {a.seq}" for a in asks))
        drafts = self._proposed(self._drafter, [s.as_seq(a.seq) for s, a in zip(shares, asks, strict=True)])
        told = [f"{ask.seq}: {_written(draft)}" for ask, draft in zip(asks, drafts, strict=True)]
        self._events[-1] += " → " + ", ".join(told)
        for ask, share, draft in zip(asks, shares, drafts, strict=True):
            wrong = wrong_probs(draft, share.draws)
            if wrong is None and not self._learns:
                wrong = self._unlike_fresh(share, draft)
            if wrong is not None:
                self._fail(f"for sequence {ask.seq} {wrong}")
        for ask, share, draft in zip(asks, shares, drafts, strict=True):
            self.drafted += len(draft.tokens)
            if ask.accepted is not None:
                self._commit(ask.seq, share.request, draft, ask.accepted)

    def _commit(self, seq: int, request: Request, draft: Draft, accepted: int) -> None:
        verdict = scripted_verdict(request, draft, accepted, self._vocab_size)
        request.extend([*(draft.tokens[node] for node in verdict.path), verdict.next_token])
        self._events.append(f"observe {seq}: {len(verdict.path)} accepted, then token {verdict.next_token}")
        with self._blaming("observe"):
            self._drafter.observe(seq, verdict)

    def _unlike_fresh(self, share: Asked, draft: Draft) -> str | None:
        """How a draft differs from that of a drafter that knows only the tokens; None if it doesn't."""
        fresh, seq = self._make_drafter(), next(self._fresh)
        anew = Asked(share.request, share.budget, share.mode, share.vocab_size)
        with self._blaming("in a new drafter, start"):
            fresh.start(seq, share.request.tokens)
        [wanted] = self._proposed(fresh, [anew.as_seq(seq)])
        with self._blaming("in a new drafter, stop"):
            fresh.stop(seq)
        new = f"a new drafter that starts with its {len(share.request.tokens)} tokens"
        if not share.draws and not anew.draws and not (draft.probs is None and wanted.probs is None):
            return None if _same_rows(draft, wanted) else f"it drew from other probabilities than {new}"
        if _same(draft, wanted):
            return None
        if (draft.tokens, draft.parents) == (wanted.tokens, wanted.parents):
            return f"it returned other probs than {new}"
        return f"it proposed {_written(draft)}; {new} proposes {_written(wanted)}"

    def _proposed(self, drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Draft]:
        before = [list(request.tokens) for request in requests]
        with self._blaming("propose"):
            proposed = drafter.propose(requests)
        try:
            drafts = checked(proposed, [r.budget for r in requests], self._vocab_size, drafter.name)
        except SurefootError as error:
            self._fail(str(error).partition(": ")[2])
        if before != [list(request.tokens) for request in requests]:
            self._fail("it changed the tokens of a request")
        return drafts

    @contextmanager
    def _blaming(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._fail(f"{call} raised {type(error).__name__}: {error}", error)

    def _fail(self, what: str, cause: Exception | None = None) -> NoReturn:
        events = "".join(f"\n  {event}" for event in self._events)
        raise AssertionError(
            f"drafter {self._drafter.name}: {what}\nafter, in mode {self._mode}:{events}"
        ) from cause


def new_request(seq: int, prompt: Sequence[int], seed: int) -> Request:
    return Request(seq, seq, 0, prompt, PARAMS, LIMITS, seed=seed)


def next_token(request: Request, banned: Sequence[int], vocab_size: int) -> int:
    """What a script has follow: the prompt's own tokens over and over, so that they repeat themselves."""
    start = len(request.tokens) % len(request.prompt)
    candidates: list[int] = [*request.prompt[start:], *request.prompt[:start], *range(vocab_size)]
    return next((token for token in candidates if token not in banned), candidates[0])


def scripted_verdict(request: Request, draft: Draft, accepted: int, vocab_size: int) -> Verdict:
    """Accepts so many levels of a draft if it has them, in a tree the last child, then the first, in turn."""
    below = children(parents_of(draft.parents, len(draft.tokens)))
    path: list[int] = []
    node, tested = ROOT, 0
    while len(path) < accepted and below[node]:
        siblings = below[node]
        node = siblings[-1 if len(path) % 2 == 0 else 0]
        tested += siblings.index(node) + 1
        path.append(node)
    rejected = [draft.tokens[child] for child in below[node]]
    token = next_token(request, rejected, vocab_size)
    return Verdict(tuple(path), token, bonus=not rejected, tested=tested + len(rejected))


def wrong_probs(draft: Draft, draws: Sequence[Drawn]) -> str | None:
    """What is wrong with the distributions a draft came with, as far as one draft shows it."""
    if draft.probs is None:
        return None
    parents = parents_of(draft.parents, len(draft.tokens))
    for node, (token, row) in enumerate(zip(draft.tokens, np.asarray(draft.probs), strict=True)):
        if not (row >= 0).all() or abs(row.sum() - 1) > CLOSE:
            return f"row {node} of its probs is no distribution: from {row.min():.4g} up, sum {row.sum():.4g}"
        if not row[token] > 0:
            return f"token {token} of its draft has no probability in row {node} of its probs"
        drafted = tuple(draft.tokens[i] for i in path_to(parents, parents[node]))
        given = [drawn for drawn in draws if drawn.drafted == drafted]
        if draws and token not in [drawn.token for drawn in given]:
            return f"token {node} of its draft is {token}, and draw gave {[drawn.token for drawn in given]}"
        if draws and not any(d.probs is not None and np.array_equal(d.probs, row) for d in given):
            return f"row {node} of its probs isn't the distribution that draw gave with token {token}"
    return None


def _same(one: Draft, other: Draft) -> bool:
    if (one.tokens, one.parents) != (other.tokens, other.parents):
        return False
    if one.probs is None or other.probs is None:
        return one.probs is other.probs
    return np.allclose(one.probs, other.probs, rtol=0, atol=CLOSE)


def _same_rows(one: Draft, other: Draft) -> bool:
    """Whether two drafts that drew by themselves had the same to draw from, as far as they drew the same."""
    if one.probs is None or other.probs is None:  # one of them is empty
        return True
    mine, theirs = (parents_of(draft.parents, len(draft.tokens)) for draft in (one, other))
    for node in range(min(len(mine), len(theirs))):
        if mine[node] != theirs[node]:
            break
        if not np.allclose(one.probs[node], other.probs[node], rtol=0, atol=CLOSE):
            return False
        if one.tokens[node] != other.tokens[node]:
            break
    return True


def _written(draft: Draft) -> str:
    return f"{list(draft.tokens)}" + ("" if draft.parents is None else f" below {list(draft.parents)}")
