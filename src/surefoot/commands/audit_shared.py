"""What the forms of `surefoot audit` have in common: prompts, short answers, a seed."""

from __future__ import annotations

import argparse
from pathlib import Path

from surefoot.audit.prompts import PROMPTS, read_prompts
from surefoot.commands.audit_flags import MAX_TOKENS
from surefoot.types import MAX_SEED, whole


def prompts(args: argparse.Namespace) -> tuple[str, ...]:
    return read_prompts(Path(args.prompts)) if hasattr(args, "prompts") else PROMPTS


def short_answers(args: argparse.Namespace) -> None:
    """Makes the audit's own limit of an answer the default."""
    args.max_tokens = getattr(args, "max_tokens", MAX_TOKENS)


def audit_seed(args: argparse.Namespace) -> int:
    """Raises SurefootError when it is out of range."""
    return whole("seed", getattr(args, "audit_seed", 0), 0, MAX_SEED)
