"""Requests of every kind for tests/soak.py, drawn from a seed: sound ones, and broken ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.api import CHAT, COMPLETIONS, Json

LETTERS = "abcdefghijklmnopqrstuvwxyz .é€"
SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "yz"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
FORMS: tuple[Json, ...] = (
    {"structured_outputs": {"regex": "[a-fé]{2,12}(xy|z)?"}},
    {"structured_outputs": {"choice": ["yes", "yet", "no", "non é"]}},
    {"structured_outputs": {"grammar": 'start: ("a" | "b" start)'}},
    {"structured_outputs": {"json": SCHEMA}},
)
CHAT_FORMS: tuple[Json, ...] = (
    *FORMS,
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"tools": TOOLS, "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": "auto"},
)


@dataclass(frozen=True)
class Job:
    """One request. wrong: the status and the field of the answer that it must get, for a broken one. leaves:
    after how many pieces of its stream the client goes away. wait: seconds until it goes where there are no
    pieces. hurried: it may be too late. fixed: its drafts are part of it."""

    path: str
    body: bytes
    stream: bool = False
    wrong: tuple[int, str | None] | None = None
    leaves: int | None = None
    wait: float = 0.0
    hurried: bool = False
    fixed: bool = False

    @property
    def alone(self) -> tuple[str, bytes]:
        """The same for a server that has nothing else to do: whole, and with all the time it takes. Whether
        it drafts is for that server to say, unless `Scale.fixed`."""
        body = json.loads(self.body)
        for name in ("stream", "stream_options", "timeout", *(() if self.fixed else ("draft_tokens",))):
            body.pop(name, None)
        return self.path, json.dumps(body).encode()


@dataclass(frozen=True)
class Scale:
    """How long things are, in characters and tokens. ids: that prompts are made of. most: of a context.
    drafts: the longest draft that a request may ask for. fixed: whether answers depend on it."""

    shared: int
    own: int
    answer: int
    ids: Sequence[int]
    most: int
    drafts: int
    fixed: bool = False


class Bodies:
    """Jobs by number: a number's job depends on the seed alone."""

    def __init__(self, seed: int, scale: Scale) -> None:
        self._seed, self._scale = seed, scale
        common = random.Random(f"{seed} common")
        self._texts = [_text(common, scale.shared) for _ in range(12)]
        self._ids = [common.choices(scale.ids, k=scale.shared) for _ in range(6)]

    def job(self, number: int) -> Job:
        """5% are broken, 10% lose their client, some are in a hurry, and one in twelve was asked before."""
        rng = random.Random(f"{self._seed} {number}")
        kind = rng.random()
        if kind < 0.05:
            return self._broken(rng)
        if rng.random() < 0.08 and number > 20:
            rng = random.Random(f"{self._seed} {number - rng.randrange(1, 12)} again")
        body = self._chat(rng) if rng.random() < 0.4 else self._completion(rng)
        job = Job(
            CHAT if "messages" in body else COMPLETIONS,
            b"",
            bool(body.get("stream")),
            fixed=self._scale.fixed,
        )
        if kind < 0.15:
            job = replace(job, leaves=rng.randrange(6), wait=rng.random() * 0.05)
        elif kind < 0.23:
            body["timeout"] = rng.choice((1e-9, 0.001, 0.02, 0.1, 0.5))
            job = replace(job, hurried=True)
        elif kind < 0.3:
            body["timeout"] = 600
        return replace(job, body=json.dumps(body).encode())

    def _completion(self, rng: random.Random) -> Json:
        scale = self._scale
        body = self._shared(rng)
        body["prompt"] = self._prompt(rng)
        body["max_tokens"] = rng.randint(1, scale.answer)
        if rng.random() < 0.2:
            body["echo"] = True
        if rng.random() < 0.25:
            body["logprobs"] = rng.randrange(4)
        if rng.random() < 0.1:
            body["prompt"] = [self._prompt(rng), self._prompt(rng)] if rng.random() < 0.5 else body["prompt"]
            if not isinstance(body["prompt"], str) and len({type(p) for p in body["prompt"]}) > 1:
                body["prompt"] = body["prompt"][0]
        if rng.random() < 0.1 and not body.get("stream"):
            body["best_of"] = body.get("n", 1) + rng.randrange(3)
        return _formed(rng, body, FORMS)

    def _chat(self, rng: random.Random) -> Json:
        body = self._shared(rng)
        text = self._text_prompt(rng)
        body["messages"] = [{"role": "user", "content": text[: self._scale.shared]}]
        if rng.random() < 0.3:
            body["messages"].insert(0, {"role": "system", "content": self._texts[0][:8]})
        if rng.random() < 0.3:
            turns = [("assistant", "é"), ("user", [{"type": "text", "text": "and?"}])]
            body["messages"] += [{"role": role, "content": content} for role, content in turns]
        name = rng.choice(("max_tokens", "max_completion_tokens"))
        body[name] = rng.randint(1, self._scale.answer)
        if rng.random() < 0.25:
            body |= {"logprobs": True, "top_logprobs": rng.randrange(4)}
        return _formed(rng, body, CHAT_FORMS)

    def _shared(self, rng: random.Random) -> Json:
        ids = self._scale.ids
        choices: Json = {
            "temperature": rng.choice((0, 0.3, 0.7, 1, 1.5)),
            "n": rng.choice((1, 2, 3)),
            "top_p": rng.choice((0.5, 0.9, 1)),
            "top_k": rng.choice((0, 1, 5)),
            "min_p": rng.choice((0, 0.1)),
            "repetition_penalty": rng.choice((0.9, 1, 1.3)),
            "presence_penalty": rng.choice((-1, 1, 2)),
            "frequency_penalty": rng.choice((-0.5, 1)),
            "logit_bias": {str(rng.choice(ids)): rng.choice((-100, 5)) for _ in range(3)},
            "stop": rng.choice(("e", ["xy", "q."], [" "], ["ab", "é", "the"])),
            "stop_token_ids": [rng.choice(ids)],
            "min_tokens": 1,
            "ignore_eos": True,
            "bad_words": [rng.choice(LETTERS[:26])],
            "prompt_logprobs": rng.randrange(3),
            "include_metrics": True,
            "user": "someone",
            "draft_tokens": rng.randrange(self._scale.drafts + 1),
        }
        body = {name: value for name, value in choices.items() if rng.random() < 0.25}
        body |= {"seed": rng.randrange(2**64), "return_token_ids": True}
        if rng.random() < 0.55:
            body["stream"] = True
            if rng.random() < 0.5:
                body["stream_options"] = {"include_usage": True}
        return body

    def _prompt(self, rng: random.Random) -> str | list[int]:
        if rng.random() < 0.5:
            return self._text_prompt(rng)
        shared = rng.choice(self._ids)[: rng.randint(0, self._scale.shared)]
        return shared + rng.choices(self._scale.ids, k=rng.randint(1, self._scale.own))

    def _text_prompt(self, rng: random.Random) -> str:
        shared = rng.choice(self._texts)[: rng.randint(0, self._scale.shared)]
        return shared + _text(rng, rng.randint(1, self._scale.own))

    def _broken(self, rng: random.Random) -> Job:
        too_long = [self._scale.ids[0]] * self._scale.most
        status, field, path, body = rng.choice(_broken_bodies(too_long))
        sound: Json = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
        if isinstance(body, bytes):
            return Job(path, body, wrong=(status, field))
        if rng.random() < 0.5 and "stream" not in body and "stream_options" not in body:
            sound["stream"] = True
        return Job(path, json.dumps(sound | body).encode(), wrong=(status, field))


def _formed(rng: random.Random, body: Json, forms: Sequence[Json]) -> Json:
    return body | (rng.choice(forms) if rng.random() < 0.15 else {})


def _text(rng: random.Random, size: int) -> str:
    return "".join(rng.choices(LETTERS, k=size))


def _broken_bodies(too_long: list[int]) -> list[tuple[int, str | None, str, Any]]:
    """Status, field, path, and the fields of a body that is sound without them, or the whole of it."""
    ranges = {
        "max_tokens": (0, -1, 1.5, "2", 2**70 * 0.5, True),
        "temperature": (-0.1, 101, "1", [], False),
        "top_p": (0, 1.1),
        "top_k": (-1, 0.5),
        "min_p": (-1, 2),
        "repetition_penalty": (0, 101),
        "presence_penalty": (-3, 2.1),
        "frequency_penalty": (9,),
        "min_tokens": (-1, 10**9),
        "seed": (-1, 2**64),
        "n": (0, 129),
        "prompt_logprobs": (-1, 21),
        "draft_tokens": (-1, 10**6),
        "timeout": (0, -1),
        "stop": ("", [""], 5, [5]),
        "stop_token_ids": ([-1], [10**9], "x", 3),
        "logit_bias": ({"1": 101}, {"x": 1}, {"-1": 1}, {"1": 1, "01": 2}, [], {"999999999999": 1}),
        "bad_words": ([""], "x"),
        "ignore_eos": (1, "true"),
        "stream_options": ({"include_usage": True}, {"include_usage": True, "include_obfuscation": False}),
        "structured_outputs": ({}, {"regex": "a", "choice": ["b"]}),
        "nonsense": (1,),
    }
    found: list[tuple[int, str | None, str, Any]] = [
        (400, name, path, {name: value})
        for name, values in ranges.items()
        for value in values
        for path in (COMPLETIONS, CHAT)
    ]
    prompts: list[Any] = ["", [], [10**9], [-1], 5, None, [[]], {}, too_long, "\ud800", [1, "a"]]
    found += [(400, "prompt", COMPLETIONS, {"prompt": prompt}) for prompt in prompts]
    conversations: list[Any] = [[], "a", None]
    found += [(400, "messages", CHAT, {"messages": messages}) for messages in conversations]
    turns: list[Json] = [{"role": "x", "content": "a"}, {"role": "user", "content": 1}]
    found += [(400, "messages[0]", CHAT, {"messages": [turn]}) for turn in turns]
    forms: list[Json] = [{"regex": "("}, {"json": "{"}, {"grammar": "x"}, {"json": {"type": "no"}}]
    found += [
        (400, "structured_outputs", path, {"structured_outputs": f})
        for f in forms
        for path in (COMPLETIONS, CHAT)
    ]
    found += [
        (404, "model", COMPLETIONS, {"model": "gpt-4"}),
        (404, None, "/v1/nothing", {}),
        (400, "best_of", COMPLETIONS, {"n": 3, "best_of": 2}),
        (400, "best_of", COMPLETIONS, {"best_of": 2, "stream": True}),
        (400, "top_logprobs", CHAT, {"top_logprobs": 2}),
        (400, "max_completion_tokens", CHAT, {"max_tokens": 3, "max_completion_tokens": 4}),
        (400, "tool_choice", CHAT, {"tool_choice": "required"}),
        (400, None, CHAT, {"tools": [*TOOLS, *TOOLS]}),
        (400, None, COMPLETIONS, b"{"),
        (400, None, COMPLETIONS, b""),
        (400, None, COMPLETIONS, b"[" * 5000),
        (400, None, CHAT, b"\xff\xfe"),
        (400, None, COMPLETIONS, b'{"prompt": NaN}'),
        (413, None, COMPLETIONS, b" " * 70_000),
    ]
    return found
