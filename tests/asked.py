"""What the tests of docs/server.md's rows share: an endpoint, and what it is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from surefoot.results import Result
from surefoot.types import SamplingParams
from tests import api as endpoints
from tests.api import Api, Json
from tests.server_tables import CHAT, COMPLETIONS, SHARED, rows

BASE: Json = {"seed": 5, "max_tokens": 40}


@dataclass
class Asked:
    """One endpoint, and what it is asked about."""

    api: Api
    path: str

    @property
    def prompt(self) -> Json:
        chat = {"messages": [{"role": "user", "content": "How are you?"}]}
        return chat if self.is_chat else {"prompt": "How are you?"}

    @property
    def is_chat(self) -> bool:
        return self.path == endpoints.CHAT

    @property
    def ids(self) -> list[int]:
        found: list[int] = self.api.ask("/tokenize", **self.prompt)["tokens"]
        return found

    def ask(self, **fields: object) -> Json:
        return self.api.ask(self.path, **{**BASE, **self.prompt, **fields})

    def choices(self, **fields: object) -> list[Json]:
        """With their token ids."""
        found: list[Json] = self.ask(return_token_ids=True, **fields)["choices"]
        return found

    def text(self, **fields: object) -> str:
        [choice] = self.ask(**fields)["choices"]
        found: str = choice["message"]["content"] if self.is_chat else choice["text"]
        return found

    def events(self, **fields: object) -> list[Json]:
        return self.api.events(self.path, **{**BASE, **self.prompt, **fields})

    def solo(self, **params: Any) -> Result:
        """The engine's own answer, by plain decoding."""
        neutral = {"temperature": 1.0, "top_p": 1.0, **BASE}
        return self.api.solo(self.ids, SamplingParams(**{**neutral, **params}))


ALL = [
    (row, path)
    for section, paths in (
        (SHARED, (endpoints.COMPLETIONS, endpoints.CHAT)),
        (COMPLETIONS, (endpoints.COMPLETIONS,)),
        (CHAT, (endpoints.CHAT,)),
    )
    for row in rows(section)
    for path in paths
]
EVERY_ROW = pytest.mark.parametrize(("row", "path"), ALL, ids=lambda value: str(value).rpartition("/")[2])
