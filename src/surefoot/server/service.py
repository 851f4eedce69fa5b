"""What the endpoints serve from: an engine and what is fixed about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from surefoot.asynchronous import AsyncEngine

if TYPE_CHECKING:
    from surefoot.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Service:
    """names: those that requests may give as `model`, the first of which answers bear. max_length: of prompt
    and output together, in tokens. max_draft_tokens: the longest draft that a request may ask for. timeout:
    seconds that a request may take unless it asks for fewer, None for any. created: when the server started,
    seconds since 1970. max_prompt_tokens: of the prompt alone, None for as many as max_length leaves."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    names: tuple[str, ...]
    max_length: int
    max_draft_tokens: int
    timeout: float | None
    created: int
    max_prompt_tokens: int | None = None


async def service(request: Request) -> Service:
    """The service of the application that received a request (a FastAPI dependency)."""
    found: Service = request.app.state.service
    return found
