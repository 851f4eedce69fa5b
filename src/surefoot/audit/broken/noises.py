"""Noise that isn't as fresh, or not as much a position's own, as a rule needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot import noise
from surefoot.audit.broken.engines import Judges, engine_with
from surefoot.audit.broken.rules import accepts_at_equality, by_tokens, recovers_unnormalised
from surefoot.drafters.base import Draw
from surefoot.engine import Engine
from surefoot.noise import Stream
from surefoot.request import Request
from surefoot.rounds import draw_for, judge, judge_by
from surefoot.types import Draft, Verdict, VerifyMode
from surefoot.verify import DrawFrom, Row, Rule, TargetProbs, Uniform

# Same-seed equality


def one_seed_for_the_batch() -> type[Engine]:
    """The seed of the first request in the batch serves all of them."""
    seeds: dict[int, int] = {}

    def submits(requests: Sequence[Request], drafts: list[Draft]) -> list[Draft]:
        seeds.update((request.seq, requests[0].seed) for request in requests)
        return drafts

    def judges(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
        return judge(_keyed(request, seed=seeds[request.seq]), draft, logits, mode)

    return engine_with(judges=judges, submits=submits)


def seed_of_its_own() -> type[Engine]:
    """The request's seed has no effect (vLLM #13196): every sequence brings another."""
    return _keyed_by(lambda request: _keyed(request, seed=request.seq))


def key_of_the_round() -> type[Engine]:
    """A position's noise depends on where the round began."""
    return _keyed_by(lambda request: _keyed(request, choice=len(request.tokens)))


def _keyed_by(seen: Callable[[Request], Request]) -> type[Engine]:
    return engine_with(
        draws=lambda request, mode, vocab_size: draw_for(seen(request), mode, vocab_size),
        judges=lambda request, draft, logits, mode: judge(seen(request), draft, logits, mode),
    )


def _keyed(request: Request, **changes: int) -> Request:
    view = copy(request)
    for name, value in changes.items():
        setattr(view, name, value)
    return view


# Freshness


def draws_by_position(request: Request, mode: VerifyMode, vocab_size: int) -> Draw:
    """A position that was dropped is drafted again with the noise it had."""
    draw = draw_for(request, mode, vocab_size)

    def drawn(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, Any]:
        token, row = draw(logits, drafted)
        if row is None:
            return token, None
        ids = np.flatnonzero(row)
        return noise.race(_of_position(request, len(drafted), Stream.DRAFT), ids, row[ids]), row

    return drawn


def judges_by_position(rule: Rule) -> Judges:
    """A position that was dropped is tested again with the noise it had."""

    def judges(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
        def reused(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
            def uniform_of(node: int) -> float:
                return noise.uniform(_of_position(request, node, Stream.ACCEPT))

            return rule(draft, target_probs, uniform_of, draw)

        return judge_by(reused, request, draft, logits)

    return judges


def _of_position(request: Request, node: int, stream: Stream) -> noise.Key:
    return noise.round_key(request.seed, request.choice, 0, len(request.tokens) + node, stream)


def length_by_dropped_tail(rule: Rule, halt: int) -> type[Engine]:
    """Noise by position, and no draft after a tail that was dropped and began with a token below `halt`: the
    length knows what the next draft would be."""
    halted: set[int] = set()
    judges = judges_by_position(rule)

    def watching(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
        verdict = judges(request, draft, logits, mode)
        dropped = draft.tokens[len(verdict.path) + 1 :]
        if dropped and dropped[0] < halt:
            halted.add(request.seq)
        else:
            halted.discard(request.seq)
        return verdict

    def submits(requests: Sequence[Request], drafts: list[Draft]) -> list[Draft]:
        return [
            Draft(source=draft.source) if request.seq in halted else draft
            for request, draft in zip(requests, drafts, strict=True)
        ]

    return engine_with(draws=draws_by_position, judges=watching, submits=submits)


# Precision


def coarse_uniforms(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
    """u ≤ p / q with a u in bfloat16, which is 0 once in 256 draws: then a token of no probability stands."""
    rule = by_tokens(accepts_at_equality)
    return rule(draft, target_probs, lambda node: np.floor(uniform(node) * 256) / 256, draw)


def judges_without_normalising(
    request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode
) -> Verdict:
    """The residual keeps the mass it has, and its token is found where the sum of the weights passes a
    uniform: what is missing goes to the last token."""

    def rule(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
        def found(weights: Row, node: int) -> int:
            key = noise.round_key(request.seed, request.choice, len(request.tokens), node, Stream.RESIDUAL)
            return min(int(np.searchsorted(np.cumsum(weights), noise.uniform(key))), len(weights) - 1)

        return by_tokens(recovers=recovers_unnormalised)(draft, target_probs, uniform, found)

    return judge_by(rule, request, draft, logits)
