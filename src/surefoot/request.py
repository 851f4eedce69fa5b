"""One request, or one choice of it: its tokens, how far they are computed, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from surefoot.sampling import History, TopLogprobs
from surefoot.stops import StopFilter
from surefoot.types import FinishReason, SamplingParams

if TYPE_CHECKING:
    from surefoot.text import Detokenizer


class Matcher(Protocol):
    """A grammar's state after the output of one request; `surefoot.grammar` makes them."""

    @property
    def done(self) -> bool:
        """Whether the output is complete and nothing but an end may follow."""

    def allowed(self, drafted: Sequence[int]) -> NDArray[np.bool_]:
        """What may follow the output and some drafted tokens, [vocabulary], an end where it may end."""

    def legal(self, drafted: Sequence[int]) -> int:
        """How many of some drafted tokens, from the first on, may follow the output."""

    def advance(self, token: int) -> None:
        """A token joined the output. Only committed tokens come here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the tokens of a request may end, beside its parameters.

    max_length: of the model, prompt and output together. eos_ids: the ids that end a text. vocab_limit: ids
    from here on are padding. bad_words: each as token ids.
    """

    max_length: int
    eos_ids: tuple[int, ...] = ()
    vocab_limit: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()


class Request:
    """The state of one choice.

    Between rounds `num_computed` tokens are in the target's cache: a growing part of the prompt, then all
    but the last token. A request that was preempted has none, and computes all but its last token anew
    before it goes on. Tokens are appended one at a time, after verification; the first that ends the
    request sets `finish_reason`, and nothing may follow it. That boundary is the only one: text, ids,
    logprobs and usage all end there.

    seq: its number in the caches. number, choice: which request, and which of its n. seed: with the choice,
    the root of all its noise. arrived: on the engine's clock, seconds. detokenizer: None where tokens stay
    tokens. logprobs: of the output so far, when they were asked for. grammar: None where anything goes.
    draft_tokens: the most to draft in a round, None to leave that to the engine. source: another choice of
    the same request, whose prompt may be shared while it runs. cache_salt: requests share what they computed
    only with those that have the same. prompt_logprobs: of the prompt's tokens but
    the first, as far as they are computed. cached_tokens: of the prompt, those that others had computed when
    it began. preemptions: so far.
    """

    def __init__(
        self,
        seq: int,
        number: int,
        choice: int,
        prompt: Sequence[int],
        params: SamplingParams,
        limits: Limits,
        *,
        seed: int,
        arrived: float = 0.0,
        detokenizer: Detokenizer | None = None,
        grammar: Matcher | None = None,
        draft_tokens: int | None = None,
        source: Request | None = None,
        cache_salt: str = "",
    ) -> None:
        self.seq, self.number, self.choice = seq, number, choice
        self.params, self.seed, self.arrived = params, seed, arrived
        self.prompt = list(prompt)
        self.output: list[int] = []
        self.tokens = list(prompt)
        self.logprobs: list[TopLogprobs] = []
        self.text = ""
        self.prompt_logprobs: list[TopLogprobs] = []
        self.grammar, self.draft_tokens, self.source = grammar, draft_tokens, source
        self.cache_salt = cache_salt
        self.num_computed = self.cached_tokens = self.preemptions = 0
        self.started = False  # the drafter knows it
        self.finish_reason: FinishReason | None = None
        self._limits = limits
        self._detokenizer = detokenizer
        self._stops = StopFilter(params.stop)
        ends = () if params.ignore_eos else limits.eos_ids
        self._end_ids = frozenset((*ends, *params.stop_token_ids))
        self.history = History(  # sees `output` grow
            prompt=self.prompt,
            output=self.output,
            end_ids=tuple(sorted(self._end_ids)),
            bad_words=limits.bad_words,
            vocab_limit=limits.vocab_limit,
        )

    @property
    def prompt_left(self) -> int:
        """Tokens to compute before a draft can follow the last one; 0 once it decodes."""
        return self._context - self.num_computed

    @property
    def every_row(self) -> bool:
        """Whether the logits of all prompt rows are wanted: by one choice, for all."""
        return self.params.prompt_logprobs is not None and self.choice == 0 and not self.output

    @property
    def shareable(self) -> int:
        """The most rows that others may have computed for it. The row that its next token is chosen from is
        its own to compute."""
        return 0 if self.every_row else len(self.tokens) - 1

    @property
    def _context(self) -> int:
        return len(self.tokens) - bool(self.output)

    def admit(self, rows: int) -> None:
        """It has a place in the cache, with so many rows in it."""
        self.num_computed = rows
        if not self.output and not self.preemptions:
            self.cached_tokens = rows

    def preempt(self) -> None:
        """It has no place in the cache any more."""
        self.num_computed = 0
        self.preemptions += 1

    @property
    def remaining(self) -> int:
        """The most tokens that may still be appended."""
        return min(self.params.max_tokens - len(self.output), self._limits.max_length - len(self.tokens))

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def before(self, drafted: Sequence[int]) -> History:
        """What the transforms of the row after some drafted tokens need to know.

        Where a grammar allows nothing but an end, nothing holds that end back. Elsewhere `ignore_eos` takes
        the end of sequence away: it is no text, so it is nothing that a grammar could go on after.
        """
        history = self.history.then(drafted)
        if self.grammar is None:
            return history
        allowed = self.grammar.allowed(drafted)
        held = self._held_back(len(history.output))
        if not held:
            return replace(history, allowed=allowed)
        others = allowed.copy()
        others[[token for token in held if token < len(others)]] = False
        if not others.any():
            return replace(history, allowed=allowed, end_ids=())
        return replace(history, allowed=others)

    def _held_back(self, length: int) -> list[int]:
        """The ends that may not come yet, behind so many output tokens."""
        held = self._limits.eos_ids if self.params.ignore_eos else ()
        if length < self.params.min_tokens:
            held = (*held, *self._end_ids)
        return list(held)

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Takes the next tokens of the output up to the first that ends it, and returns those taken.

        An end-of-sequence or stop token is kept and counted, its text isn't shown. A stop string and what
        follows it is cut out of the text, the token that completed it is kept.
        """
        before = len(self.output)
        for token in tokens:
            if self.finished:
                break
            self._append(token)
        return tuple(self.output[before:])

    def _append(self, token: int) -> None:
        self.output.append(token)
        self.tokens.append(token)
        if token in self._end_ids:
            self._finish("stop")
            return
        if self.grammar is not None:
            self.grammar.advance(token)
        if self._detokenizer is not None:
            self._show(self._detokenizer.add(token))
        if not self.finished and self.grammar is not None and self.grammar.done:
            self._finish("stop")
        if not self.finished and self.remaining <= 0:
            self._finish("length")

    def _finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        if self._detokenizer is not None:
            self._show(self._detokenizer.finish())
            self.text += self._stops.flush()

    def _show(self, piece: str) -> None:
        self.text += self._stops.push(piece, armed=len(self.output) >= self.params.min_tokens)
        if self._stops.stopped:
            self.finish_reason = "stop"
