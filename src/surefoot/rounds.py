"""One request's share of a round: how its drafts are drawn, and what the target makes of them.

Rows are looked at one by one and only as far as the verdict needs them: over a vocabulary of 150,000 the
transforms of a row cost as much as a layer of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot import noise, sampling, verify
from surefoot.drafters.base import Draw
from surefoot.noise import Stream
from surefoot.request import Request
from surefoot.sampling import Candidates, TopLogprobs
from surefoot.tree import ROOT, parents_of, path_to
from surefoot.types import Draft, SurefootError, Verdict, VerifyMode
from surefoot.verify import Rule


def draw_for(request: Request, mode: VerifyMode, vocab_size: int) -> Draw:
    """How the next draft tokens of a request are drawn: from the drafter's row under the request's own
    transforms.

    Coupled, under the noise of the target's own choice at that position, so that the two agree as often as
    they can. Otherwise under noise of this round alone, and the distribution is handed on. At temperature 0
    it is the argmax. vocab_size: of the target; what the drafter lacks of it has probability zero.
    """
    position = len(request.tokens)

    def draw(logits: NDArray[np.float32], drafted: Sequence[int]) -> tuple[int, NDArray[np.float64] | None]:
        history = request.before(drafted)
        candidates = sampling.target_probs(_over(logits, vocab_size), request.params, history)
        if _plain(request, mode):
            return _choice(request, position + len(drafted), candidates), None
        key = noise.round_key(request.seed, request.choice, position, len(drafted), Stream.DRAFT)
        return noise.race(key, candidates.ids, candidates.probs), candidates.dense(vocab_size)

    return draw


def judge(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
    """Verifies a draft against the target.

    logits: [1 + draft tokens, vocabulary], the target's rows after the last committed token and after each
    draft token. `mode` falls back to what it equals: every mode is greedy equality at temperature 0, `block`
    is `rejection` for tokens that were not drawn, and for trees. Raises SurefootError when no token may
    follow the last committed one.
    """
    if _plain(request, mode):
        position = len(request.tokens)

        def choose(node: int) -> int:
            candidates = _candidates(request, draft, logits, node)
            return _choice(request, position + len(_down_to(draft, node)), candidates)

        return _as_far_as_it_goes(draft, lambda: verify.coupled(draft, choose))
    by_block = mode == "block" and draft.probs is not None and draft.parents is None
    return judge_by(verify.block if by_block else verify.rejection, request, draft, logits)


def judge_by(rule: Rule, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
    """Verifies a draft by a rule that needs fresh noise. Arguments and errors as `judge`."""

    def target_probs(node: int) -> NDArray[np.float64]:
        return _candidates(request, draft, logits, node).dense(logits.shape[1])

    def uniform(node: int) -> float:
        return noise.uniform(_key(request, node, Stream.ACCEPT))

    def draw(weights: NDArray[np.float64], node: int) -> int:
        ids = np.flatnonzero(weights)
        return noise.race(_key(request, node, Stream.RESIDUAL), ids, weights[ids])

    return _as_far_as_it_goes(draft, lambda: rule(draft, target_probs, uniform, draw))


class _DeadEndError(Exception):
    """Nothing may follow a node of a draft."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


def _as_far_as_it_goes(draft: Draft, judged: Callable[[], Verdict]) -> Verdict:
    """What a rule says. Where it comes to an accepted token that nothing may follow, that one is the last: it
    may end the request, and if it doesn't the next round will find the same with nothing drafted."""
    try:
        return judged()
    except _DeadEndError as end:
        path = path_to(parents_of(draft.parents, len(draft.tokens)), end.node)
        return Verdict(path[:-1], draft.tokens[end.node], bonus=False, tested=len(path))


def logprobs_of(
    request: Request, emitted: Sequence[int], verdict: Verdict, logits: NDArray[np.float32]
) -> tuple[TopLogprobs, ...]:
    """The target's log-probabilities of the emitted tokens, each from the row that it follows; none when
    they weren't asked for."""
    count = request.params.logprobs
    if count is None:
        return ()
    rows = (logits[node + 1] for node in (ROOT, *verdict.path))
    return tuple(sampling.top_logprobs(row, token, count) for token, row in zip(emitted, rows, strict=False))


def prompt_logprobs_of(
    tokens_following: Sequence[int], logits: NDArray[np.float32], count: int
) -> list[TopLogprobs]:
    """The target's log-probabilities of prompt tokens and of the `count` most likely ones in their places.

    tokens_following: what the prompt goes on with after each row of logits, [rows, vocabulary].
    """
    return [
        sampling.top_logprobs(row, token, count) for token, row in zip(tokens_following, logits, strict=True)
    ]


def _plain(request: Request, mode: VerifyMode) -> bool:
    return mode == "coupled" or request.params.temperature == 0


def _candidates(request: Request, draft: Draft, logits: NDArray[np.float32], node: int) -> Candidates:
    """What may follow a node, as the target has it."""
    history = request.before(_down_to(draft, node))
    try:
        return sampling.target_probs(logits[node + 1], request.params, history)
    except SurefootError as error:
        if node == ROOT:
            raise
        raise _DeadEndError(node) from error


def _choice(request: Request, position: int, candidates: Candidates) -> int:
    return noise.race(
        noise.token_key(request.seed, request.choice, position), candidates.ids, candidates.probs
    )


def _key(request: Request, node: int, stream: Stream) -> noise.Key:
    return noise.round_key(request.seed, request.choice, len(request.tokens), node, stream)


def _down_to(draft: Draft, node: int) -> Sequence[int]:
    """The draft tokens from the root down to `node`."""
    if draft.parents is None:
        return draft.tokens[: node + 1]
    return [draft.tokens[i] for i in path_to(draft.parents, node)]


def _over(logits: NDArray[np.float32], vocab_size: int) -> NDArray[np.float32]:
    """A drafter's row over the target's vocabulary."""
    if len(logits) >= vocab_size:
        return logits[:vocab_size]
    row = np.full(vocab_size, -np.inf, np.float32)
    row[: len(logits)] = logits
    return row
