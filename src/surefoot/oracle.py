"""Speculative decoding over two functions `tokens -> logits`: the shortest correct form of it.

For people who bring their own models, and for the tests, which hold the engine to it. No cache, no batch:
every row is computed from its whole prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot import verify
from surefoot.noise import Key, Stream, race, round_key, token_key, uniform
from surefoot.sampling import Candidates, History, target_probs
from surefoot.types import VERIFY_MODES, Draft, SamplingParams, SurefootError, Verdict, VerifyMode, whole

LogitsOf = Callable[[tuple[int, ...]], ArrayLike]
"""All tokens so far → logits of the next one, [vocabulary]."""


def plain_decode(
    target: LogitsOf,
    prompt: Sequence[int],
    params: SamplingParams | None = None,
    *,
    end_ids: Sequence[int] = (),
    choice: int = 0,
) -> list[int]:
    """The output tokens without speculation, one target row each: what `coupled` must repeat exactly."""
    return speculative_decode(target, target, prompt, 0, params, end_ids=end_ids, choice=choice)


def speculative_decode(
    target: LogitsOf,
    draft: LogitsOf,
    prompt: Sequence[int],
    k: int,
    params: SamplingParams | None = None,
    *,
    mode: VerifyMode = "coupled",
    end_ids: Sequence[int] = (),
    choice: int = 0,
) -> list[int]:
    """The output tokens, with `k` tokens drafted in every round.

    target, draft: both models' rows go through the transforms of `params`. end_ids: tokens that end the
    text; the one that does is the last of the result. choice: which of a request's n, for its noise.
    A seed of None counts as 0. Raises SurefootError for a negative k, an unknown mode, for `stop`,
    `bad_words` and `grammar`, which are about text, and no tokenizer is at hand, and, unless `coupled`, for
    two vocabularies of different sizes.
    """
    params = params or SamplingParams()
    _check(params, k, mode)
    ends = (*params.stop_token_ids, *(() if params.ignore_eos else end_ids))
    decoder = _Decoder(target, draft, tuple(prompt), params, ends, choice)
    output: list[int] = []
    while len(output) < params.max_tokens:
        for token in decoder.round(output, min(k, params.max_tokens - len(output) - 1), mode):
            output.append(token)
            if token in ends:
                return output
    return output


def _check(params: SamplingParams, k: int, mode: str) -> None:
    whole("k", k, 0)
    if mode not in VERIFY_MODES:
        raise SurefootError(f"mode: {mode!r} is unknown; choose one of {', '.join(VERIFY_MODES)}")
    for name in ("stop", "bad_words"):
        if getattr(params, name):
            raise SurefootError(f"{name}: {getattr(params, name)!r} is text; only token ids are known here")
    if params.grammar is not None:
        raise SurefootError(f"grammar: {params.grammar.kind} was given; only token ids are known here")


@dataclass(frozen=True)
class _Decoder:
    target: LogitsOf
    draft: LogitsOf
    prompt: tuple[int, ...]
    params: SamplingParams
    end_ids: tuple[int, ...]
    choice: int

    @property
    def seed(self) -> int:
        return self.params.seed or 0

    def round(self, output: Sequence[int], k: int, mode: VerifyMode) -> list[int]:
        """The tokens of one round: drafted ones that stood, and the one that follows them."""
        if mode == "coupled":
            draft, verdict = self._coupled(output, k)
        else:
            draft, verdict = self._fresh(output, k, verify.rejection if mode == "rejection" else verify.block)
        return [*(draft.tokens[node] for node in verdict.path), verdict.next_token]

    def _coupled(self, output: Sequence[int], k: int) -> tuple[Draft, Verdict]:
        def choose(model: LogitsOf, drafted: Sequence[int]) -> int:
            row, _ = self._row(model, output, drafted)
            position = len(self.prompt) + len(output) + len(drafted)
            return race(token_key(self.seed, self.choice, position), row.ids, row.probs)

        tokens: list[int] = []
        for _ in range(k):
            tokens.append(choose(self.draft, tokens))
        draft = Draft(tuple(tokens))
        return draft, verify.coupled(draft, lambda node: choose(self.target, tokens[: node + 1]))

    def _fresh(self, output: Sequence[int], k: int, rule: Callable[..., Verdict]) -> tuple[Draft, Verdict]:
        def draw(probs: NDArray[np.float64], node: int, stream: Stream) -> int:
            return race(self._round_key(output, node, stream), np.arange(len(probs)), probs)

        tokens: list[int] = []
        probs: list[NDArray[np.float64]] = []
        for node in range(k):
            probs.append(self._dense(self.draft, output, tokens))
            tokens.append(draw(probs[-1], node, Stream.DRAFT))
        draft = Draft(tuple(tokens), probs=np.array(probs))

        def wanted(node: int) -> NDArray[np.float64]:
            row = self._dense(self.target, output, tokens[: node + 1])
            if probs and len(row) != len(probs[0]):
                raise SurefootError(
                    f"draft: its vocabulary of {len(probs[0])} tokens is not the target's, of {len(row)}"
                )
            return row

        verdict = rule(
            draft,
            wanted,
            lambda node: uniform(self._round_key(output, node, Stream.ACCEPT)),
            lambda row, node: draw(row, node, Stream.RESIDUAL),
        )
        return draft, verdict

    def _round_key(self, output: Sequence[int], node: int, stream: Stream) -> Key:
        return round_key(self.seed, self.choice, len(self.prompt) + len(output), node, stream)

    def _row(self, model: LogitsOf, output: Sequence[int], drafted: Sequence[int]) -> tuple[Candidates, int]:
        logits = np.asarray(model((*self.prompt, *output, *drafted)), np.float32)
        history = History(self.prompt, output, self.end_ids).then(drafted)
        return target_probs(logits, self.params, history), len(logits)

    def _dense(self, model: LogitsOf, output: Sequence[int], drafted: Sequence[int]) -> NDArray[np.float64]:
        row, vocab_size = self._row(model, output, drafted)
        return row.dense(vocab_size)
