"""From a prompt that was checked to the choices of a request, each with a state of its own."""

from __future__ import annotations

import secrets
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from surefoot.pairing import Target
from surefoot.prefixes import sequence_numbers
from surefoot.prompts import Prepared
from surefoot.request import Limits, Matcher, Request
from surefoot.types import Constraint, SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.grammar import Grammars
    from surefoot.text import Detokenizer


class Intake:
    """Numbers the requests of one engine. max_length: of prompt and output together, in tokens."""

    def __init__(self, target: Target, max_length: int) -> None:
        self._target, self._max_length = target, max_length
        self._numbers = count()

    def choices(
        self,
        prepared: Prepared,
        params: SamplingParams,
        *,
        arrived: float,
        draft_tokens: int | None,
        cache_salt: str,
    ) -> list[Request]:
        """The `params.n` choices of a new request. arrived: on the engine's clock. Raises SurefootError for a
        grammar that doesn't compile, or that there is no tokenizer for."""
        target = self._target
        limits = Limits(self._max_length, target.eos_ids, target.vocab_limit, prepared.bad_words)
        matchers = [self._matcher(params) for _ in range(params.n)]
        number = next(self._numbers)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        choices: list[Request] = []
        for choice, matcher in enumerate(matchers):
            choices.append(
                Request(
                    next(sequence_numbers),
                    number,
                    choice,
                    prepared.ids,
                    params,
                    limits,
                    seed=seed,
                    arrived=arrived,
                    detokenizer=self._detokenizer(),
                    grammar=matcher,
                    draft_tokens=draft_tokens,
                    source=choices[0] if choice else None,
                    cache_salt=cache_salt,
                )
            )
        return choices

    def compile(self, constraint: Constraint) -> None:
        """Makes a grammar ready, which may take seconds; from any thread. Raises as `choices`."""
        self._grammars.matcher(constraint)

    def _matcher(self, params: SamplingParams) -> Matcher | None:
        return None if params.grammar is None else self._grammars.matcher(params.grammar)

    @cached_property
    def _grammars(self) -> Grammars:
        from surefoot.grammar import Grammars

        target = self._target
        if target.tokenizer is None:
            raise SurefootError("grammar: there is no tokenizer, so tokens can't be told what to spell")
        return Grammars(target.tokenizer, target.eos_ids, target.model.vocab_size)

    def _detokenizer(self) -> Detokenizer | None:
        if self._target.tokenizer is None:
            return None
        from surefoot.text import Detokenizer

        return Detokenizer(self._target.tokenizer, continues=True)
