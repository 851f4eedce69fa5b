"""Structured logs: one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

LEVELS = ("debug", "info", "warning", "error")

_LOG = logging.getLogger("surefoot.server")

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that this task, and those it starts, work on."""


def log(level: str, event: str, *, fault: BaseException | None = None, **fields: object) -> None:
    """Writes what happened, with the id of the request that is worked on. fault: with its traceback."""
    fields = {"request_id": REQUEST_ID.get()} | fields
    _LOG.log(_number(level), event, exc_info=fault, extra={"fields": fields})


def configure(level: str, stream: TextIO | None = None) -> None:
    """Sends what surefoot logs, and uvicorn's warnings, to a stream (standard error) as lines of JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name, least in (("surefoot", level), ("uvicorn.error", "warning")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(_number(least))
        logger.propagate = False


class JsonLines(logging.Formatter):
    """time (UTC), level and event, then the fields of the event that are not None; a traceback is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage().strip(),
        }
        fields: dict[str, Any] = getattr(record, "fields", {})
        line |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]
