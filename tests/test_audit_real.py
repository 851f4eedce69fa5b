"""The audit on a real model."""

from __future__ import annotations

from surefoot.audit.budget import Budget
from surefoot.audit.own import audit_engine
from surefoot.audit.prompts import PROMPTS, encode
from surefoot.audit.subject import Plan, Subject
from surefoot.drafters.ngram import NgramDrafter
from surefoot.loading import load_model
from surefoot.types import SamplingParams
from tests.models_fixture import smollm2_path


def test_smollm2_is_not_found_guilty() -> None:
    loaded = load_model(smollm2_path())
    real = Subject(loaded.name, loaded.model, NgramDrafter, "rejection", loaded.tokenizer)
    asked = Plan(
        encode(PROMPTS[4:6], loaded.tokenizer, chat=True),
        SamplingParams(max_tokens=8),
        draft_tokens=(3,),
        companions=(1,),
        chunks=(17,),
    )
    report = audit_engine(real, asked, Budget(tokens=48))
    assert [check.verdict for check in report.checks] in (
        ["pass"] * 2,
        ["pass", "undecided"],
        ["undecided"] * 2,
    )
    assert report.checks[0].facts["moved_logprobs"] == 0
