"""What of our own engine is audited, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surefoot.drafters.base import Drafter
from surefoot.engine import Engine
from surefoot.models.base import Model
from surefoot.text import Tokenizer
from surefoot.types import SamplingParams, VerifyMode


@dataclass(frozen=True)
class Subject:
    """A target, its drafter and a verification rule.

    drafter: makes a new one for every engine, so that no state survives from one run to the next. tokenizer:
    None where prompts are token ids. engine: `Engine`, or a broken one that the self-test hands in; takes
    `Engine`'s arguments. `plain` engines are never broken: they are what the others are held to.
    """

    name: str
    model: Model
    drafter: Callable[[], Drafter]
    verify: VerifyMode
    tokenizer: Tokenizer | None = None
    engine: Callable[..., Engine] = Engine

    def plain(self) -> Engine:
        """One request at a time, one row at a time, nothing taken from others."""
        return Engine(self.model, None, tokenizer=self.tokenizer, max_requests=1, prefix_cache=False)

    def speculated(self, drafter: Drafter, *, draft_tokens: int, max_rows: int, max_requests: int) -> Engine:
        return self.engine(
            self.model,
            drafter,
            tokenizer=self.tokenizer,
            draft_tokens=draft_tokens,
            verify=self.verify,
            max_rows=max_rows,
            max_requests=max_requests,
        )


@dataclass(frozen=True)
class Plan:
    """How thoroughly.

    prompts: each as the engine's token ids. params: of every request but its seed. draft_tokens, companions,
    chunks: draft lengths, other requests in the batch and rows of a pass to vary, every combination being as
    likely (a pass has more rows than a draft has tokens, so some combinations are none). alpha: the
    probability of a false alarm. detect: the bias that has to be seen for a pass, as a share of tokens. seed:
    of the audit's own choices.
    """

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    draft_tokens: tuple[int, ...] = (1, 2, 4, 8)
    companions: tuple[int, ...] = (0, 1, 3, 7)
    chunks: tuple[int, ...] = (17, 64, 512)
    alpha: float = 0.01
    detect: float = 0.1
    seed: int = 0
