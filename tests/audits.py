"""What stands where the audits stand in the tests of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from surefoot.audit.report import Check, Report, Verdict


def report(verdict: Verdict = "pass") -> Report:
    return Report("a pair", {}, (Check("a question", verdict, "An answer <b>.", 12),), 1.5)


@dataclass
class Audits:
    """Stands where the audits stand, and remembers what they were asked."""

    report: Report = field(default_factory=report)
    asked: tuple[Any, ...] = ()

    def __call__(self, *asked: Any, **named: Any) -> Report:
        self.asked = (*asked, *named.values())
        return self.report


def stand_in(patch: pytest.MonkeyPatch) -> Audits:
    """Takes the place of every audit."""
    audits = Audits()
    patch.setattr("surefoot.audit.own.audit_engine", audits)
    patch.setattr("surefoot.audit.assisted.audit_transformers", audits)
    patch.setattr("surefoot.audit.servers.audit.audit_servers", audits)
    patch.setattr("surefoot.audit.selftest.run_self_test", audits)
    patch.delenv("OPENAI_API_KEY", raising=False)
    return audits
