"""`surefoot audit --url`: two servers, or one that is recorded until the other one can run."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.audit.report import EXIT_CODES, Report
from surefoot.commands.audit_flags import HOW, SAMPLED
from surefoot.commands.audit_progress import within_budget
from surefoot.commands.audit_shared import audit_seed, prompts, short_answers
from surefoot.commands.session import given
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.audit.servers.audit import Recording
    from surefoot.audit.servers.plan import Role, ServerPlan, Side

ASKING = ("model", "chat", "concurrency", "samples", "tie_gap", "stream")


def only_records(args: argparse.Namespace) -> bool:
    """Whether a single server is recorded, and nothing compared."""
    return hasattr(args, "record") and not hasattr(args, "replay") and not _both(args)


def record(args: argparse.Namespace) -> int:
    """Asks the one server, says what was kept, and returns the exit code: 0 once it is all."""
    from surefoot.audit.servers.audit import record_server
    from surefoot.audit.servers.plan import Side

    role: Role = "speculative" if hasattr(args, "url") else "plain"
    url = getattr(args, "url", None) or getattr(args, "baseline_url", None)
    if url is None:
        raise SurefootError("--record was given without --url or --baseline-url, which it would record")
    if args.html is not None:
        raise SurefootError(
            f"--html was given with --record and one server: {args.html} would have no report"
        )
    plan = _plan(args)
    with within_budget(args) as budget:
        recording = record_server(role, Side(url, Path(args.record)), plan, budget)
    print(_told(recording, as_json=args.json))
    return 0 if recording.answered == recording.calls else EXIT_CODES["undecided"]


def _told(recording: Recording, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({**asdict(recording), "path": str(recording.path)})
    missing = "" if recording.answered == recording.calls else "; the same command goes on with the rest"
    return (
        f"{recording.answered} of {recording.calls} answers of the {recording.role} server are in "
        f"{recording.path}{missing}"
    )


def audit(args: argparse.Namespace) -> Report:
    from surefoot.audit.servers.audit import audit_servers

    if _both(args) and hasattr(args, "replay"):
        raise SurefootError(
            "--replay was given with --url and --baseline-url, so that nobody is left to replay"
        )
    speculative, baseline = _side(args, "url", "--baseline-url"), _side(args, "baseline_url", "--url")
    plan = _plan(args)
    with within_budget(args) as budget:
        return audit_servers(speculative, baseline, plan, budget)


def _both(args: argparse.Namespace) -> bool:
    return hasattr(args, "url") and hasattr(args, "baseline_url")


def _side(args: argparse.Namespace, name: str, other: str) -> Side:
    """A server that answers, and is recorded if that was asked for; or what it answered earlier."""
    from surefoot.audit.servers.plan import Side

    if hasattr(args, name):
        return Side(getattr(args, name), Path(args.record) if hasattr(args, "record") else None)
    if hasattr(args, "replay"):
        return Side(journal=Path(args.replay))
    flag = f"--{name.replace('_', '-')}"
    raise SurefootError(f"{other} was given without {flag}, or --replay and a file that was recorded with it")


def _plan(args: argparse.Namespace) -> ServerPlan:
    from surefoot.audit.servers.plan import ServerPlan

    short_answers(args)
    chosen = given(args, (*SAMPLED["servers"], *HOW, *ASKING))
    key = getattr(args, "api_key", None) or os.environ.get("OPENAI_API_KEY")
    return ServerPlan(prompts(args), api_key=key, seed=audit_seed(args), **chosen)
