"""What a server says of itself when it starts."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from surefoot.engine import Engine, lookahead
from surefoot.loading import LoadedModel
from surefoot.server.logs import log
from surefoot.server.settings import Settings


@dataclass(frozen=True, slots=True)
class Start:
    """kernels: who computes, an instruction set of the native core or "pytorch". max_model_len: of prompt and
    output together, in tokens. draft_tokens: the longest draft, 0 where nothing is drafted. kv_memory: bytes
    for keys and values, a draft model's included, and kv_tokens, the tokens of all requests that they hold.
    """

    model: str
    precision: str
    kernels: str
    max_model_len: int
    draft: str
    draft_tokens: int
    kv_memory: int
    kv_tokens: int

    def __str__(self) -> str:
        drafts = f"drafts by {self.draft}, {self.draft_tokens} tokens at most"
        parts = (
            f"{self.model}, precision {self.precision} by {self.kernels}",
            f"context {self.max_model_len} tokens",
            drafts if self.draft_tokens else "no drafts",
            f"{_size(self.kv_memory)} for keys and values, {self.kv_tokens} tokens",
        )
        return "; ".join(parts)


def start_of(settings: Settings, target: LoadedModel, engine: Engine) -> Start:
    """settings: with the kv_memory that the engine has."""
    longest = lookahead(settings.draft, settings.draft_tokens, settings.max_rows).draft_tokens
    assert settings.kv_memory is not None
    return Start(
        model=settings.model,
        precision=target.precision,
        kernels=target.kernels,
        max_model_len=engine.max_length,
        draft=settings.draft,
        draft_tokens=min(longest, engine.max_draft_tokens),
        kv_memory=settings.kv_memory,
        kv_tokens=(engine.load.pages_total or 0) * target.model.cache.page_rows,
    )


def announce(settings: Settings, start: Start, url: str) -> None:
    """To people on standard error, and to the log."""
    lines = "\n".join(f"  {line}" for line in settings.lines())
    print(f"surefoot: settings\n{lines}\nsurefoot: {start}", file=sys.stderr)
    log("info", "started", url=url, **asdict(start))
    names = ", ".join(settings.served_model_name)
    print(f"surefoot: serving {names} on {url}", file=sys.stderr, flush=True)


def _size(count: int) -> str:
    unit = next((unit for unit in range(4, 0, -1) if count >= 1024**unit), 0)
    return f"{count / 1024**unit:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
