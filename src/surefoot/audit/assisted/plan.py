"""What of transformers is audited, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from surefoot.types import SamplingParams, SurefootError, share, whole

Mode = Literal["assistant", "growing", "confidence", "lookup", "early-exit"]
"""assistant: a draft model, drafts of one length. growing: of a length that follows the acceptance
(num_assistant_tokens_schedule="heuristic"). confidence: that end where the draft model is unsure
(assistant_confidence_threshold). lookup: continuations found in the text (prompt_lookup_num_tokens).
early-exit: the target's own first half of layers (assistant_early_exit)."""

MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class AssistedPlan:
    """How transformers is asked to generate, and what counts as found.

    prompts: texts, continued as they stand, without a chat template. temperature, top_p, top_k: of the
    sampled checks, of which there are none at temperature 0; whatever else the model's own
    generation_config asks for applies as well. max_tokens: of each continuation. draft_tokens: of a draft; of
    the first one where they grow. alpha: the probability of a false alarm of each sampled check. detect: the
    bias that has to be seen for a pass, as a share of tokens. tie_gap: how far a logit may lie below the
    largest for greedy decoding to have taken it by rounding. modes: None for all that apply.

    Raises SurefootError naming the field, its value and what is allowed.
    """

    prompts: tuple[str, ...]
    temperature: float = 0.8
    top_p: float = 0.95
    top_k: int = 0
    max_tokens: int = 64
    draft_tokens: int = 5
    alpha: float = 0.01
    detect: float = 0.1
    seed: int = 0
    tie_gap: float = 1e-3
    modes: tuple[Mode, ...] | None = None

    def __post_init__(self) -> None:
        SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            seed=self.seed,
        )
        whole("draft_tokens", self.draft_tokens, 1, 64)
        for name in ("alpha", "detect"):
            share(name, getattr(self, name))
        if not self.tie_gap >= 0:
            raise SurefootError(f"tie_gap: {self.tie_gap} is out of range; allowed is 0 or more")
        if not self.prompts or not all(self.prompts):
            raise SurefootError("prompts: none, or an empty one; transformers needs a text to continue")
        for mode in self.modes or ():
            if mode not in MODES:
                raise SurefootError(f"modes: {mode!r} is none; there are {', '.join(MODES)}")
