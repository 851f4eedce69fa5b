"""What the engine's tests share: scripted targets and drafters, a tokenizer of single characters, and an
oracle that decodes one token at a time from whole prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from surefoot.drafters.base import DraftRequest
from surefoot.models.tokenizer_parts import TokenizerParts
from surefoot.models.toy import LogitsOf
from surefoot.noise import race, token_key
from surefoot.results import Choice, Chunk
from surefoot.sampling import History, TopLogprobs, target_probs, top_logprobs
from surefoot.text import Tokenizer
from surefoot.types import Draft, FinishReason, SamplingParams, Verdict

LETTERS = "abcdefghijklmnopqrstuvwxyzXYZ .!"
VOCAB_SIZE = len(LETTERS)

Script = Callable[[Sequence[int], int], Draft]
"""(committed tokens, budget) → a draft."""


def ids(text: str) -> list[int]:
    """The tokens of a text, one per character."""
    return [LETTERS.index(letter) for letter in text]


def letters(eos: str | None = None, vocabulary: str = LETTERS) -> Tokenizer:
    """One token per character; `eos` is the one that ends a text, None for none."""
    backend = Backend(models.BPE({"Ġ" if c == " " else c: i for i, c in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    eos_ids = () if eos is None else (vocabulary.index(eos),)
    template = "{% for message in messages %}{{ message.content }}.{% endfor %}"
    return Tokenizer(TokenizerParts(backend, "bytes", eos_ids=eos_ids, template=template))


def reciting(prompt: Sequence[int], path: Sequence[int], vocab_size: int = VOCAB_SIZE) -> LogitsOf:
    """Logits of a target that says `path` after its prompt, over and over, whatever it is fed."""

    def logits_of(prefix: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        row = np.zeros(vocab_size, np.float32)
        row[path[(len(prefix) - len(prompt)) % len(path)]] = 20
        return row

    return logits_of


class Scripted:
    """A drafter that follows a script, and remembers what it was asked and told."""

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.verdicts: list[Verdict] = []
        self.open: set[int] = set()

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        assert seq not in self.open
        self.open.add(seq)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.asked += [(tuple(request.tokens), request.budget) for request in requests]
        return [self._script(request.tokens, request.budget) for request in requests]

    def observe(self, seq: int, verdict: Verdict) -> None:
        assert seq in self.open
        self.verdicts.append(verdict)

    def stop(self, seq: int) -> None:
        self.open.discard(seq)


def knowing(answers: Sequence[Sequence[int]], wrong_from: Callable[[int], int] = lambda length: 99) -> Script:
    """Drafts the answer whose prefix was committed (prompts included in `answers`); from the index
    `wrong_from(committed tokens)` of the draft on, every token is one too high."""

    def script(tokens: Sequence[int], budget: int) -> Draft:
        size = len(tokens)
        answer = next((a for a in answers if list(a[:size]) == list(tokens)), ())
        right = answer[size : size + budget]
        from_index = wrong_from(size)
        top = max(max(a) for a in answers) + 1
        drafted = tuple(t if i < from_index else (t + 1) % top for i, t in enumerate(right))
        return Draft(drafted, source="scripted")

    return script


def bushy(chain: Script, vocab_size: int) -> Script:
    """Grows the chain of another script into a tree: every node gets a sibling before it or after it."""

    def script(tokens: Sequence[int], budget: int) -> Draft:
        drafted: list[int] = []
        parents: list[int] = []
        node = -1
        for depth, token in enumerate(chain(tokens, max(1, budget // 2)).tokens):
            other = (token + 1 + depth) % vocab_size
            pair = [other, token] if (len(tokens) + depth) % 2 and other != token else [token, other]
            pair = pair[: budget - len(drafted)]
            drafted += pair
            parents += [node] * len(pair)
            if token not in pair:
                break
            node = len(drafted) - len(pair) + pair.index(token)
        return Draft(tuple(drafted), parents=tuple(parents), source="bushy")

    return script


@dataclass(frozen=True)
class Expected:
    """What a request must give."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    logprobs: tuple[TopLogprobs, ...]


def expected(
    logits_of: LogitsOf,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    tokenizer: Tokenizer | None = None,
    end_ids: tuple[int, ...] = (),
    max_length: int = 4096,
    vocab_limit: int | None = None,
    choice: int = 0,
) -> Expected:
    """Plain decoding, one token at a time, everything computed anew from the whole prefix."""
    output: list[int] = []
    logprobs: list[TopLogprobs] = []
    ends = (*(() if params.ignore_eos else end_ids), *params.stop_token_ids)
    while True:
        row = np.asarray(logits_of((*prompt, *output)), np.float32)
        candidates = target_probs(row, params, History(prompt, list(output), ends, (), vocab_limit))
        key = token_key(params.seed or 0, choice, len(prompt) + len(output))
        output.append(race(key, candidates.ids, candidates.probs))
        logprobs.append(top_logprobs(row, output[-1], params.logprobs or 0))
        text = tokenizer.decode(output[:-1] if output[-1] in ends else output) if tokenizer else ""
        found = [(text.find(stop) + len(stop), text.find(stop)) for stop in params.stop if stop in text]
        full = len(output) == params.max_tokens or len(prompt) + len(output) == max_length
        if output[-1] in ends or found or full:
            reason: FinishReason = "stop" if found or output[-1] in ends else "length"
            return Expected(tuple(output), text[: min(found)[1]] if found else text, reason, tuple(logprobs))


def assert_same(choice: Choice, wanted: Expected) -> None:
    """Ids, text, finish reason and, where they were asked for, logprobs."""
    assert choice.token_ids == wanted.token_ids
    assert choice.text == wanted.text
    assert choice.finish_reason == wanted.finish_reason
    if choice.logprobs is not None:
        assert len(choice.logprobs) == len(wanted.logprobs)
        for got, want in zip(choice.logprobs, wanted.logprobs, strict=True):
            assert abs(got.chosen - want.chosen) < 1e-5
            assert got.ids.tolist() == want.ids.tolist()
            np.testing.assert_allclose(got.values, want.values, atol=1e-5)


def joined(chunks: Sequence[Chunk]) -> tuple[str, tuple[int, ...]]:
    """The text and the ids that a stream delivered."""
    return "".join(c.text for c in chunks), tuple(t for c in chunks for t in c.token_ids)
