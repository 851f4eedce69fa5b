"""The value types everything else speaks: parameters, drafts, verdicts, usage and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]
VerifyMode = Literal["coupled", "rejection", "block"]
VERIFY_MODES: tuple[VerifyMode, ...] = ("coupled", "rejection", "block")

MAX_SEED = 2**64 - 1


class SurefootError(Exception):
    """A mistake that its user can mend: one line naming the thing, the value and the limit."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    Raises `SurefootError` naming the field, its value and its limit when one is out of range.
    """

    max_tokens: int = 256
    temperature: float = 0.8  # 0 = the most likely token
    top_p: float = 0.95  # 1 = off
    top_k: int = 0  # 0 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # over prompt and output, 1 = off
    presence_penalty: float = 0.0  # over output alone
    frequency_penalty: float = 0.0  # over output alone
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0  # no end of sequence before so many output tokens
    bad_words: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # None: one is drawn and reported
    n: int = 1
    logprobs: int | None = None  # alternatives reported per output token

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, 1, math.inf)
        _check("temperature", self.temperature, 0, 100)
        _check("top_p", self.top_p, 0, 1, low_open=True)
        _check("top_k", self.top_k, 0, math.inf)
        _check("min_p", self.min_p, 0, 1)
        _check("repetition_penalty", self.repetition_penalty, 0, 100, low_open=True)
        _check("presence_penalty", self.presence_penalty, -2, 2)
        _check("frequency_penalty", self.frequency_penalty, -2, 2)
        for token, bias in self.logit_bias.items():
            _check("logit_bias token", token, 0, math.inf)
            _check(f"logit_bias[{token}]", bias, -100, 100)
        _check("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check("n", self.n, 1, 128)
        if self.seed is not None:
            _check("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            _check("logprobs", self.logprobs, 0, 20)
        _check_texts("stop", self.stop)
        _check_texts("bad_words", self.bad_words)


def _check(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    if not (low < value <= high if low_open else low <= value <= high):  # also catches NaN
        bracket = "(" if low_open else "["
        raise SurefootError(f"{name}: {value} is out of range; allowed is {bracket}{low}, {high}]")


def _check_texts(name: str, texts: Sequence[str]) -> None:
    if isinstance(texts, str):  # a sequence of its letters, each of which would count
        raise SurefootError(f"{name}: {texts!r} is one string; give a tuple of strings")
    if any(not text for text in texts):
        raise SurefootError(f"{name}: an empty string was given; each needs at least 1 character")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a drafter guessed for one sequence.

    tokens: the guessed ids, [n].
    parents: for a tree, the index into `tokens` of each token's parent, -1 for children of the last
        committed token, always less than the token's own index; None means a chain.
    probs: [n, vocabulary] float64, the distribution each token was really drawn from; None means that
        it was not drawn (an n-gram, an argmax, a coupled draw): a point mass, as far as a rule may know.
    source: the drafter's name, for the trace.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    probs: NDArray[np.float64] | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification made of a draft.

    path: indices into the draft of the accepted tokens, root to leaf.
    next_token: the token that follows them: *recovered* after a rejection, *bonus* after a draft
        accepted to its end.
    bonus: which of the two `next_token` is.
    tested: draft tokens that were looked at, up to and including the first rejection (of a chain).
    """

    path: tuple[int, ...]
    next_token: int
    bonus: bool
    tested: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request as billed: after every cut."""

    prompt_tokens: int
    completion_tokens: int
