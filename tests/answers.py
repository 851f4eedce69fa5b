"""Answers of the API, compared with what the engine gives for the same by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from surefoot.results import Result
from surefoot.sampling import TopLogprobs
from surefoot.text import Tokenizer
from tests.api import Json

BASE: Json = {"seed": 5, "max_tokens": 40}
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}

# A body's fields, and the parameters that they stand for. None of them leaves the answer to BASE as it is.
PARAMETERS: list[tuple[Json, dict[str, Any]]] = [
    ({"temperature": 0}, {"temperature": 0.0}),
    ({"temperature": 0.3}, {"temperature": 0.3}),
    ({"top_p": 0.3}, {"top_p": 0.3}),
    ({"top_k": 2}, {"top_k": 2}),
    ({"min_p": 0.3}, {"min_p": 0.3}),
    ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    ({"presence_penalty": 2}, {"presence_penalty": 2.0}),
    ({"frequency_penalty": -2}, {"frequency_penalty": -2.0}),
    ({"logit_bias": {"101": 9, "97": -100}}, {"logit_bias": {101: 9.0, 97: -100.0}}),
    ({"max_tokens": 7}, {"max_tokens": 7}),
    ({"seed": 6}, {"seed": 6}),
    ({"n": 3}, {"n": 3}),
    ({"stop": "pdsk"}, {"stop": ("pdsk",)}),
    ({"stop": ["q.", "o", "t"]}, {"stop": ("q.", "o", "t")}),
    ({"stop_token_ids": [101, 111]}, {"stop_token_ids": (101, 111)}),
    ({"bad_words": ["e", "o", "a"]}, {"bad_words": ("e", "o", "a")}),
    (
        {"seed": 1, "logit_bias": {"257": 4}, "min_tokens": 9},
        {"seed": 1, "logit_bias": {257: 4.0}, "min_tokens": 9},
    ),
    (
        {"logit_bias": {"257": 4}, "ignore_eos": True},
        {"logit_bias": {257: 4.0}, "ignore_eos": True},
    ),
]


def same_choices(got: Sequence[Json], want: Result | Sequence[Result], text: str = "text") -> None:
    """text: where a choice has its text."""
    results = [want] if isinstance(want, Result) else want
    wanted = [choice for result in results for choice in result.choices]
    seeds = [result.seed for result in results for _ in result.choices]
    assert [choice["index"] for choice in got] == list(range(len(wanted)))
    for choice, expected, seed in zip(got, wanted, seeds, strict=True):
        said = choice["text"] if text == "text" else choice["message"]["content"]
        assert said == expected.text
        assert choice["token_ids"] == list(expected.token_ids)
        assert choice["finish_reason"] == expected.finish_reason
        assert choice["seed"] == seed


class Listed(Protocol):
    """An engine's choice, or an oracle's."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def logprobs(self) -> tuple[TopLogprobs, ...] | None: ...


def same_lists(lists: Json, want: Listed, tokenizer: Tokenizer, start: int = 0) -> None:
    """Completions' log-probabilities of an answer. start: entries of an echo before it."""
    assert want.logprobs is not None
    size = len(want.token_ids)
    assert {name: len(values) - start for name, values in lists.items()} == dict.fromkeys(lists, size)
    names = [tokenizer.token_bytes(token).decode(errors="replace") for token in want.token_ids]
    assert _plain(lists["tokens"][start:]) == names
    same_numbers(lists["token_logprobs"][start:], [place.chosen for place in want.logprobs])
    for top, place, name in zip(
        lists["top_logprobs"][start:], want.logprobs, lists["tokens"][start:], strict=True
    ):
        found = dict(top)
        if len(found) > len(place.ids):
            assert found.pop(name) == pytest.approx(place.chosen, abs=1e-5)
        same_numbers(list(found.values()), place.values.tolist())


def same_content(content: Sequence[Json], want: Listed, tokenizer: Tokenizer) -> None:
    """Chat's log-probabilities of an answer."""
    assert want.logprobs is not None
    assert [bytes(entry["bytes"]) for entry in content] == [
        tokenizer.token_bytes(token) for token in want.token_ids
    ]
    same_numbers([entry["logprob"] for entry in content], [place.chosen for place in want.logprobs])
    for entry, place in zip(content, want.logprobs, strict=True):
        tops = entry["top_logprobs"]
        assert [bytes(top["bytes"]) for top in tops] == [
            tokenizer.token_bytes(token) for token in place.ids.tolist()
        ]
        same_numbers([top["logprob"] for top in tops], place.values.tolist())


def same_prompt(listed: Sequence[Mapping[str, Json] | None], want: Iterable[TopLogprobs | None]) -> None:
    for got, place in zip(listed, want, strict=True):
        if place is None:
            assert got is None
            continue
        assert got is not None
        (own, *_), tops = got.values(), [entry for entry in got.values() if entry["rank"]]
        assert own["logprob"] == pytest.approx(place.chosen, abs=1e-5)
        same_numbers(sorted((top["logprob"] for top in tops), reverse=True), place.values.tolist())


def same_numbers(got: Sequence[float], want: Sequence[float]) -> None:
    """None of which is infinite or missing in JSON."""
    assert got == pytest.approx([max(value, -9999.0) for value in want], abs=1e-5)
    assert all(map(math.isfinite, got))


def _plain(names: Iterable[str]) -> list[str]:
    return ["\ufffd" if name.startswith("bytes:") else name for name in names]


def joined(events: Sequence[Json]) -> list[Json]:
    """The choices that a stream's events add up to, in the shape of a whole answer."""
    found: dict[int, Json] = {}
    for event in events:
        for choice in event["choices"]:
            _add(found.setdefault(choice["index"], {}), choice)
    return [found[index] for index in sorted(found)]


def _add(whole: Json, piece: Json) -> None:
    assert whole.get("finish_reason") is None, "something came behind a choice's end"
    for name, value in piece.items():
        if name == "delta":
            _add_delta(whole.setdefault("message", {"content": "", "refusal": None}), value)
        elif name == "logprobs" and value is not None:
            lists = whole.setdefault("logprobs", {})
            for key, values in value.items():
                lists.setdefault(key, []).extend(values)
        elif name == "text":
            whole["text"] = whole.get("text", "") + value
        elif name == "token_ids":
            whole.setdefault(name, []).extend(value)
        else:
            whole[name] = value


def _add_delta(message: Json, delta: Json) -> None:
    if "role" in delta:
        assert not message["content"]
        message["role"] = delta["role"]
    message["content"] += delta.get("content", "")
    for call in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        assert call["index"] == len(calls)
        calls.append({name: value for name, value in call.items() if name != "index"})
