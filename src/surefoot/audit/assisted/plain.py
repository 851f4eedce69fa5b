"""Plain `generate`, to which every mode is held: its tokens, and the probabilities it draws them from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.audit.assisted.load import Loaded, first_line, library
from surefoot.audit.assisted.modes import Assistance
from surefoot.audit.assisted.plan import AssistedPlan
from surefoot.audit.assisted.record import processors_of
from surefoot.types import SurefootError


class ModeFailedError(Exception):
    """Assisted `generate` raised something."""


class Generation:
    """`generate` of one target, plain and assisted, under one plan. Prompts are token ids."""

    def __init__(self, target: Loaded, plan: AssistedPlan) -> None:
        self.model, self._plan, self._name = target.model, plan, target.name
        self.prompts = [self._encoded(target.tokenizer, prompt) for prompt in plan.prompts]
        self.plain_greedy = cache(lambda prompt: self.plain(prompt, sampled=False))
        self.processors = cache(self._processors)

    def _encoded(self, tokenizer: Any, prompt: str) -> tuple[int, ...]:
        ids = tuple(tokenizer(prompt)["input_ids"])
        if not ids:
            raise SurefootError(f"prompts: {prompt[:40]!r} is no token at all to {self._name}")
        return ids

    def plain(self, prompt: tuple[int, ...], *, sampled: bool, seed: int = 0) -> tuple[int, ...]:
        """New tokens alone. Raises SurefootError when even that fails."""
        try:
            return self._generate(prompt, sampled, seed, {}, {})
        except Exception as error:  # of any kind: it is the library under audit
            raise SurefootError(f"plain generate of {self._name} fails: {first_line(error)}") from error

    def assisted(
        self, prompt: tuple[int, ...], mode: Assistance, *, sampled: bool, seed: int = 0
    ) -> tuple[int, ...]:
        """New tokens alone. Raises ModeFailedError with the first line of what went wrong."""
        mode.prepare()
        try:
            return self._generate(prompt, sampled, seed, mode.config, mode.arguments)
        except Exception as error:  # of any kind: it is the library under audit
            raise ModeFailedError(first_line(error)) from error

    def _generate(
        self,
        prompt: tuple[int, ...],
        sampled: bool,
        seed: int,
        config: dict[str, Any],
        arguments: dict[str, Any],
        max_tokens: int | None = None,
    ) -> tuple[int, ...]:
        plan, ids = self._plan, torch.tensor([prompt])
        draws = {"temperature": float(plan.temperature), "top_p": float(plan.top_p), "top_k": plan.top_k}
        settings = library().GenerationConfig(
            do_sample=sampled,
            max_new_tokens=max_tokens or plan.max_tokens,
            **(draws if sampled else {}),
            **config,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=settings, **arguments
            )
        return tuple(output[0, len(prompt) :].tolist())

    def _processors(self, prompt: tuple[int, ...], sampled: bool) -> Any:
        """The list that plain `generate` builds for this prompt: nothing that it applies is guessed."""
        with processors_of(self.model) as built:
            self._generate(prompt, sampled, 0, {}, {}, max_tokens=1)
        return built[0]

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """[tokens + 1, vocabulary] float32: the target's own rows after the prompt and after each token, from
        one forward pass of the whole text."""
        output = self.model(torch.tensor([[*prompt, *tokens]]), use_cache=False)
        rows: torch.Tensor = output.logits[0, len(prompt) - 1 :].float()
        return rows


def processed(processors: Any, prefix: Sequence[int], row: torch.Tensor) -> NDArray[np.float32]:
    """[vocabulary]: a row as transformers' processors leave it after `prefix`; it stays as it was."""
    result: NDArray[np.float32] = processors(torch.tensor([prefix]), row[None].clone())[0].numpy()
    return result
