"""The modes of assisted generation, each as what `generate` has to be given for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surefoot.audit.assisted.load import Loaded
from surefoot.audit.assisted.plan import MODES, AssistedPlan, Mode
from surefoot.types import SurefootError

_THRESHOLD = 0.4  # assistant_confidence_threshold, as transformers sets it by default


@dataclass(frozen=True)
class Assistance:
    """One mode, ready to run.

    label: for the report, in transformers' own words. config: entries of the GenerationConfig. drafter: whose
    own generation_config says how long drafts are; None where nothing drafts but a search. arguments: further
    ones of `generate`.
    """

    label: str
    config: dict[str, Any]
    drafter: Any
    drafting: dict[str, Any]
    arguments: dict[str, Any]

    def prepare(self) -> None:
        """Before every `generate`: some schedules leave the length that they reached in the drafter."""
        for name, value in self.drafting.items():
            setattr(self.drafter.generation_config, name, value)


def modes_of(target: Loaded, assistant: Loaded | None, plan: AssistedPlan) -> tuple[Mode, ...]:
    """The modes that the plan asks for, or all that apply.

    Raises SurefootError when one was asked for that needs an assistant, or layers that aren't there.
    """
    layers = target.model.config.get_text_config().num_hidden_layers
    reasons: dict[Mode, str] = {}
    if assistant is None:
        reasons |= dict.fromkeys(("assistant", "growing", "confidence"), "it needs an assistant")
    if layers < 2:
        reasons["early-exit"] = f"{target.name} has no layer to leave out"
    for mode in plan.modes or ():
        if mode in reasons:
            raise SurefootError(f"modes: {mode} can't be audited: {reasons[mode]}")
    return plan.modes or tuple(mode for mode in MODES if mode not in reasons)


def assistance(mode: Mode, target: Loaded, assistant: Loaded | None, plan: AssistedPlan) -> Assistance:
    """A mode for one check, with an assistant of its own: a copy, since translating between tokenizers cuts
    the assistant's head down for good."""
    if mode == "lookup":
        return Assistance(
            f"prompt_lookup_num_tokens={plan.draft_tokens}",
            {"prompt_lookup_num_tokens": plan.draft_tokens},
            None,
            {},
            {},
        )
    drafting = {
        "num_assistant_tokens": plan.draft_tokens,
        "num_assistant_tokens_schedule": "heuristic" if mode == "growing" else "constant",
        "assistant_confidence_threshold": _THRESHOLD if mode == "confidence" else 0.0,
    }
    if mode == "early-exit":
        layer = target.model.config.get_text_config().num_hidden_layers // 2
        config = {"assistant_early_exit": layer}
        return Assistance(f"assistant_early_exit={layer}", config, target.model, drafting, {})
    assert assistant is not None, mode
    own = assistant.copy()
    arguments = {"assistant_model": own.model}
    label = "assistant_model"
    if not same_vocabulary(target, assistant):
        arguments |= {"tokenizer": target.tokenizer, "assistant_tokenizer": own.tokenizer}
        label += " + assistant_tokenizer"
    if mode == "growing":
        label += ", heuristic schedule"
    if mode == "confidence":
        label += f", assistant_confidence_threshold={_THRESHOLD}"
    return Assistance(label, {}, own.model, drafting, arguments)


def same_vocabulary(target: Loaded, assistant: Loaded) -> bool:
    """As transformers decides it: by the sizes alone."""
    sizes = {loaded.model.config.get_text_config().vocab_size for loaded in (target, assistant)}
    return len(sizes) == 1
