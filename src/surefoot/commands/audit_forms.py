"""From the flags of `surefoot audit` to a report: each form calls the audit that is meant."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surefoot.audit.prompts import encode
from surefoot.audit.report import Report, Verdict
from surefoot.commands import audit_servers
from surefoot.commands.audit_flags import HOW, SAMPLED, Form
from surefoot.commands.audit_progress import within_budget, without_budget
from surefoot.commands.audit_shared import audit_seed, prompts, short_answers
from surefoot.commands.options import DEFAULT_MODEL, sampling_params
from surefoot.commands.session import LOADING, given, say_inexact, say_loading
from surefoot.types import SurefootError, VerifyMode, whole

if TYPE_CHECKING:
    from surefoot.drafters.base import Drafter
    from surefoot.loading import LoadedModel

MAX_PROCESSES = 256  # as many more only wait for each other
SELF_TESTED: Mapping[Verdict, str] = {
    "pass": "the audit caught every broken engine, and left the sound ones alone",
    "loss": "the audit missed a broken engine, or accused sound ones",
}


def audit_own(args: argparse.Namespace) -> Report:
    from surefoot.audit.own import audit_engine
    from surefoot.audit.subject import Plan, Subject

    name = getattr(args, "model", DEFAULT_MODEL)
    draft: str = getattr(args, "draft", "ngram")
    verify: VerifyMode = getattr(args, "verify", "coupled")
    lengths = _lengths(args, draft)
    short_answers(args)
    params, seed, texts = sampling_params(args), audit_seed(args), prompts(args)
    target = _load(args, name)
    drafter = _drafter(args, draft, target)
    what = f"{name} ({target.precision} by {target.kernels}), drafts by {draft}"
    subject = Subject(what, target.model, drafter, verify, target.tokenizer)
    ids = encode(texts, target.tokenizer, chat=True)
    plan = Plan(ids, params, seed=seed, **lengths, **given(args, HOW))
    with within_budget(args) as budget:
        return audit_engine(subject, plan, budget)


def audit_transformers(args: argparse.Namespace) -> Report:
    from surefoot.audit import assisted

    short_answers(args)
    chosen = given(args, (*SAMPLED["transformers"], *HOW, "draft_tokens", "tie_gap"))
    plan = assisted.AssistedPlan(prompts(args), seed=audit_seed(args), **chosen)
    say_loading(args.transformers)
    with within_budget(args) as budget:
        return assisted.audit_transformers(args.transformers, getattr(args, "assistant", None), plan, budget)


def self_test(args: argparse.Namespace) -> Report:
    from surefoot.audit.selftest import run_self_test

    processes = whole("processes", getattr(args, "processes", os.cpu_count() or 1), 1, MAX_PROCESSES)
    with without_budget("auditing broken engines and sound ones"):
        report = run_self_test(processes=processes)
    return replace(report, conclusion=SELF_TESTED[report.verdict])


def _lengths(args: argparse.Namespace, draft: str) -> dict[str, Any]:
    """The one draft length that was asked for. Raises SurefootError where nothing would be drafted."""
    from surefoot.engine import lookahead
    from surefoot.pairing import NO_DRAFT

    if draft == NO_DRAFT:
        raise SurefootError(
            "draft: none guesses nothing, so there is nothing to audit; allowed is ngram, suffix or a model"
        )
    if not hasattr(args, "draft_tokens"):
        return {}
    lookahead(draft, whole("draft_tokens", args.draft_tokens, 1))
    return {"draft_tokens": (args.draft_tokens,)}


def _load(args: argparse.Namespace, name: str) -> LoadedModel:
    from surefoot.loading import load_model

    say_loading(name)
    loaded = load_model(name, **given(args, LOADING))
    say_inexact(loaded)
    return loaded


def _drafter(args: argparse.Namespace, draft: str, target: LoadedModel) -> Callable[[], Drafter]:
    """Makes drafters, all over one model where a model is named.

    Raises SurefootError when its tokenizer is another one than the target's.
    """
    from surefoot.drafters.model import ModelDrafter
    from surefoot.drafters.ngram import NgramDrafter
    from surefoot.drafters.suffix import SuffixDrafter
    from surefoot.pairing import NGRAM, SUFFIX
    from surefoot.text import same_tokenizer

    if draft == NGRAM:
        return NgramDrafter
    if draft == SUFFIX:
        return SuffixDrafter
    loaded = _load(args, draft)
    same_tokenizer(target.tokenizer, loaded.tokenizer)
    return lambda: ModelDrafter(loaded.model, name=draft)


FORMS: Mapping[Form, Callable[[argparse.Namespace], Report]] = {
    "own": audit_own,
    "servers": audit_servers.audit,
    "transformers": audit_transformers,
    "self-test": self_test,
}
