"""The whole API, given what its own OpenAPI schema allows, and what that forbids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from surefoot.asynchronous import AsyncEngine
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel
from surefoot.server.service import Service
from tests.api import application
from tests.serving import IM_END, NAME, VOCAB_SIZE, byte_tokenizer, prose
from tests.test_server_chat import TOOLS_TEMPLATE

CONTEXT = 96  # short, as some of what is asked for is as many answers as there may be

load_all_checks()


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    tokenizer = byte_tokenizer(TOOLS_TEMPLATE)
    model = ToyModel(prose, VOCAB_SIZE, CONTEXT, (IM_END,))
    engine = AsyncEngine(Engine(model, tokenizer=tokenizer, draft_tokens=4))
    served = Service(engine, tokenizer, (NAME,), CONTEXT, max_draft_tokens=4, timeout=None, created=1)
    yield schemathesis.openapi.from_asgi("/openapi.json", application(served))
    load = engine.load
    asyncio.run(engine.close())
    assert (load.running, load.waiting) == (0, 0)


ENDPOINTS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


def test_all_endpoints_are_fuzzed(schema: Any) -> None:
    operations = [found.ok() for found in schema.get_all_operations()]
    assert sorted((each.method.upper(), each.path) for each in operations) == sorted(ENDPOINTS)


@pytest.mark.parametrize("kind", GenerationMode)
@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_whatever_is_sent_gets_an_answer_that_the_schema_describes(
    schema: Any, method: str, path: str, kind: GenerationMode
) -> None:
    """But a body that the schema allows may still be refused: that fields go together it can't tell."""

    @seed(1)
    @settings(
        max_examples=80 if method == "POST" else 10,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy(generation_mode=kind))
    def holds(case: Any) -> None:
        response = case.call()
        if response.status_code != 504:  # what a timeout of next to nothing asks for
            case.validate_response(response, excluded_checks=[positive_data_acceptance])

    try:
        holds()
    except Unsatisfiable:
        assert method == "GET"  # there is nothing to get wrong
