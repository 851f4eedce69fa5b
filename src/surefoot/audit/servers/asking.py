"""One side of a comparison: calls in, answers out, from the server or from the journal."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from surefoot.audit.budget import Budget
from surefoot.audit.servers.client import Client
from surefoot.audit.servers.dialect import Dialect, find_dialect, find_scoring
from surefoot.audit.servers.journal import Journal
from surefoot.audit.servers.plan import Role, ServerPlan, Side
from surefoot.types import SurefootError


@dataclass(frozen=True)
class Call:
    """What is asked: for which purpose ("greedy", say), the prompt's number, which sample, the request."""

    purpose: str
    prompt: int
    sample: int
    path: str
    body: dict[str, Any]


class Server:
    """The plain or the speculative server.

    live: whether it can be asked what the journal doesn't hold. dialect: what it understands. budget: asked
    before every call, and charged for its output tokens. wait: sleeps for so many seconds, before a retry.
    """

    def __init__(
        self,
        role: Role,
        side: Side,
        plan: ServerPlan,
        journal: Journal,
        budget: Budget,
        wait: Callable[[float], None],
    ) -> None:
        self.role, self._plan, self._journal, self._budget = role, plan, journal, budget
        self._lock = threading.Lock()
        self._client = None
        self.name = side.url or str(side.journal)
        if side.url is not None:
            self._client = Client(
                side.url, api_key=plan.api_key, retries=plan.retries, timeout=plan.timeout, wait=wait
            )
        self.dialect = self._dialect()

    @property
    def live(self) -> bool:
        return self._client is not None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _dialect(self) -> Dialect:
        known = self._journal.get(f"{self.role} dialect")
        if known is not None:
            return Dialect(**known)
        if self._client is None:
            raise SurefootError(f"journal {self.name}: holds no answers of a {self.role} server")
        plan, ask = self._plan, self._client.ask
        model = plan.model or self._only_model(self._client)
        found = find_dialect(ask, model, chat=plan.chat, stream=plan.stream, prompt=plan.prompts[0])
        if self.role == "plain":
            found = find_scoring(ask, found, plan.prompts[0])
        self._journal.add(f"{self.role} dialect", asdict(found))
        return found

    def _only_model(self, client: Client) -> str:
        names = client.models()
        if len(names) != 1:
            raise SurefootError(
                f"{client.url}: serves {len(names)} models ({', '.join(names) or 'none'}); name one"
            )
        return names[0]

    def answers(self, calls: Sequence[Call]) -> list[dict[str, Any] | None]:
        """Responses in the calls' order, `concurrency` of them under way at once, begun in that order.

        None for a call that nobody can answer any more: the budget is spent, or the recorded server had not
        been asked. Raises SurefootError as `Client.ask` does; what was answered until then is in the journal.
        """
        with ThreadPoolExecutor(self._plan.concurrency) as pool:
            futures = [pool.submit(self._answer, call) for call in calls]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _answer(self, call: Call) -> dict[str, Any] | None:
        key = f"{self.role} {call.purpose} {call.prompt}/{call.sample} {_digest(call)}"
        if (known := self._journal.get(key)) is not None:
            return dict(known)
        if self._client is None or not self._budget.left:
            return None
        answer = self._client.ask(call.path, call.body)
        self._journal.add(key, answer)
        with self._lock:
            self._budget.spend((answer.get("usage") or {}).get("completion_tokens") or 1)
        return answer

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """One response, as `answers` gives it."""
        return self.answers([Call("once", 0, 0, path, body)])[0]


def _digest(call: Call) -> str:
    said = json.dumps([call.path, call.body], sort_keys=True).encode()
    return hashlib.sha256(said).hexdigest()[:16]
