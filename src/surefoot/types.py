"""The value types everything else speaks: parameters, drafts, verdicts, usage and errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index
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

    Numbers and lists of another kind (numpy's, say) become Python's own numbers and tuples. Raises
    `SurefootError` naming the field, its value and what is allowed when one is out of range or of a wrong
    type.
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
        self._make_whole("max_tokens", 1)
        self._make_real("temperature", 0, 100)
        self._make_real("top_p", 0, 1, low_open=True)
        self._make_whole("top_k", 0)
        self._make_real("min_p", 0, 1)
        self._make_real("repetition_penalty", 1e-6, 100)  # the next to nothing would make logits infinite
        self._make_real("presence_penalty", -2, 2)
        self._make_real("frequency_penalty", -2, 2)
        self._set("logit_bias", _biases(self.logit_bias))
        self._make_whole("min_tokens", 0, self.max_tokens)
        self._make_whole("n", 1, 128)
        if self.seed is not None:
            self._make_whole("seed", 0, MAX_SEED)
        if self.logprobs is not None:
            self._make_whole("logprobs", 0, 20)
        self._set("stop", _texts("stop", self.stop))
        self._set("bad_words", _texts("bad_words", self.bad_words))
        self._set("stop_token_ids", _tokens("stop_token_ids", self.stop_token_ids))

    def _make_whole(self, name: str, low: int, high: float = math.inf) -> None:
        self._set(name, whole(name, getattr(self, name), low, high))

    def _make_real(self, name: str, low: float, high: float, *, low_open: bool = False) -> None:
        self._set(name, _real(name, getattr(self, name), low, high, low_open=low_open))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen for everyone else


def whole(name: str, value: object, low: int, high: float = math.inf) -> int:
    """The value as an int. Raises SurefootError when it is no whole number, or not in [low, high]."""
    allowed = f"{low} or more" if high == math.inf else f"[{low}, {high}]"
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise SurefootError(f"{name}: {value!r} is not a whole number; allowed is {allowed}") from None
    if not low <= number <= high:
        raise SurefootError(f"{name}: {value} is out of range; allowed is {allowed}")
    return number


def share(name: str, value: float) -> float:
    """The value, which lies between 0 and 1. Raises SurefootError when it doesn't, or is one of the two."""
    if not 0 < value < 1:
        raise SurefootError(f"{name}: {value} is out of range; allowed is (0, 1)")
    return value


def _real(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> float:
    allowed = f"{'(' if low_open else '['}{low}, {high}]"
    if not isinstance(value, Real):
        raise SurefootError(f"{name}: {value!r} is not a number; allowed is {allowed}")
    if not (low < value <= high if low_open else low <= value <= high):  # also catches NaN
        raise SurefootError(f"{name}: {value} is out of range; allowed is {allowed}")
    return float(value)


def _biases(biases: object) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise SurefootError(f"logit_bias: {biases!r} is not a mapping of token ids to numbers")
    return {
        whole("logit_bias token", token, 0): _real(f"logit_bias[{token}]", bias, -100, 100)
        for token, bias in biases.items()
    }


def _texts(name: str, texts: object) -> tuple[str, ...]:
    if isinstance(texts, str):  # a sequence of its letters, each of which would count
        raise SurefootError(f"{name}: {texts!r} is one string; give a tuple of strings")
    if not isinstance(texts, Iterable):
        raise SurefootError(f"{name}: {texts!r} is not a tuple of strings")
    found = tuple(texts)
    for text in found:
        if not isinstance(text, str):
            raise SurefootError(f"{name}: {text!r} is not a string")
        if not text:
            raise SurefootError(f"{name}: an empty string was given; each needs at least 1 character")
    return found


def _tokens(name: str, tokens: object) -> tuple[int, ...]:
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise SurefootError(f"{name}: {tokens!r} is not a tuple of whole numbers, 0 or more each")
    return tuple(whole(name, token, 0) for token in tokens)


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
