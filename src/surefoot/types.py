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


@dataclass(frozen=True, slots=True)
class Interval:
    """What a number may be: [low, high], or (low, high]; no more than a lower end where high is infinite."""

    low: float
    high: float = math.inf
    low_open: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.low_open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"more than {self.low}" if self.low_open else f"{self.low} or more"
        return f"{'(' if self.low_open else '['}{self.low}, {self.high}]"


RANGES: Mapping[str, Interval] = {
    "max_tokens": Interval(1),
    "temperature": Interval(0, 100),
    "top_p": Interval(0, 1, low_open=True),
    "top_k": Interval(0),
    "min_p": Interval(0, 1),
    "repetition_penalty": Interval(1e-6, 100),  # the next to nothing would make logits infinite
    "presence_penalty": Interval(-2, 2),
    "frequency_penalty": Interval(-2, 2),
    "logit_bias": Interval(-100, 100),
    "min_tokens": Interval(0),
    "seed": Interval(0, MAX_SEED),
    "n": Interval(1, 128),
    "logprobs": Interval(0, 20),
    "prompt_logprobs": Interval(0, 20),
}
"""What the numbers of `SamplingParams` may be, by field; of `logit_bias`, its values."""


class SurefootError(Exception):
    """A mistake that its user can mend: one line naming the thing, the value and the limit."""


class BusyError(SurefootError):
    """No room in the queue now. retry_after: seconds after which there may be."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(SurefootError):
    """A request took longer than it was allowed to."""


class ClosedError(SurefootError):
    """An engine that takes no more requests."""


ConstraintKind = Literal["json_object", "json_schema", "regex", "lark", "choice"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output must be, to its last token.

    kind: any JSON object; JSON after a schema; a text that a regular expression matches as a whole; one of a
    Lark grammar; one of some texts. source: the schema as JSON, the expression, the grammar, or the texts as
    a JSON list; empty for any JSON object. It is compiled, and so checked, when a request is added.

    A request ends ("stop") as soon as nothing but an end may follow, whatever `min_tokens` and `ignore_eos`
    say: no more can be written. Where more can be, they hold ends back as ever. `max_tokens`, stop strings
    and stop tokens may cut an output short of what it must be.
    """

    kind: ConstraintKind
    source: str = ""


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
    prompt_logprobs: int | None = None  # alternatives reported per prompt token
    grammar: Constraint | None = None  # what the output must be

    def __post_init__(self) -> None:
        for name in ("max_tokens", "top_k", "n"):
            self._make_whole(name, RANGES[name])
        for name in ("temperature", "top_p", "min_p"):
            self._make_real(name)
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            self._make_real(name)
        self._set("logit_bias", _biases(self.logit_bias))
        self._make_whole("min_tokens", Interval(0, self.max_tokens))
        for name in ("seed", "logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._make_whole(name, RANGES[name])
        self._set("stop", _texts("stop", self.stop))
        self._set("bad_words", _texts("bad_words", self.bad_words))
        self._set("stop_token_ids", _tokens("stop_token_ids", self.stop_token_ids))
        if not isinstance(self.grammar, Constraint | None):
            raise SurefootError(f"grammar: {type(self.grammar).__name__} given; it is a Constraint, or None")

    def _make_whole(self, name: str, allowed: Interval) -> None:
        self._set(name, _whole(name, getattr(self, name), allowed))

    def _make_real(self, name: str) -> None:
        self._set(name, _real(name, getattr(self, name), RANGES[name]))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen for everyone else


def whole(name: str, value: object, low: int, high: float = math.inf) -> int:
    """The value as an int. Raises SurefootError when it is no whole number, or not in [low, high]."""
    return _whole(name, value, Interval(low, high))


def _whole(name: str, value: object, allowed: Interval) -> int:
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise SurefootError(f"{name}: {value!r} is not a whole number; allowed is {allowed}") from None
    if number not in allowed:
        raise SurefootError(f"{name}: {value} is out of range; allowed is {allowed}")
    return number


def share(name: str, value: float) -> float:
    """The value, which lies between 0 and 1. Raises SurefootError when it doesn't, or is one of the two."""
    if not 0 < value < 1:
        raise SurefootError(f"{name}: {value} is out of range; allowed is (0, 1)")
    return value


def _real(name: str, value: object, allowed: Interval) -> float:
    if not isinstance(value, Real):
        raise SurefootError(f"{name}: {value!r} is not a number; allowed is {allowed}")
    if float(value) not in allowed:  # also catches NaN
        raise SurefootError(f"{name}: {value} is out of range; allowed is {allowed}")
    return float(value)


def _biases(biases: object) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise SurefootError(f"logit_bias: {biases!r} is not a mapping of token ids to numbers")
    return {
        whole("logit_bias token", token, 0): _real(f"logit_bias[{token}]", bias, RANGES["logit_bias"])
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
    """Token counts of one request as billed: after every cut. cached_tokens: of the prompt, those that
    another request had computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
