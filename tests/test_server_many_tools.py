"""Many tools, and tools with large schemas: what is too much is told, and what isn't is taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.constraints import MAX_SOURCE
from surefoot.server.messages import MOST_SCHEMAS, MOST_TOOLS
from tests.api import CHAT, Api, Json, serving
from tests.server_tables import CHAT as SECTION
from tests.server_tables import DOCUMENT, rows
from tests.serving import byte_tokenizer
from tests.test_server_chat import MESSAGES


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving(tokenizer=byte_tokenizer()) as running:
        yield running


def tools(count: int, characters: int = 2, **more: object) -> list[Json]:
    """So many, whose schemas have so many characters each."""
    fixed = len('{"description": ""}')
    schema = {} if characters == 2 else {"description": "x" * (characters - fixed)}
    return [
        {"type": "function", "function": {"name": f"f{place}", "parameters": schema, **more}}
        for place in range(count)
    ]


def ask(api: Api, given: list[Json], **more: Any) -> str:
    """What is told of them. Of those that are fine it is that the template knows no tools."""
    return api.refusal(CHAT, messages=MESSAGES, tools=given, **more)


FINE = "tools: {} given, but the model's chat template knows no tools"


def test_so_many_and_no_more(api: Api) -> None:
    assert ask(api, tools(MOST_TOOLS)).startswith(FINE.format(MOST_TOOLS))
    told = ask(api, tools(MOST_TOOLS + 1))
    assert told.startswith("tools: [")
    assert told.endswith(f" is too long; allowed is {MOST_TOOLS} items or fewer")


def test_schemas_of_so_many_characters_and_no_more(api: Api) -> None:
    half = MOST_SCHEMAS // 2
    assert ask(api, tools(2, half)).startswith(FINE.format(2))
    said = "tools: their schemas have {} characters of JSON together; allowed are {}"
    assert ask(api, [*tools(2, half), *tools(3)[2:]]) == said.format(MOST_SCHEMAS + 2, MOST_SCHEMAS)


def test_tokenize_takes_as_many(api: Api) -> None:
    assert api.refusal("/tokenize", messages=MESSAGES, tools=tools(MOST_TOOLS + 1)).startswith("tools: [")


def test_the_document_has_both_limits() -> None:
    [row] = [row for row in rows(SECTION) if row.field == "tools"]
    assert re.findall(r"\d+", row.allowed) == [str(MOST_TOOLS)]
    assert MOST_SCHEMAS == MAX_SOURCE
    assert f"may have {MOST_SCHEMAS} characters of JSON" in DOCUMENT.read_text()
