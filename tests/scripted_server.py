"""Small HTTP servers with a toy model behind them, honest or faulty, in every dialect the audit must know.

Nothing in them depends on time or on the order of threads: what is drawn for a request depends on the request
and on how often the same one came before.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.servers import client
from surefoot.audit.servers.answers import join
from surefoot.types import SurefootError

Logits = NDArray[np.float64]
Json = dict[str, Any]

WORDS = tuple(f" {a}{b}" for a in "bdfgklmn" for b in ("a", "o", "ist", "une"))
HALVES = (b"\xc3", b"\xa9")  # the two bytes of é, a token each
VOCABULARY: tuple[bytes, ...] = (
    b"<|end|>",
    *(word.encode() for word in WORDS),
    *HALVES,
    *(bytes([byte]) for byte in (*range(32, 127), *"�".encode())),
)
END, FIRST_HALF = 0, 1 + len(WORDS)
CHOSEN = FIRST_HALF + 1  # tokens below this are written; the letters behind are for prompts alone


def tokenize(text: str) -> list[int]:
    """The longest token first."""
    data, ids = text.encode(), []
    while data:
        fits = [i for i, token in enumerate(VOCABULARY) if i != END and data.startswith(token)]
        best = max(fits, key=lambda i: len(VOCABULARY[i]))
        ids.append(best)
        data = data[len(VOCABULARY[best]) :]
    return ids


def spell(ids: Sequence[int]) -> str:
    return b"".join(VOCABULARY[i] for i in ids if i != END).decode(errors="replace")


def toy_logits(ids: Sequence[int], model: int = 0, sharpness: float = 1.5) -> Logits:
    """Depends on the last two tokens. The second half of é follows the first, and nothing else does."""
    return _toy_logits(tuple(ids[-2:]), model, sharpness)


@cache
def _toy_logits(ids: tuple[int, ...], model: int, sharpness: float) -> Logits:
    logits = np.full(len(VOCABULARY), -30.0)
    if ids and ids[-1] == FIRST_HALF:
        logits[FIRST_HALF + 1] = 10.0
    else:
        logits[:CHOSEN] = sharpness * keyed(model, ids).normal(size=CHOSEN)
        logits[END] -= 2.0
    logits.flags.writeable = False
    return logits


def keyed(*key: object) -> np.random.Generator:
    """Random numbers that depend on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def probabilities(logits: Logits) -> Logits:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


@dataclass
class Place:
    """A token to choose. prompt, output: ids. logits: the model's. rng: of this request."""

    prompt: list[int]
    output: list[int]
    logits: Logits
    temperature: float
    rng: np.random.Generator


def honest(place: Place) -> int:
    if place.temperature == 0:
        return int(place.logits.argmax())
    return int(place.rng.choice(len(VOCABULARY), p=probabilities(place.logits / place.temperature)))


@dataclass
class Script:
    """What a server is like.

    choose: the next token. logits: its model. listed: the longest list of tokens, 0 for no log probabilities
    at all. shape: of completions' log probabilities. report: the logits that are reported. names_half: how it
    writes the name of half a character. top_only: whether it lists no more than were asked for, when the
    token was not among them. ids, prompt_logprobs, echo, by_id, tokenizes, usage: what it offers. strict:
    whether unknown fields are refused. template: what a prompt is wrapped in. stop: strings that end an
    answer. most: the longest answer. per_chunk: tokens in a chunk of a stream. drop: which requests (counted
    from 0) it breaks off halfway; busy: which it refuses with 503. seed: of what is drawn.
    """

    choose: Callable[[Place], int] = honest
    logits: Callable[[Sequence[int]], Logits] = toy_logits
    listed: int = 20
    shape: Literal["lists", "content"] = "lists"
    report: Callable[[Logits], Logits] = lambda logits: logits
    names_half: Literal["bytes", "lost", "empty"] = "bytes"
    ids: bool = False
    prompt_logprobs: bool = False
    echo: bool | Literal["breaks"] = True
    by_id: bool = False
    tokenizes: bool = False
    usage: bool = True
    strict: bool = False
    template: tuple[str, str] = ("", "")
    stop: tuple[str, ...] = ()
    most: int = 10_000
    per_chunk: int = 1
    drop: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    seed: int = 0
    models: tuple[str, ...] = ("toy",)


_KNOWN = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "presence_penalty", "echo"}
_KNOWN |= {"frequency_penalty", "logprobs", "top_logprobs", "stream", "stream_options", "seed"}


@dataclass
class Running:
    """A server at `url`, and the bodies it was sent."""

    script: Script
    url: str = ""
    bodies: list[Json] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, body: Json) -> tuple[int, int]:
        """How many requests came before, and how often this one."""
        key = json.dumps(body, sort_keys=True)
        with self.lock:
            self.bodies.append(body)
            self.seen[key] += 1
            return len(self.bodies) - 1, self.seen[key] - 1


class RefusedError(Exception):
    pass


class BrokenError(Exception):
    """The server's own fault, as llama-server calls an echo."""


def complete(script: Script, body: Json, times: int, *, chat: bool) -> Json:
    """One whole response."""
    if script.strict and (unknown := set(body) - _KNOWN):
        raise RefusedError(f"unknown fields {sorted(unknown)}")
    said = body["messages"][-1]["content"] if chat else body["prompt"]
    if not isinstance(said, str) and not script.by_id:
        raise RefusedError("prompt must be a string")
    asked = (body.get("top_logprobs") if chat else body.get("logprobs")) or 0
    if asked > max(script.listed, 0) and script.listed:
        raise RefusedError(f"at most {script.listed} log probabilities")
    if body.get("echo") and script.echo == "breaks":
        raise BrokenError
    if body.get("echo") and not script.echo:
        raise RefusedError("echo is not supported")
    before, after = script.template if chat else ("", "")
    prompt = tokenize(before + said + after) if isinstance(said, str) else list(said)
    rng = keyed(script.seed, times, json.dumps(body, sort_keys=True))
    output, finish = generate(script, prompt, body, rng)
    choice: Json = {"index": 0, "finish_reason": finish}
    text = spell(output)
    for stop in script.stop:
        text = text.partition(stop)[0]
    echoed = prompt if body.get("echo") else []
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": spell(echoed) + text}
    if asked and script.listed:
        places = [(prompt[:n], token) for n, token in enumerate(echoed)]
        places += [(prompt + output[:n], token) for n, token in enumerate(output)]
        choice["logprobs"] = logprobs(script, places, asked, lists=script.shape == "lists" and not chat)
    if body.get("return_token_ids") and script.ids:
        choice |= {"token_ids": output, "prompt_token_ids": prompt}
    if body.get("prompt_logprobs") and script.prompt_logprobs:
        choice["prompt_logprobs"] = prompt_logprobs(script, prompt, body["prompt_logprobs"])
    payload: Json = {"choices": [choice]}
    if script.usage:
        payload["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(output)}
    return payload


def generate(
    script: Script, prompt: list[int], body: Json, rng: np.random.Generator
) -> tuple[list[int], str]:
    output: list[int] = []
    while len(output) < min(body["max_tokens"], script.most):
        logits = script.logits(prompt + output)
        output.append(script.choose(Place(prompt, output, logits, body["temperature"], rng)))
        if output[-1] == END or any(stop in spell(output) for stop in script.stop):
            return output, "stop"
    return output, "length"


def _ranked(script: Script, before: Sequence[int], token: int, asked: int) -> list[tuple[int, float]]:
    """The likeliest, and the token itself where it isn't among them."""
    order, logs = _reported(script.logits, script.report, tuple(before[-2:]))
    top = order[:asked]
    return [(i, logs[i]) for i in (top if token in top else [*top, token])]


@cache
def _reported(
    model: Callable[[Sequence[int]], Logits], report: Callable[[Logits], Logits], ids: tuple[int, ...]
) -> tuple[list[int], list[float]]:
    """Tokens, the likeliest first, and every token's log probability. No model looks further back."""
    logs = np.log(probabilities(report(model(ids))) + 1e-300)
    return [int(i) for i in np.argsort(-logs, kind="stable")], [float(log) for log in logs]


def _name(script: Script, token: int) -> str:
    data = VOCABULARY[token]
    if data[0] >= 0x80:
        spelled = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return {"lost": "�", "empty": "", "bytes": spelled}[script.names_half]
    return data.decode()


def logprobs(script: Script, places: Sequence[tuple[list[int], int]], asked: int, *, lists: bool) -> Json:
    ranked = [(token, _ranked(script, before, token, asked)) for before, token in places]
    if lists:
        return {
            "tokens": [_name(script, token) for token, _ in ranked],
            "token_logprobs": [
                dict(top)[token] if before else None
                for (before, _), (token, top) in zip(places, ranked, strict=True)
            ],
            "top_logprobs": [
                {_name(script, i): log for i, log in top} if before else None
                for (before, _), (_, top) in zip(places, ranked, strict=True)
            ],
        }

    def entry(token: int, log: float) -> Json:
        data = VOCABULARY[token]
        if data[0] < 0x80:
            said: Json = {"token": data.decode(), "bytes": list(data)}
        elif script.names_half == "empty":
            said = {"token": "", "bytes": []}
        else:
            said = {"token": "�", "bytes": list(data)}
        return said | {"logprob": log} | ({"id": token} if script.ids else {})

    return {
        "content": [
            entry(token, dict(top)[token]) | {"top_logprobs": [entry(*pair) for pair in top[:asked]]}
            for token, top in ranked
        ]
    }


def prompt_logprobs(script: Script, prompt: list[int], asked: int) -> list[Json | None]:
    listed: list[Json | None] = [None]
    for n, token in enumerate(prompt[1:], 1):
        top = dict(_ranked(script, prompt[:n], token, asked))
        entries = {token: top[token]} | top
        listed.append(
            {
                str(i): {"logprob": log, "rank": 1, "decoded_token": VOCABULARY[i].decode(errors="replace")}
                for i, log in entries.items()
            }
        )
    return listed


def chunks(payload: Json, size: int, *, chat: bool) -> Iterator[Json]:
    """The response as a stream sends it; where it has log probabilities, in pieces of `size` tokens."""
    [choice] = payload["choices"]
    text = choice["message"]["content"] if chat else choice["text"]
    said = choice.get("logprobs") or {}
    count = max([len(text), *(len(values) for values in said.values())])
    for start in range(0, count, size):
        # Text and tokens needn't fall together: servers hold text back until characters are whole.
        piece = text[start : start + size] if start + size < count else text[start:]
        sent: Json = {"index": 0, "finish_reason": None}
        sent |= {"delta": {"content": piece}} if chat else {"text": piece}
        if said:
            sent["logprobs"] = {name: values[start : start + size] for name, values in said.items()}
        if "token_ids" in choice:
            sent["token_ids"] = choice["token_ids"][start : start + size]
            sent["prompt_token_ids"] = None if start else choice["prompt_token_ids"]
        yield {"choices": [sent]}
    last: Json = {"index": 0, "finish_reason": choice["finish_reason"]}
    ended: Json = {"delta": {}} if chat else {"text": ""}
    yield {"choices": [last | ended]}
    yield {"choices": [], "usage": payload.get("usage")}


class Direct:
    """Stands where a client stands and asks a script without any network, for audits of many requests."""

    scripts: ClassVar[dict[str, Running]] = {}

    def __init__(self, url: str, **options: object) -> None:
        self.url, self.running = url, self.scripts[url]

    def close(self) -> None:
        pass

    def models(self) -> list[str]:
        return list(self.running.script.models)

    def ask(self, path: str, body: Json) -> Json:
        script = self.running.script
        _, times = self.running.count({"path": path} | body)
        if path == "/tokenize":
            if not script.tokenizes:
                raise client.RefusedError(path)
            return {"tokens": tokenize(body["prompt"])}
        chat = path == "/v1/chat/completions"
        try:
            payload = complete(script, body, times, chat=chat)
        except RefusedError as error:
            raise client.RefusedError(str(error)) from None
        except BrokenError:
            raise SurefootError("status 500") from None
        return join(chunks(payload, script.per_chunk, chat=chat)) if body.get("stream") else payload


class _Handler(BaseHTTPRequestHandler):
    running: Running

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": name} for name in self.running.script.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script = self.running.script
        number, times = self.running.count({"path": self.path} | body)
        if number in script.busy:
            return self._send(503, {"message": "busy"})
        if self.path == "/tokenize":
            known = script.tokenizes and "prompt" in body
            return self._send(200, {"tokens": tokenize(body["prompt"])}) if known else self._send(404, {})
        chat = self.path == "/v1/chat/completions"
        try:
            payload = complete(script, body, times, chat=chat)
        except RefusedError as error:
            return self._send(400, {"message": str(error)})
        except BrokenError:
            return self._send(500, {"message": "broken"})
        if not body.get("stream"):
            return self._send(200, payload, broken=number in script.drop)
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(payload, script.per_chunk, chat=chat)]
        lines = lines[: len(lines) // 2] if number in script.drop else [*lines, "data: [DONE]\n\n"]
        return self._write(200, "".join(lines).encode(), "text/event-stream", None)

    def _send(self, status: int, payload: Json, *, broken: bool = False) -> None:
        data = json.dumps(payload).encode()
        self._write(status, data[: len(data) // 2] if broken else data, "application/json", len(data))

    def _write(self, status: int, data: bytes, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(script: Script) -> Iterator[Running]:
    """A server in threads of its own, until the block is left."""
    running = Running(script)
    handler = type("Handler", (_Handler,), {"running": running})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        running.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()
