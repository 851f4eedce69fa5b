"""What a server understands beyond the common core, found out by asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from surefoot.audit.servers.answers import Answer, parse, parse_prompt
from surefoot.types import SurefootError

Scoring = Literal["prompt", "echo", "step", "none"]
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]

_LIST_SIZES = (20, 5, 1)
# What turns a server's own defaults off, in several servers' words: all of a model's probabilities are asked
# for, whatever its generation settings say. Servers ignore the words they don't know, or refuse them all.
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class Dialect:
    """model: its name in requests. neutral: whether the extra sampling fields may be sent. ids: whether
    `return_token_ids` is answered. listed: tokens that each place's list may be asked for, 0 for no log
    probabilities. shown: how many it then holds at least. scoring: how the tokens of a given text are scored:
    "prompt" (vLLM's prompt_logprobs), "echo", "step" (a request per token), or not at all. by_id: whether
    prompts may be lists of token ids. tokenizes: whether `/tokenize` answers.
    """

    model: str
    chat: bool
    stream: bool
    neutral: bool = False
    ids: bool = False
    listed: int = 0
    shown: int = 0
    scoring: Scoring = "none"
    by_id: bool = False
    tokenizes: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def request(
        self, prompt: str, *, max_tokens: int, temperature: float, top_k: int = 0, logprobs: bool = False
    ) -> dict[str, Any]:
        """The body for an ordinary answer, sent to `path`."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": temperature}
        body |= {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        body |= {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        if self.neutral:
            body |= _NEUTRAL
        if top_k:
            body["top_k"] = top_k
        if self.ids:
            body["return_token_ids"] = True
        if logprobs and self.listed:
            body["logprobs"] = True if self.chat else self.listed
            body |= {"top_logprobs": self.listed} if self.chat else {}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def continuation(self, prompt: str | list[int], max_tokens: int = 1, **more: Any) -> dict[str, Any]:
        """The body for `/v1/completions` that goes on from a given text, with its list of tokens."""
        body: dict[str, Any] = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens}
        body |= {"temperature": 1.0, "top_p": 1.0}
        if self.neutral:
            body |= _NEUTRAL
        if self.listed:
            body["logprobs"] = self.listed
        return body | more


def find_dialect(ask: Ask, model: str, *, chat: bool, stream: bool, prompt: str) -> Dialect:
    """A handful of one-token requests. Raises SurefootError when not even the plainest is answered."""
    found = Dialect(model, chat, stream)

    def attempt(tried: Dialect, logprobs: bool = False) -> Answer | None:
        body = tried.request(prompt, max_tokens=2, temperature=0.0, logprobs=logprobs)
        try:
            return parse(ask(tried.path, body))
        except SurefootError:
            return None

    parse(ask(found.path, found.request(prompt, max_tokens=2, temperature=0.0)))
    if attempt(tried := _with(found, neutral=True)) is not None:
        found = tried
    if (answer := attempt(tried := _with(found, ids=True))) is not None and answer.ids is not None:
        found = tried
    for size in _LIST_SIZES:
        answer = attempt(tried := _with(found, listed=size), logprobs=True)
        if answer is not None and answer.places and all(place.top for place in answer.places):
            found = _with(tried, shown=min(size, *(len(place.top) for place in answer.places)))
            break
    return found


def find_scoring(ask: Ask, dialect: Dialect, prompt: str) -> Dialect:
    """The same with how it scores a given text's tokens, tried with `prompt`."""
    ids = tokenize(ask, dialect, prompt)
    found = _with(dialect, tokenizes=ids is not None)
    if not dialect.listed:
        return found
    if ids is None:
        answer = parse(ask(dialect.path, dialect.request(prompt, max_tokens=2, temperature=0.0)))
        ids = None if answer.prompt_ids is None else list(answer.prompt_ids)
    for by_id, tried in _ways(prompt, ids):
        for scoring, body in _bodies(found, tried):
            try:
                payload = ask("/v1/completions", body)
            except SurefootError:  # not always a refusal: llama-server says 500 to an echo
                continue
            if _scores(scoring, payload, len(ids) if by_id and ids else None):
                return _with(found, scoring=scoring, by_id=by_id)
    return found


def tokenize(ask: Ask, dialect: Dialect, text: str) -> list[int] | None:
    """Token ids of a prompt as the completions API reads it, in vLLM's words and llama-server's at once."""
    body = {"model": dialect.model, "prompt": text, "content": text, "add_special": True}
    try:
        tokens = ask("/tokenize", body).get("tokens")
    except SurefootError:
        return None
    known = isinstance(tokens, list) and all(isinstance(token, int) for token in tokens)
    return list(tokens) if known and tokens else None


def _ways(prompt: str, ids: list[int] | None) -> Iterator[tuple[bool, str | list[int]]]:
    if ids is not None:
        yield True, ids
    yield False, prompt


def _bodies(dialect: Dialect, prompt: str | list[int]) -> Iterator[tuple[Scoring, dict[str, Any]]]:
    yield "prompt", dialect.continuation(prompt, prompt_logprobs=dialect.listed)
    yield "echo", dialect.continuation(prompt, echo=True)
    yield "step", dialect.continuation(prompt)


def _scores(scoring: Scoring, payload: dict[str, Any], tokens: int | None) -> bool:
    """Whether a trial's answer holds what was asked for; `tokens` is the prompt's length, where known."""
    if scoring == "prompt":
        listed = parse_prompt(payload)
        return listed is not None and (tokens is None or len(listed) == tokens)
    places = parse(payload).places
    if not places or not places[-1].top:
        return False
    if scoring == "echo":
        return len(places) > 1 and (tokens is None or len(places) in (tokens, tokens + 1))
    return True


def _with(dialect: Dialect, **changes: Any) -> Dialect:
    return Dialect(**(asdict(dialect) | changes))
