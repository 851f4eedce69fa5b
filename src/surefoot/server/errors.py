"""Mistakes as OpenAI's API says them: a status, and a body of message, type, param and code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from surefoot.types import BusyError, ClosedError, DeadlineError, SurefootError

Kind = Literal[
    "invalid_request_error",
    "authentication_error",
    "not_found_error",
    "rate_limit_error",
    "timeout_error",
    "unavailable_error",
    "server_error",
]


@dataclass(eq=False)  # neither frozen nor slotted: raising writes to an exception
class ApiError(Exception):
    """param: the field at fault, None when there is no such one. retry_after: seconds."""

    status: int
    kind: Kind
    message: str
    param: str | None = None
    retry_after: int | None = None

    def body(self) -> dict[str, object]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def api_error(error: Exception) -> ApiError:
    """What a client is told of an error. Of a fault that is ours it learns only that there was one."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        wait = max(1, round(error.retry_after))
        return ApiError(429, "rate_limit_error", str(error), retry_after=wait)
    if isinstance(error, DeadlineError):
        return ApiError(504, "timeout_error", str(error))
    if isinstance(error, ClosedError):
        return ApiError(503, "unavailable_error", str(error), retry_after=1)
    if isinstance(error, SurefootError):
        return invalid(str(error))
    return ApiError(500, "server_error", "the server failed at this request; its log says how")


def invalid(message: str) -> ApiError:
    """A bad request. message: "field: what is wrong with it", as every SurefootError has it."""
    field, colon, _ = message.partition(":")
    named = colon and re.fullmatch(r"[\w.\[\]]+", field)
    return ApiError(400, "invalid_request_error", message, param=field if named else None)
