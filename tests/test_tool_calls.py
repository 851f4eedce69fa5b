"""Calls of tools out of a stream of text: whatever the pieces, the same calls, and nothing is lost."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.server.tools import CallDelta, Delta, TextDelta, ToolParser

NAMES = ("get_weather", "add")
CALL = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
SUM = '{"name": "add", "arguments": {"a": 1, "b": [2.50, {"c": null}]}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
TRICKY = r'{"name": "add", "arguments": {"a": "</tool_call> \" <tool_call> \\"}}'
SPREAD = json.dumps(json.loads(SUM), indent=2)
W = ("get_weather", '{"city": "Köln"}')
S = ("add", '{"a": 1, "b": [2.50, {"c": null}]}')
T = ("add", r'{"a": "</tool_call> \" <tool_call> \\"}')

CASES: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    # an answer, the text it becomes, and its calls
    "text": ("Hello there.\n", "Hello there.\n", []),
    "nothing": ("", "", []),
    "white space": (" \n", " \n", []),
    "one": (TAGGED, "", [W]),
    "two": (f"{TAGGED}\n<tool_call>\n{SUM}\n</tool_call>", "", [W, S]),
    "with text": (f"Let me look.\n\n{TAGGED}\nDone. \n", "Let me look.Done. \n", [W]),
    "text between": (f"a {TAGGED} b {TAGGED} c", "abc", [W, W]),
    "a list": (f"<tool_call>[{CALL},\n{SUM}]</tool_call>", "", [W, S]),
    "two in one": (f"<tool_call>{CALL}\n{SUM}</tool_call>", "", [W, S]),
    "tags in a string": (f"<tool_call>{TRICKY}</tool_call>", "", [T]),
    "no closing tag": (f"<tool_call>\n{CALL}\n", "", [W]),
    "no arguments": ('<tool_call>{"name": "add"}</tool_call>', "", [("add", "{}")]),
    "the other order": ('<tool_call>{"arguments": {}, "name": "add"}</tool_call>', "", [("add", "{}")]),
    "bare": (f" {CALL}\n", "", [W]),
    "bare, two lines": (f"{CALL}\n{SUM}", "", [W, S]),
    "bare, a list": (f"[{CALL}, {SUM}]", "", [W, S]),
    "fenced": (f"```json\n{CALL}\n```", "", [W]),
    "fenced, no language": (f"```\n{CALL}\n```\n", "", [W]),
    "fenced, two": (f"```json\n{CALL}\n```\n\n```json\n{SUM}\n```", "", [W, S]),
    "bare and spread out": (SPREAD, "", [("add", SPREAD.partition('"arguments": ')[2][:-2])]),
}
AS_TEXT = {
    "another tool": '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
    "another member": '<tool_call>{"name": "add", "arguments": {}, "id": 1}</tool_call>',
    "arguments that are none": '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
    "arguments as a string": '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>',
    "a name that is none": '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
    "a member twice": '<tool_call>{"name": "add", "name": "add"}</tool_call>',
    "no JSON": '<tool_call>{"name": "add", "arguments": {a: 1}}</tool_call>',
    "no number": '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
    "too deep": '<tool_call>{"name": "add", "arguments": {"a":' + "[" * 100_000 + "</tool_call>",
    "an empty list": "<tool_call>[]</tool_call>",
    "an empty object": "<tool_call>{}</tool_call>",
    "a list with a hole": f"<tool_call>[{CALL},]</tool_call>",
    "nothing inside": "<tool_call></tool_call>",
    "cut off": '<tool_call>\n{"name": "add", "arguments": {"a": 1',
    "cut off in a tag": "Well <tool_c",
    "tags in prose": "Write <tool_call> and then </tool_call> \n around it.",
    "closing tags": "</tool_call></tool_call>",
    "bare, another tool": '{"name": "say_hello", "arguments": {}}',
    "bare and text": f"{CALL} as you wished",
    "text and bare": f"So: {CALL}",
    "text and a fence": f"So:\n```json\n{CALL}\n```",
    "an open fence": f"```json\n{CALL}\n",
    "code": "```python\nprint({})\n```",
    "other JSON": '{"name": "Ada", "age": 36}',
    "another language": f"```jsonl\n{CALL}\n```",
}
HIDDEN = {  # a call that stands behind something broken
    f"<tool_call>{TAGGED}": ("<tool_call>", [W]),
    f'<tool_call>{{"name": "add, "arguments": {{}}}}</tool_call>\n{TAGGED}': (
        '<tool_call>{"name": "add, "arguments": {}}</tool_call>',
        [W],
    ),
    f"{CALL}{TAGGED}": (CALL, [W]),
    f"<{TAGGED}": ("<", [W]),
    f"<tool_call><tool_call>{{{TAGGED}": ("<tool_call><tool_call>{", [W]),
}


def parse(pieces: list[str]) -> list[Delta]:
    parser = ToolParser(NAMES)
    return [*(delta for piece in pieces for delta in parser.push(piece)), *parser.finish()]


def assembled(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    deltas = parse(pieces)
    calls = [delta for delta in deltas if isinstance(delta, CallDelta)]
    assert [call.index for call in calls] == list(range(len(calls)))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return text, [(call.name, call.arguments) for call in calls]


ALL = (
    CASES
    | {name: (answer, answer, []) for name, answer in AS_TEXT.items()}
    | {answer: (answer, *becomes) for answer, becomes in HIDDEN.items()}
)


@pytest.mark.parametrize("name", ALL)
def test_an_answer_becomes_text_and_calls(name: str) -> None:
    answer, text, calls = ALL[name]
    assert assembled([answer]) == (text, calls)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("name", [name for name in ALL if len(ALL[name][0]) < 1000])
def test_k1_every_split_in_two_gives_the_same(name: str) -> None:
    answer, text, calls = ALL[name]
    for place in range(len(answer) + 1):
        assert assembled([answer[:place], answer[place:]]) == (text, calls), place
    assert assembled(list(answer)) == (text, calls)


MARKS = (
    "<tool_call>",
    "</tool_call>",
    CALL,
    TRICKY,
    "```",
    "```json",
    "\n",
    " ",
    "{",
    "[",
    "]",
    '"',
    "\\",
    ",",
)
ANSWERS = st.lists(st.sampled_from([*MARKS, TAGGED, "a", "<", "}"]), max_size=9).map("".join)


@given(ANSWERS, st.data())
@settings(max_examples=500)
def test_k1_however_it_is_cut_nothing_changes(answer: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=6)))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert assembled(pieces) == assembled([answer]) == assembled(list(answer))


@given(ANSWERS)
@settings(max_examples=500)
def test_text_and_calls_account_for_every_character(answer: str) -> None:
    """Deltas in their order are the answer: all of it where there is no call, else without what stands
    around calls."""
    deltas, said = parse([answer]), []
    if not any(isinstance(delta, CallDelta) for delta in deltas):
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == answer
    for delta in deltas:
        if isinstance(delta, TextDelta):
            said.append(delta.text)
        else:
            said.append(json.dumps({"name": delta.name}, ensure_ascii=False)[:-1] + ', "arguments": ')
            said.append(delta.arguments + "}")
    assert bare("".join(said)) == bare(answer)


def bare(text: str) -> str:
    return re.sub(r"\s|</?tool_call>|```(json)?|[\[\],]", "", text)


def test_text_comes_as_soon_as_it_is_none_of_a_call() -> None:
    parser = ToolParser(NAMES)
    assert parser.push("Well") == [TextDelta("Well")]
    assert parser.push(", then") == [TextDelta(", then")]
    assert parser.push(" ") == []
    assert parser.push("<") == []
    assert parser.push("b>") == [TextDelta(" <b>")]
    assert parser.push("\n<tool_call>\n") == []
    assert parser.push(CALL) == []
    assert parser.push("\n</tool_call>") == [CallDelta(0, *W)]
    assert parser.finish() == []


@pytest.mark.parametrize("beginning", ["```p", '{"x', "[1", '{"name": "Ada', "``` h"])
def test_other_code_is_not_held_back(beginning: str) -> None:
    assert ToolParser(NAMES).push(beginning) == [TextDelta(beginning)]


def test_a_long_answer_takes_steps_in_proportion() -> None:
    """Tags without end that could begin calls, and strings that never close: in steps of the square
    of its length each of these would take minutes."""
    for answer in (
        "<tool_call>{" * 1400 + '"' + "</tool_call>" * 1300,
        '<tool_call>{"a":[1,1,1,1,1,1' * 1000,
        '<tool_call>{"name":"add","arguments":{"a":"' + "<tool_call>{" * 2600,
        '<tool_call>{"' + '<tool_call>{":1,"' * 1800,
    ):
        assert assembled([answer]) == (answer, [])
        assert assembled(list(answer)) == (answer, [])
