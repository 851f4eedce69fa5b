"""From a row of logits to the distribution its token is chosen from.

One row in, candidates out, in float64: nothing depends on other rows, and every tie goes to the lowest id.
Order of the transforms: logit bias, bad words, min-tokens, grammar, repetition penalty, presence and
frequency penalty, temperature, top-k, top-p, min-p. What is banned stays banned, so the grammar may stand
anywhere before top-k: from there on, filters count the tokens that it allows and no others. The last three
stand as in transformers; vLLM puts min-p before top-k and top-p, which differs only in that top-p then
counts the mass of fewer tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.types import SamplingParams, SurefootError

_COARSE = 2.0**-4  # top-p looks first at tokens this much less likely than the best, then at rarer ones
_RARE = 2.0**-60  # and gives up here, where even a whole vocabulary has no mass to speak of
_LANES = 64  # tokens of which top-k looks at the largest first
_MARGIN = 1.0 + 1e-9  # how a sum in one order may differ from a sum in another, and more


@dataclass(frozen=True, slots=True)
class Candidates:
    """A distribution over the tokens that can be chosen.

    ids: [m] int64, ascending. probs: [m] float64, positive, sum 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def dense(self, vocab_size: int) -> NDArray[np.float64]:
        """[vocab_size], zero where nothing can be chosen."""
        row = np.zeros(vocab_size)
        row[self.ids] = self.probs
        return row


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before a row, and what the request's transforms need to know beside its parameters.

    prompt: the request's prompt. output: what was generated, drafted tokens before the row included.
    end_ids: the ids that end the text (end of sequence, stop tokens), which `min_tokens` holds back.
    bad_words: each as token ids, at least one. vocab_limit: ids from here on are padding and never chosen.
    allowed: [vocabulary] bool, what a grammar lets follow; None where there is none.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    end_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    vocab_limit: int | None = None
    allowed: NDArray[np.bool_] | None = None

    def then(self, drafted: Sequence[int]) -> History:
        """The history of a row that follows some drafted tokens."""
        return replace(self, output=[*self.output, *drafted])


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Natural logarithms of the model's own probabilities, before any transform.

    chosen: of the token that was chosen. ids, values: [n], the most likely ones, likeliest first.
    """

    chosen: float
    ids: NDArray[np.int64]
    values: NDArray[np.float64]


def target_probs(logits: NDArray[np.float32], params: SamplingParams, history: History) -> Candidates:
    """The distribution a row's token is chosen from; at temperature 0 a single candidate.

    logits: [vocabulary] float32; -inf bans a token, and the row is left as it was. Raises SurefootError
    when nothing is left to choose from, ValueError when a logit is NaN or +inf.
    """
    row: NDArray[np.floating] = logits if history.vocab_limit is None else logits[: history.vocab_limit]
    if _adjusts(params, history):
        row = row.astype(np.float64)
        _bias(row, params)
        _ban(row, params, history)
        _penalize(row, params, history)
    best = int(row.argmax())
    _check_best(float(row[best]), history)
    if params.temperature == 0:
        return Candidates(np.array([best], np.int64), np.ones(1))
    ids = None if history.allowed is None else np.flatnonzero(row > -np.inf)  # often few
    if 0 < params.top_k < len(row):
        ids = _top_k(row, params.top_k)
    weights = (row if ids is None else row[ids]).astype(np.float64)
    weights -= float(row[best])
    with np.errstate(over="ignore"):  # a temperature below 1e-306 makes -inf of any difference: the limit
        weights /= params.temperature
    np.exp(weights, out=weights)
    return _filtered(weights, ids, params)


def top_logprobs(logits: NDArray[np.float32], chosen: int, count: int) -> TopLogprobs:
    """Log-softmax of a row as the model gave it, for the chosen token and the `count` most likely ones."""
    row = logits.astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    ids = _top_k(row, count) if count < len(row) else np.arange(len(row))
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return TopLogprobs(float(row[chosen]), ids, row[ids])


def _adjusts(params: SamplingParams, history: History) -> bool:
    return bool(
        params.logit_bias
        or history.bad_words
        or len(history.output) < params.min_tokens
        or params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or history.allowed is not None
    )


def _bias(row: NDArray[np.floating], params: SamplingParams) -> None:
    for token, bias in params.logit_bias.items():
        if token >= len(row):
            raise SurefootError(f"logit_bias: token {token} is out of range; the largest is {len(row) - 1}")
        row[token] += bias


def _ban(row: NDArray[np.floating], params: SamplingParams, history: History) -> None:
    if len(history.output) < params.min_tokens:
        row[_within(np.array(history.end_ids, np.int64), row)] = -np.inf
    if history.allowed is not None:
        row[~history.allowed[: len(row)]] = -np.inf
    if not history.bad_words:
        return
    reach = max(len(word) for word in history.bad_words) - 1
    before = [*history.prompt[-reach:], *history.output[-reach:]] if reach else []
    for word in history.bad_words:
        start = list(word[:-1])
        if word[-1] < len(row) and (not start or before[-len(start) :] == start):
            row[word[-1]] = -np.inf


def _penalize(row: NDArray[np.floating], params: SamplingParams, history: History) -> None:
    output = np.asarray(history.output, np.int64)
    if params.repetition_penalty != 1:
        before = np.concatenate([np.asarray(history.prompt, np.int64), output])
        seen = _within(np.unique(before), row)
        factors = np.where(row[seen] > 0, 1 / params.repetition_penalty, params.repetition_penalty)
        row[seen] *= factors
    if params.presence_penalty or params.frequency_penalty:
        used, counts = np.unique(output, return_counts=True)
        row[used] -= params.presence_penalty + params.frequency_penalty * counts


def _within(ids: NDArray[np.int64], row: NDArray[np.floating]) -> NDArray[np.int64]:
    return ids[(ids >= 0) & (ids < len(row))]


def _check_best(best: float, history: History) -> None:
    if np.isfinite(best):
        return
    position = len(history.prompt) + len(history.output)
    if best == -np.inf:
        which = "every token" if history.allowed is None else "every token that the grammar allows"
        raise SurefootError(f"position {position}: {which} is banned, so none can be chosen")
    raise ValueError(f"the logits of position {position} contain {best}")


def _top_k(row: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """The ids of the `count` largest, ascending; of those that tie for the last places the lowest."""
    if count == 0:
        return np.empty(0, np.int64)
    ids = np.arange(len(row))
    if len(row) >= _LANES * count:
        # The count-th largest of the lanes' maxima has `count` tokens at or above it, so no other can win.
        lanes = row[: len(row) // _LANES * _LANES].reshape(-1, _LANES).max(axis=1)
        ids = np.flatnonzero(row >= _largest(lanes, count))
    least = _largest(row[ids], count)
    ids = ids[row[ids] >= least]
    surplus = len(ids) - count
    return np.delete(ids, np.flatnonzero(row[ids] == least)[-surplus:]) if surplus else ids


def _largest(values: NDArray[np.floating], rank: int) -> np.floating:
    result: np.floating = np.partition(values, len(values) - rank)[len(values) - rank]
    return result


def _filtered(
    weights: NDArray[np.float64], ids: NDArray[np.int64] | None, params: SamplingParams
) -> Candidates:
    """top-p and min-p over weights whose largest is 1, then normalised."""
    if params.top_p < 1:
        kept = _top_p(weights, params.top_p)
        weights = weights[kept]
        ids = kept if ids is None else ids[kept]
    floor = max(params.min_p, np.finfo(np.float64).tiny)
    if weights.min() < floor:
        kept = np.flatnonzero(weights >= floor)
        weights = weights[kept]
        ids = kept if ids is None else ids[kept]
    if ids is None:
        ids = np.arange(len(weights))
    return Candidates(ids, weights / weights.sum())


def _top_p(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Indices, ascending, of the fewest largest weights that hold `top_p` of the sum, the one that crosses it
    included and ties to the lowest: what a stable sort of all would find, by sorting the few that matter."""
    needed = top_p * weights.sum()
    few = _holding(weights, needed)
    ranked = np.sort(weights[few])[::-1]
    count = min(int(np.count_nonzero(np.cumsum(ranked) < needed)) + 1, len(few))
    least = ranked[count - 1]
    above = weights[few] > least
    tied = np.flatnonzero(weights[few] == least)[: count - np.count_nonzero(above)]
    above[tied] = True
    return np.compress(above, few)


def _holding(weights: NDArray[np.float64], needed: float) -> NDArray[np.int64]:
    """Indices, ascending, of all weights above some threshold, which together exceed `needed`."""
    threshold = _COARSE
    while threshold > _RARE:
        few = np.flatnonzero(weights >= threshold)
        if weights[few].sum() > needed * _MARGIN:
            return few
        threshold *= _COARSE
    return np.arange(len(weights))
