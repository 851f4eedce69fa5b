"""HTTP: one server, asked again when it drops the connection or is overloaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from surefoot.audit.servers.answers import join
from surefoot.types import SurefootError

if TYPE_CHECKING:
    import httpx

_LONGEST_WAIT = 30.0  # seconds


class RefusedError(SurefootError):
    """The server understood a request, and won't answer it (400, 404, 422 and their kin)."""


class Client:
    """A server at `url`.

    retries: attempts after the first, each after a wait twice as long. wait: sleeps for so many seconds.
    Threads may share it.
    """

    def __init__(
        self, url: str, *, api_key: str | None, retries: int, timeout: float, wait: Callable[[float], None]
    ) -> None:
        import httpx  # 0.2 s, and only this audit needs it

        self.url = url.rstrip("/").removesuffix("/v1")
        self._retries, self._wait = retries, wait
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None)
        secure = url.startswith(
            "https://"
        )  # reading the certificates takes a while, and http has no use for it
        self._http = httpx.Client(headers=headers, timeout=timeout, limits=limits, verify=secure)

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The models' names. Raises SurefootError as `ask` does."""
        listed = self._ask("GET", "/v1/models", None)
        return [str(model["id"]) for model in listed.get("data") or ()]

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A whole response, joined where `body` asks for a stream.

        Raises `RefusedError` for a status that asking again won't change, SurefootError naming the address
        and the last failure when the retries are used up.
        """
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        import httpx

        address = self.url + path
        failure = ""
        for attempt in range(self._retries + 1):
            if attempt:
                self._wait(min(0.5 * 2 ** (attempt - 1), _LONGEST_WAIT))
            try:
                return self._once(method, address, body)
            except httpx.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
            except _TryAgainError as error:
                failure = str(error)
        raise SurefootError(f"{address}: {failure}, after {self._retries + 1} attempts")

    def _once(self, method: str, address: str, body: dict[str, Any] | None) -> dict[str, Any]:
        streamed = bool(body and body.get("stream"))
        with self._http.stream(method, address, json=body) as response:
            if response.status_code == 429 or response.status_code >= 500:
                raise _TryAgainError(_said(response))
            if response.status_code >= 400:
                raise RefusedError(f"{address}: {_said(response)}")
            if streamed:
                return join(_events(response))
            response.read()
        try:
            payload = json.loads(response.content)
        except ValueError:
            raise _TryAgainError("the answer is not JSON, or only half of it") from None
        if not isinstance(payload, dict) or "error" in payload:
            raise _TryAgainError(f"the answer is an error: {str(payload)[:200]}")
        return payload


class _TryAgainError(Exception):
    pass


def _said(response: httpx.Response) -> str:
    return f"status {response.status_code}: {response.read().decode(errors='replace').strip()[:200]}"


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The chunks of a stream. Raises `_TryAgainError` where it breaks off."""
    finished = False
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise _TryAgainError("a chunk of the stream is not JSON") from None
        if "error" in chunk:
            raise _TryAgainError(f"the stream ended in an error: {str(chunk['error'])[:200]}")
        finished = finished or any(choice.get("finish_reason") for choice in chunk.get("choices") or ())
        yield chunk
    if not finished:
        raise _TryAgainError("the stream broke off")
