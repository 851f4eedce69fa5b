"""Two servers, one with speculation: the whole audit, or one side of it recorded for later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Report
from surefoot.audit.servers.asking import Call, Server
from surefoot.audit.servers.greedy import again_calls, check_greedy, find_floor, greedy_calls
from surefoot.audit.servers.journal import Journal
from surefoot.audit.servers.plan import Role, ServerPlan, Side
from surefoot.audit.servers.sampled import check_sampled
from surefoot.audit.servers.samples import sampled_calls
from surefoot.types import SurefootError

Wait = Callable[[float], None]


@dataclass(frozen=True)
class Recording:
    """What `record_server` has written. calls: that an audit needs; answered: of those."""

    role: Role
    path: Path
    calls: int
    answered: int


def audit_servers(
    speculative: Side, baseline: Side, options: ServerPlan, budget: Budget, wait: Wait = time.sleep
) -> Report:
    """Compares a server that speculates with a plain one, as their users see them.

    First the plain server with itself, then both at temperature 0, then sampled answers. The sampled part is
    left out when other settings were found, since it would only find them again. wait: sleeps for so many
    seconds, before a retry. Raises SurefootError naming the address and the status when a server can't be
    asked, the file when a journal doesn't belong to this audit.
    """
    began = budget.elapsed
    with _servers({"plain": baseline, "speculative": speculative}, options, budget, wait) as servers:
        plain, other = servers["plain"], servers["speculative"]
        floor = find_floor(plain, options)
        checks: list[Check] = [floor.check, check_greedy(plain, other, options, floor)]
        if checks[-1].verdict != "settings":
            checks += check_sampled(plain, other, options, budget)
    return Report(
        f"{other.name} against {plain.name}", _settings(options, plain), tuple(checks), budget.elapsed - began
    )


def record_server(
    role: Role, side: Side, options: ServerPlan, budget: Budget, wait: Wait = time.sleep
) -> Recording:
    """Asks one server for all that an audit needs of it, and keeps the answers in `side.journal`.

    Best done with the speculative server: a plain one that is only a recording can't score another's tokens,
    so that sampled answers would be compared as texts. Raises SurefootError as `audit_servers` does.
    """
    if side.url is None or side.journal is None:
        raise SurefootError("to record a server its url and a journal are needed")
    with _servers({role: side}, options, budget, wait) as servers:
        server = servers[role]
        batches = list(_needed(role, server, options))
        answered = sum(answer is not None for batch in batches for answer in server.answers(batch))
    return Recording(role, side.journal, sum(len(batch) for batch in batches), answered)


def _needed(role: Role, server: Server, plan: ServerPlan) -> Iterator[list[Call]]:
    """Every call that doesn't depend on the other side's answers."""
    yield greedy_calls(server, plan, "greedy", logprobs=role == "plain")
    if role == "plain":
        yield again_calls(server, plan)
    if plan.temperature:
        for number in range(plan.samples * (2 if role == "plain" else 1)):
            yield sampled_calls(server, plan, number)


@contextmanager
def _servers(
    sides: dict[Role, Side], plan: ServerPlan, budget: Budget, wait: Wait
) -> Iterator[dict[Role, Server]]:
    """Both may keep their answers in one file."""
    with ExitStack() as stack:
        journals: dict[Path | None, Journal] = {}
        servers: dict[Role, Server] = {}
        for role, side in sides.items():
            path = side.journal
            if path is None or path not in journals:
                if side.url is None and path is not None and not path.exists():
                    raise SurefootError(f"journal {path}: no such file")
                journals[path] = Journal(path, plan.recorded)
                stack.callback(journals[path].close)
            servers[role] = Server(role, side, plan, journals[path], budget, wait)
            stack.callback(servers[role].close)
        yield servers


def _settings(plan: ServerPlan, plain: Server) -> dict[str, str]:
    dialect = plain.dialect
    return {
        "model": dialect.model,
        "api": "chat" if plan.chat else "completions",
        "prompts": str(len(plan.prompts)),
        "max tokens": str(plan.max_tokens),
        "concurrency": str(plan.concurrency),
        "temperature": f"0 and {plan.temperature}",
        "samples": f"{plan.samples} a prompt and server",
        "near-tie": f"{plan.tie_gap} nats",
        "log probabilities": f"{dialect.shown} a token" if dialect.shown else "none",
        "scoring": dialect.scoring,
        "alpha": str(plan.alpha),
    }
