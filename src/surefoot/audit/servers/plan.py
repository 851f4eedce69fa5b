"""What is asked of two servers, and how thoroughly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surefoot.types import SurefootError, share, whole

Role = Literal["plain", "speculative"]


@dataclass(frozen=True)
class Side:
    """A server, or what it answered earlier.

    url: of a server that is asked, with or without `/v1`. journal: a file that keeps its answers; what is
    in there already isn't asked again. Without a url, the journal's answers are all there is: a server that
    was recorded, and has been stopped since.
    """

    url: str | None = None
    journal: Path | None = None

    def __post_init__(self) -> None:
        if self.url is None and self.journal is None:
            raise SurefootError("a server needs a url, or the journal of an earlier run")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise SurefootError(f"url: {self.url!r} starts with neither http:// nor https://")


@dataclass(frozen=True)
class ServerPlan:
    """How two servers are compared.

    model: the name in every request; None takes the only one that the server lists. prompts: texts; with
    `chat` each is the one message of a conversation. concurrency: requests under way at once. max_tokens: of
    every answer. temperature, top_k (0 = off): of the sampled part. samples: sampled answers per prompt and
    server. tie_gap: nats between two tokens' log probabilities below which either may come first: in bf16,
    neighbouring logits near 20 are 1/8 apart, so that two kernels may differ by as much; 0.15 leaves a little
    room for sums. tolerance: how far a reported probability may be from the one that was sampled with, for
    the same reason. alpha: the probability of a false alarm. detect: the share of foreign tokens that must
    have been seen for a pass. seed: of the audit's own choices; servers are sent none. stream: whether
    answers are streamed. retries: how often a dropped connection or an overloaded server is asked again.
    timeout: seconds without a byte until a connection counts as dropped.
    """

    prompts: tuple[str, ...]
    model: str | None = None
    chat: bool = False
    concurrency: int = 4
    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    samples: int = 8
    tie_gap: float = 0.15
    tolerance: float = 0.005
    alpha: float = 0.01
    detect: float = 0.1
    seed: int = 0
    api_key: str | None = None
    stream: bool = False
    retries: int = 5
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not self.prompts:
            raise SurefootError("prompts: none given; the audit needs 1 or more")
        for name in ("concurrency", "max_tokens"):
            whole(name, getattr(self, name), 1)
        for name in ("samples", "top_k", "retries", "seed"):
            whole(name, getattr(self, name), 0)
        for name in ("alpha", "detect"):
            share(name, getattr(self, name))
        for name in ("temperature", "tie_gap", "tolerance"):
            if not 0 <= getattr(self, name) < 100:
                raise SurefootError(f"{name}: {getattr(self, name)} is out of range; allowed is [0, 100)")

    @property
    def recorded(self) -> Mapping[str, object]:
        """What a journal's answers depend on, by name."""
        return {
            "api": "chat" if self.chat else "completions",
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "stream": self.stream,
            "prompts": hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()[:16],
        }
