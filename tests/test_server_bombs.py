"""A body that is wrong in very many places costs no more than one that is wrong in one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from surefoot.server.bodies import ChatBody, CompletionBody
from surefoot.server.mistakes import body_error
from surefoot.server.tokens import DetokenizeBody, TokenizeBody

MANY = 1000
USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (CompletionBody, {"prompt": ["a", *[1] * MANY]}),
        (CompletionBody, {"prompt": [1, *["a"] * MANY]}),
        (CompletionBody, {"prompt": [["a"] * MANY] * MANY}),
        (ChatBody, {"messages": [{}] * MANY}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [1] * MANY}]}),
        (ChatBody, {"messages": [USER], "tools": [1] * MANY}),
        (ChatBody, {"messages": [USER], "tools": [{"type": "function", "function": {"name": "a"}}] * MANY}),
        (TokenizeBody, {"messages": [1] * MANY}),
        (TokenizeBody, {"messages": [USER], "tools": [1] * MANY}),
        (CompletionBody, {"prompt": "a", **{f"unknown{place}": 1 for place in range(MANY)}}),
        (CompletionBody, {"prompt": "a", "logit_bias": {str(place): True for place in range(MANY)}}),
        (CompletionBody, {"prompt": "a", "logit_bias": {f"x{place}": 1 for place in range(MANY)}}),
        (CompletionBody, {"prompt": "a", "structured_outputs": {"choice": [1] * MANY}}),
        (DetokenizeBody, {"tokens": ["a"] * MANY}),
    ],
)
def test_of_many_mistakes_the_first_is_all_that_is_looked_for(
    body: type[BaseModel], given: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as told:
        body.model_validate(given)
    assert told.value.error_count() == 1


def test_a_long_name_of_an_unknown_field_is_cut() -> None:
    told = body_error([{"type": "extra_forbidden", "loc": ("body", "x" * MANY), "input": 1}])
    assert told.param == "x" * 57 + "..."
    assert told.message == f"{told.param}: this field is unknown"
