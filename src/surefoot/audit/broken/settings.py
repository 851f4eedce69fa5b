"""What the faults are put into: toy models whose laws are far enough apart for a fault to show, and the same
for the sound engines that stand beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.subject import Plan, Subject
from surefoot.drafters.base import Drafter, DraftRequest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.models.toy import LogitsOf, ToyModel, probability_table, random_table
from surefoot.tree import ROOT
from surefoot.types import Draft, SamplingParams, Verdict, VerifyMode

EOS = 0  # of the toy models, where they have one
_PROMPTS, _PROMPT_LENGTH = 6, 4


class ToyTree:
    """A drafter of trees: two siblings drawn without replacement, then one child below each node.

    The second sibling comes second in the race that the first one won: `draw` is asked again, without it.
    """

    name = "tree"

    def __init__(self, logits_of: LogitsOf) -> None:
        self._logits_of = logits_of

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[NDArray[np.float64]] = []
        paths: list[list[int]] = []
        for node in range(request.budget):
            parent = ROOT if node < 2 else node - 2
            above = [] if parent == ROOT else paths[parent]
            row = np.array(self._logits_of((*request.tokens, *above)), np.float32)
            if node == 1:
                row[tokens[0]] = -np.inf
            token, drawn_from = request.draw(row, above)
            tokens.append(token)
            parents.append(parent)
            paths.append([*above, token])
            if drawn_from is not None:
                probs.append(drawn_from)
        return Draft(tuple(tokens), tuple(parents), np.stack(probs) if probs else None, self.name)

    def observe(self, seq: int, verdict: Verdict) -> None:
        pass

    def stop(self, seq: int) -> None:
        pass


@dataclass(frozen=True)
class Pair:
    """A toy target, and what drafts for it."""

    vocab_size: int
    target: LogitsOf
    draft: LogitsOf


def tables(order: int = 1, vocab_size: int = 12, off: float = 1.0) -> Pair:
    """Random logits for every context of `order` tokens; the draft adds `off` times others to them."""
    target, other = (random_table(vocab_size, order, seed) for seed in (1, 2))

    def draft(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        return np.asarray(np.asarray(target(prefix)) + off * np.asarray(other(prefix)), np.float32)

    return Pair(vocab_size, target, draft)


def dice(target: Sequence[float], draft: Sequence[float]) -> Pair:
    """Two dice, of given probabilities, whatever was thrown before."""
    return Pair(len(target), probability_table({(): target}), probability_table({(): draft}))


@dataclass(frozen=True)
class Setting:
    """Toy models, how they are used, what is asked of them, and for how long an audit looks at them.

    drafter: "model", "tree" or "ngram". params: of every request, but for its `max_tokens`. ends: whether
    token `EOS` ends a text. audited: output tokens, at most.
    """

    pair: Pair
    drafter: str = "model"
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=1, top_p=1))
    draft_tokens: tuple[int, ...] = (1, 3, 5)
    companions: tuple[int, ...] = (0, 2)
    max_tokens: int = 32
    ends: bool = False
    audited: int = 640

    def plan(self, seed: int, alpha: float) -> Plan:
        """How an audit goes about it. seed: of its choices, those of the requests' seeds included."""
        generator = np.random.default_rng(0)
        prompts = generator.integers(1, self.pair.vocab_size, (_PROMPTS, _PROMPT_LENGTH)).tolist()
        return Plan(
            prompts=tuple(map(tuple, prompts)),
            params=replace(self.params, max_tokens=self.max_tokens),
            draft_tokens=self.draft_tokens,
            companions=self.companions,
            chunks=(17, 64),
            alpha=alpha,
            seed=seed,
        )

    def subject(self, mode: VerifyMode, engine: type[Engine] = Engine) -> Subject:
        """The toy models, verified by a sound engine or another one."""
        pair = self.pair
        model = ToyModel(pair.target, pair.vocab_size, eos_token_ids=(EOS,) if self.ends else ())
        drafters: Mapping[str, Callable[[], Drafter]] = {
            "model": lambda: ModelDrafter(ToyModel(pair.draft, pair.vocab_size)),
            "tree": lambda: ToyTree(pair.draft),
            "ngram": NgramDrafter,
        }
        return Subject(f"toy models, {self.drafter}", model, drafters[self.drafter], mode, engine=engine)
