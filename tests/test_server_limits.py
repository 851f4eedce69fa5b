"""Every row of docs/server.md's tables: its default changes nothing, and what it doesn't allow is refused by
name, with what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import CHAT, COMPLETIONS, Api, serving
from tests.asked import BASE, EVERY_ROW, Asked
from tests.server_tables import DOCUMENT, Row, named


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with serving() as running:
        yield running


WRONG: dict[str, list[tuple[Any, str]]] = {
    # beside numbers and switches: a value, and what is said of it
    "model": [(5, "5 is not a string")],
    "logit_bias": [
        ({"a": 1}, '"a" is not of the form'),
        ({"5": 101}, "101 is out of range; allowed is [-100, 1"),
    ],
    "stop": [(5, "5 is neither a string nor a list of strings"), ("", '"" is an empty string; it needs')],
    "stop_token_ids": [
        ([-1], "-1 is out of range; allowed is 0 or more"),
        ([999], "token 999 is out of range"),
    ],
    "bad_words": [("a", '"a" is not a list'), ([""], '"" is an empty string; it needs')],
    "structured_outputs": [({}, "nothing given; allowed is exactly one of json, regex, grammar, choice")],
    "stream_options": [({"include_usage": True}, "given without stream; they are for streams")],
    "cache_salt": [(5, "5 is not a string")],
    "user": [(5, "5 is not a string")],
    "safety_identifier": [(5, "5 is not a string")],
    "prompt_cache_key": [(5, "5 is not a string")],
    "prompt": [(5, "5 is neither text nor token ids"), ([[]], "[] is too short; allowed is 1 item or more")],
    "messages": [([], "[] is too short; allowed is 1"), ([{"role": "x"}], '{"role": "x"} has no role that')],
    "response_format": [
        ({"type": "xml"}, '{"type": "xml"} has no type that is known; allowed is text, json_')
    ],
    "tools": [(5, "5 is not a list"), ([{"type": "function"}], "it is missing")],
    "tool_choice": [("any", "\"any\" is unknown; allowed is 'none', 'auto' or 'required'")],
}


@EVERY_ROW
def test_a_default_and_null_change_nothing(api: Api, row: Row, path: str) -> None:
    asked = Asked(api, path)
    if row.default is not None:
        default, null = (asked.ask(**{row.field: value}) for value in (row.default_value, None))
        assert default["choices"] == null["choices"]
    if row.field not in (*BASE, "prompt", "messages"):
        assert asked.ask(**{row.field: None})["choices"] == asked.ask()["choices"]


@EVERY_ROW
def test_what_a_row_does_not_allow_is_refused(api: Api, row: Row, path: str) -> None:
    asked = Asked(api, path)
    wrong = [*WRONG.get(row.field, ()), *_beyond(row)]
    assert wrong
    for value, said in wrong:
        body = {
            **asked.prompt,
            **({"logprobs": True} if row.field == "top_logprobs" else {}),
            row.field: value,
        }
        response = api.post(path, **body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"].startswith(row.field)
        assert error["message"].startswith(f"{error['param']}: {said}")


def test_fields_without_a_meaning_here_are_refused(api: Api) -> None:
    listed = re.search("that have no meaning here:(.*?)\\.", DOCUMENT.read_text(), re.DOTALL)
    assert listed
    for name in named(listed[1]):
        body = {"messages": [{"role": "user", "content": "a"}], name: "x"}
        assert api.refusal(CHAT, **body) == f"{name}: this field is unknown"


def test_the_example_of_a_mistake_is_one(api: Api) -> None:
    [example] = re.findall(r"^```json\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert api.post(COMPLETIONS, prompt="a", top_p=1.5).json() == json.loads(example)


def _beyond(row: Row) -> list[tuple[Any, str]]:
    """Values that a row's kind and limits rule out."""
    kind, _, limits = row.allowed.partition(", ")
    if kind == "true or false":
        return [("yes", '"yes" is not true or false'), (1, "1 is not true or false")]
    if kind not in ("whole", "number"):
        return []
    low, *high = (float(end) for end in re.findall(r"-?\d[\de-]*", limits))
    below = low if limits.startswith(("(", "more")) else low - 1
    name = "whole number" if kind == "whole" else "number"
    outside = [int(below), *(int(end) + 1 for end in high)]
    said = {'"1"': f"is not a {name}", "true": f"is not a {name}"}
    said |= {str(value): "is out of range" for value in outside}
    return [(json.loads(value), f"{value} {why}; allowed is {limits}") for value, why in said.items()]
