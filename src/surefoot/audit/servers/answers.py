"""A server's answer → text, tokens and log probabilities, whichever of the known shapes it has.

completions: `logprobs` {tokens, token_logprobs, top_logprobs: [{text: logprob}]}; chat, and llama-server's
completions: `logprobs.content` [{token, bytes, logprob, top_logprobs: [...]}], where llama-server adds `id`;
vLLM's `prompt_logprobs` [{id: {logprob, decoded_token}}] and `token_ids`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Json = Mapping[str, Any]
_LOST = "�".encode()  # stands for the bytes of an unfinished character: they can't be read back


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that could stand at a place.

    name: as the server wrote it. data: its bytes; None where the server doesn't say them, as for half a
    character (as "�" in most servers, as nothing in vLLM). id: None likewise.
    """

    name: str
    logprob: float
    data: bytes | None = None
    id: int | None = None

    def same(self, other: Choice) -> bool:
        """Whether they are one token, as far as both servers say."""
        if self.id is not None and other.id is not None:
            return self.id == other.id
        if self.data is not None and other.data is not None:
            return self.data == other.data
        return self.name == other.name


@dataclass(frozen=True, slots=True)
class Place:
    """A token of an answer, and the tokens listed for its place, the likeliest first."""

    token: Choice
    top: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. places: None without log probabilities. ids, prompt_ids: None where not told."""

    text: str
    finish: str | None
    prompt_tokens: int | None
    tokens: int | None
    places: tuple[Place, ...] | None
    ids: tuple[int, ...] | None
    prompt_ids: tuple[int, ...] | None

    @property
    def emitted(self) -> tuple[Choice, ...] | None:
        """Its tokens, with their ids where the server tells them; None where it tells nothing."""
        if self.places is not None:
            tokens = tuple(place.token for place in self.places)
            if self.ids is None or len(self.ids) != len(tokens):
                return tokens
            return tuple(replace(token, id=found) for token, found in zip(tokens, self.ids, strict=True))
        return (
            None
            if self.ids is None
            else tuple(Choice(f"#{found}", math.nan, None, found) for found in self.ids)
        )


def parse(payload: Json) -> Answer:
    """The first choice of a whole response."""
    choice = payload["choices"][0]
    usage = payload.get("usage") or {}
    places = _places(choice.get("logprobs"))
    ids = choice.get("token_ids")
    if ids is None and places and all(place.token.id is not None for place in places):
        ids = [place.token.id for place in places]
    prompt_ids = choice.get("prompt_token_ids") or payload.get("prompt_token_ids")
    text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
    return Answer(
        text or "",
        choice.get("finish_reason"),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        places,
        None if ids is None else tuple(ids),
        tuple(prompt_ids) if prompt_ids else None,
    )


def parse_prompt(payload: Json) -> tuple[Place | None, ...] | None:
    """vLLM's log probabilities of a prompt's own tokens; the first has none. None where it gives none."""
    choice = payload["choices"][0]
    listed = choice.get("prompt_logprobs") or payload.get("prompt_logprobs")
    return None if not listed else tuple(_prompt_place(entry) for entry in listed)


def _prompt_place(entry: Mapping[str, Json] | None) -> Place | None:
    if not entry:
        return None
    choices = [
        _choice(value.get("decoded_token") or "", value["logprob"], None, int(token))
        for token, value in entry.items()
    ]
    return Place(choices[0], _ranked(choices))  # the prompt's own token comes first


def _places(logprobs: Json | None) -> tuple[Place, ...] | None:
    if not logprobs:
        return None
    if logprobs.get("content") is not None:
        return tuple(
            Place(_entry(entry), _ranked(_entry(other) for other in entry.get("top_logprobs") or ()))
            for entry in logprobs["content"]
        )
    names = logprobs.get("tokens")
    if not names:
        return None
    own = logprobs.get("token_logprobs") or [None] * len(names)
    tops: Sequence[Mapping[str, float] | None] = logprobs.get("top_logprobs") or [None] * len(names)
    return tuple(
        Place(_choice(name, logprob), _ranked(_choice(*other) for other in (top or {}).items()))
        for name, logprob, top in zip(names, own, tops, strict=True)
    )


def _entry(entry: Json) -> Choice:
    return _choice(entry["token"], entry["logprob"], entry.get("bytes"), entry.get("id"))


def _ranked(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda choice: -choice.logprob))


def _choice(
    name: str, logprob: float | None, data: Sequence[int] | None = None, token: int | None = None
) -> Choice:
    log = math.nan if logprob is None else logprob
    if name.startswith("token_id:"):  # vLLM's, when asked for ids
        return Choice(name, log, None, int(name.removeprefix("token_id:")))
    known: bytes | None = bytes(data) if data is not None else _spelled(name)
    if not known or _LOST in known:
        known = None
    return Choice(name, log, known, token)


def _spelled(name: str) -> bytes:
    r"""Bytes of a token's name; OpenAI's completions write half a character as `bytes:\xe2\x80`."""
    if name.startswith("bytes:\\x") and re.fullmatch(r"bytes:(\\x[0-9a-fA-F]{2})+", name):
        return bytes(int(pair, 16) for pair in name.removeprefix("bytes:").split("\\x")[1:])
    return name.encode("utf-8", errors="replace")


def join(chunks: Iterable[Json]) -> dict[str, Any]:
    """A streamed answer's chunks → the response that it would have been in one piece.

    A chunk may hold several tokens, or none.
    """
    text, finish, usage, prompt_ids = [], None, None, None
    lists: dict[str, list[Any]] = {}
    ids: list[int] = []
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        prompt_ids = chunk.get("prompt_token_ids") or prompt_ids
        for choice in chunk.get("choices") or ():
            text.append(choice["text"] if "text" in choice else (choice.get("delta") or {}).get("content"))
            finish = choice.get("finish_reason") or finish
            prompt_ids = choice.get("prompt_token_ids") or prompt_ids
            ids += choice.get("token_ids") or ()
            for name, values in (choice.get("logprobs") or {}).items():
                lists.setdefault(name, []).extend(values or ())
    whole = {
        "text": "".join(piece or "" for piece in text),
        "finish_reason": finish,
        "logprobs": lists or None,
        "token_ids": ids or None,
    }
    return {"choices": [whole], "usage": usage, "prompt_token_ids": prompt_ids}
