"""What the tests of the audit share: a toy pair, drafters beyond our own, and engines with a fault put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.subject import Plan, Subject
from surefoot.drafters.base import Drafter, DraftRequest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.loop import Loop
from surefoot.models.base import Model
from surefoot.models.toy import ToyModel, random_table
from surefoot.request import Request
from surefoot.tree import ROOT
from surefoot.types import Draft, SamplingParams, Verdict, VerifyMode
from surefoot.verify import exclude

VOCAB_SIZE = 8
PROMPTS = ((1, 2, 3), (4, 5), (6, 7, 6, 7, 6), (2,))


def target(end: int | None = 0) -> ToyModel:
    """end: the token that ends a text, None for none."""
    ends = () if end is None else (end,)
    return ToyModel(random_table(VOCAB_SIZE, seed=1, spread=1.5), VOCAB_SIZE, eos_token_ids=ends)


def draft_model() -> ToyModel:
    return ToyModel(random_table(VOCAB_SIZE, seed=2, spread=1), VOCAB_SIZE)


class Tree:
    """Two siblings drawn without replacement, and as many below the elder one, as far as the budget goes.

    Where drafts are not drawn, the sibling is the next id.
    """

    name = "tree"

    def __init__(self) -> None:
        self._logits_of = random_table(VOCAB_SIZE, seed=2, spread=1)
        self._generator = np.random.default_rng(0)

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[NDArray[np.float64]] = []
        above: list[int] = []
        parent = ROOT
        while len(tokens) < request.budget:
            row = np.asarray(self._logits_of((*request.tokens, *above)), np.float32)
            elder, drawn_from = request.draw(row, above)
            siblings = [elder]
            if drawn_from is None:
                siblings.append((elder + 1) % VOCAB_SIZE)
            else:
                probs.append(drawn_from)
                if drawn_from[elder] < 1:
                    probs.append(exclude(drawn_from, elder))
                    siblings.append(int(self._generator.choice(VOCAB_SIZE, p=probs[-1])))
            tokens += siblings
            parents += [parent] * len(siblings)
            above = [*above, elder]
            parent = len(tokens) - len(siblings)
        count = request.budget
        drawn = np.stack(probs[:count]) if probs else None
        return Draft(tuple(tokens[:count]), tuple(parents[:count]), drawn, self.name)

    def observe(self, seq: int, verdict: Verdict) -> None:
        pass

    def stop(self, seq: int) -> None:
        pass


class Shortened(ModelDrafter):
    """Ends each draft early, after a length that was settled before it was drawn."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return super().propose(
            [replace(each, budget=min(each.budget, 1 + sum(each.tokens) % 3)) for each in requests]
        )


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": NgramDrafter,
    "model": lambda: ModelDrafter(draft_model()),
    "tree": Tree,
    "shortened": lambda: Shortened(draft_model()),
}


class Trusting(Loop):
    """Keeps the first draft token, whatever the target says of it."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        return verdict if verdict.path or not draft.tokens else replace(verdict, path=(0,))


def subject(
    verify: VerifyMode,
    drafter: str | Callable[[], Drafter] = "model",
    *,
    loop: type[Loop] | None = None,
    model: Model | None = None,
    **more: Any,
) -> Subject:
    """The toy pair. loop: a broken one, in the place of the engine's own."""
    engine = Engine if loop is None else type("Broken", (Engine,), {"loop_type": loop})
    made = DRAFTERS[drafter] if isinstance(drafter, str) else drafter
    return Subject("toy", model or target(), made, verify, engine=engine, **more)


def plan(temperature: float = 0.9, **more: Any) -> Plan:
    """params: more of them, beside what `Plan` takes."""
    params = {"max_tokens": 24, "temperature": temperature, "top_p": 0.95, **more.pop("params", {})}
    return Plan(PROMPTS, SamplingParams(**params), **more)
