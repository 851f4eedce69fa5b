"""Log-probabilities in the shapes of the two endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from surefoot.sampling import TopLogprobs
from surefoot.server.answers import ListLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob
from surefoot.text import Detokenizer, Tokenizer

LEAST: Final = -9999.0
"""What OpenAI's API has for a token that is next to impossible; JSON has no infinity."""

Token = tuple[int, TopLogprobs]
"""A token's id, and its log-probabilities."""


def content(tokenizer: Tokenizer, tokens: Iterable[Token]) -> list[TokenLogprob]:
    """Chat's shape."""
    return [
        TokenLogprob(
            **_entry(tokenizer, token, listed.chosen),
            top_logprobs=[_entry(tokenizer, *top) for top in _top(listed)],
        )
        for token, listed in tokens
    ]


def lists(tokenizer: Tokenizer, tokens: Sequence[Token], offsets: Sequence[int]) -> ListLogprobs:
    """Completions' shape. offsets: where each token's text begins."""
    return ListLogprobs(
        tokens=[_name(tokenizer, token) for token, _ in tokens],
        token_logprobs=[_finite(listed.chosen) for _, listed in tokens],
        top_logprobs=[_by_name(tokenizer, token, listed) for token, listed in tokens],
        text_offset=list(offsets),
    )


def prompt_lists(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    listed: Sequence[TopLogprobs | None],
    count: int,
    offsets: Sequence[int],
) -> ListLogprobs:
    """Of an echoed prompt, `count` tokens listed a place; the first token, behind nothing, has none."""
    places = list(zip(ids, listed, strict=True))
    return ListLogprobs(
        tokens=[_name(tokenizer, token) for token in ids],
        token_logprobs=[None if place is None else _finite(place.chosen) for place in listed],
        top_logprobs=[
            None if place is None else _by_name(tokenizer, token, _first(place, count))
            for token, place in places
        ],
        text_offset=list(offsets),
    )


def by_id(
    tokenizer: Tokenizer, ids: Sequence[int], listed: Sequence[TopLogprobs | None], count: int
) -> PromptLogprobs:
    """The shape of `prompt_logprobs`."""
    return [
        None if place is None else _ranked(tokenizer, token, _first(place, count))
        for token, place in zip(ids, listed, strict=True)
    ]


class Offsets:
    """Where the texts of a choice's tokens begin, counted in characters. start: of the first."""

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._detokenizer = Detokenizer(tokenizer, continues=True)
        self._length = start

    def take(self, tokens: Iterable[int]) -> list[int]:
        """Of the next tokens."""
        return [self._next(token) for token in tokens]

    def _next(self, token: int) -> int:
        begins = self._length
        self._length += len(self._detokenizer.add(token))
        return begins


def prompt_offsets(tokenizer: Tokenizer, text: str, ids: Sequence[int], as_text: bool) -> list[int]:
    """Where the tokens of a prompt begin in its text. as_text: it came as text, so what the tokenizer put
    around it stands for none of its characters."""
    before, after = _around(tokenizer, text, ids) if as_text else (0, 0)
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    offsets, length = [0] * before, 0
    for token in ids[before : len(ids) - after]:
        offsets.append(min(length, len(text)))
        length += len(detokenizer.add(token))
    return offsets + [len(text)] * after


def _around(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> tuple[int, int]:
    """How many tokens were put before a text and behind it."""
    bare = tokenizer.encode(text, add_special=False)
    extra = len(ids) - len(bare)
    before = next((n for n in range(extra + 1) if list(ids[n : n + len(bare)]) == bare), 0)
    return before, extra - before


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> TopLogprob:
    data = tokenizer.token_bytes(token)
    return TopLogprob(token=data.decode(errors="replace"), logprob=_finite(logprob), bytes=list(data))


def _name(tokenizer: Tokenizer, token: int) -> str:
    r"""A token's text; as OpenAI has it, bytes:\xe2\x82 where it is no whole text. One that stands for
    nothing goes by its id, so that names differ where tokens do."""
    data = tokenizer.token_bytes(token)
    if not data:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _by_name(tokenizer: Tokenizer, token: int, listed: TopLogprobs) -> dict[str, float]:
    """The likeliest tokens, and the chosen one behind them when it is none of them."""
    found: dict[str, float] = {}
    for other, logprob in (*_top(listed), (token, listed.chosen)):
        found.setdefault(_name(tokenizer, other), _finite(logprob))
    return found


def _ranked(tokenizer: Tokenizer, token: int, listed: TopLogprobs) -> dict[str, PromptLogprob]:
    """The prompt's own token first, as vLLM has it."""
    ranks = {other: rank for rank, (other, _) in enumerate(_top(listed), start=1)}
    logprobs = {token: listed.chosen, **dict(_top(listed))}
    return {
        str(other): PromptLogprob(
            logprob=_finite(logprob), rank=ranks.get(other), decoded_token=_name(tokenizer, other)
        )
        for other, logprob in logprobs.items()
    }


def _top(listed: TopLogprobs) -> list[tuple[int, float]]:
    return list(zip(listed.ids.tolist(), listed.values.tolist(), strict=True))


def _first(listed: TopLogprobs, count: int) -> TopLogprobs:
    return TopLogprobs(listed.chosen, listed.ids[:count], listed.values[:count])


def _finite(logprob: float) -> float:
    return logprob if logprob > LEAST else LEAST
