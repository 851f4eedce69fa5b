"""From what a caller gives to token ids, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from surefoot.types import SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.text import Tokenizer

Message = Mapping[str, Any]
"""One turn of a conversation: "role" and "content", and what `Tokenizer.apply_chat` takes beside them."""

Prompt = str | Sequence[int] | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Prepared:
    """text: the prompt as given, if it was text. ids: as the model sees it. bad_words: each as ids."""

    text: str | None
    ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or several, as a list. Raises SurefootError for what is neither."""
    if isinstance(prompts, str):
        return [prompts]
    try:
        first = prompts[0] if len(prompts) else None
    except (TypeError, LookupError):  # no length, or no order: None, a number, a set
        raise _no_prompt(prompts) from None
    return (
        [cast(Prompt, prompts)]
        if isinstance(first, Integral | Mapping)
        else [*cast(Sequence[Prompt], prompts)]
    )


def prepare(
    prompt: Prompt, params: SamplingParams, tokenizer: Tokenizer | None, *, chat: bool = False
) -> Prepared:
    """The ids of a prompt, whatever its form. Raises SurefootError when text meets no tokenizer, and for
    what is no prompt."""
    bad_words = tuple(
        ids for word in params.bad_words for ids in _spellings(word, _needed(tokenizer, "bad_words"))
    )
    if params.stop:
        _needed(tokenizer, "stop")
    if isinstance(prompt, str):
        layer = _needed(tokenizer, "prompt")
        if chat:
            return Prepared(prompt, _templated([{"role": "user", "content": prompt}], layer), bad_words)
        return Prepared(prompt, tuple(layer.encode(prompt, add_special=True)), bad_words)
    if _is_conversation(prompt):
        return Prepared(None, _templated(prompt, _needed(tokenizer, "prompt")), bad_words)
    try:
        return Prepared(None, tuple(map(index, cast(Sequence[int], prompt))), bad_words)
    except TypeError:
        raise _no_prompt(prompt) from None


def check(ids: Sequence[int], params: SamplingParams, vocab_limit: int, max_length: int) -> None:
    """Raises SurefootError for a prompt that is empty, out of the vocabulary or leaves no room to answer, and
    for parameters that name tokens out of the vocabulary."""
    if not ids:
        raise SurefootError("prompt: it is empty; at least 1 token is needed")
    if len(ids) >= max_length:
        raise SurefootError(
            f"prompt: {len(ids)} tokens are too many; the context of {max_length} leaves room for "
            f"{max_length - 1} and an answer"
        )
    named = {"prompt": ids, "stop_token_ids": params.stop_token_ids, "logit_bias": tuple(params.logit_bias)}
    for name, tokens in named.items():
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < vocab_limit:
                raise SurefootError(
                    f"{name}: token {token} is out of range; allowed is [0, {vocab_limit - 1}]"
                )


def _no_prompt(given: object) -> SurefootError:
    kind = type(given).__name__
    return SurefootError(f"prompt: {kind} given; it is text, token ids or a list of messages")


def _needed(tokenizer: Tokenizer | None, name: str) -> Tokenizer:
    if tokenizer is None:
        raise SurefootError(f"{name}: text was given, but the model has no tokenizer; give token ids")
    return tokenizer


def _templated(messages: Sequence[Message], tokenizer: Tokenizer) -> tuple[int, ...]:
    text = tokenizer.apply_chat(messages)
    return tuple(tokenizer.encode(text, add_special=False))  # the template spells out what goes around


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """A word's ids at the start of a text and after a space, which most tokenizers spell differently."""
    bare = word.lstrip()
    found = {tuple(tokenizer.encode(spelling, add_special=False)) for spelling in (word, bare, " " + bare)}
    return sorted(ids for ids in found if ids)


def _is_conversation(prompt: Sequence[int] | Sequence[Message]) -> TypeGuard[Sequence[Message]]:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
