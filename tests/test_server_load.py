"""What would hold up everybody is refused before it does, or done while others go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import ValidationError

from surefoot.loading import load_model
from surefoot.server.bodies import ChatBody, CompletionBody
from surefoot.server.mistakes import body_error
from surefoot.text import Tokenizer
from tests.api import COMPLETIONS, serving
from tests.models_fixture import smollm2_path
from tests.serving import byte_tokenizer


def test_a_long_text_is_tokenized_while_other_threads_run() -> None:
    """None would run in the seconds that it takes, were the interpreter's lock held."""
    tokenizer = load_model(str(smollm2_path())).tokenizer
    over, ticking = threading.Event(), threading.Event()
    ticks: list[None] = []

    def tick() -> None:
        while not over.wait(0.001):
            ticks.append(None)
            ticking.set()

    thread = threading.Thread(target=tick)
    thread.start()
    ticking.wait()
    before = len(ticks)
    tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 20_000, add_special=False)
    during = len(ticks) - before
    over.set()
    thread.join()
    assert during > 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["a"] * 1001}, "is too long; allowed is 1000 items or fewer"),
        ({"stop": "a" * 1001}, "is too long; allowed is 1000 characters or fewer"),
        ({"bad_words": ["a"] * 1001}, "is too long; allowed is 1000 items or fewer"),
        ({"bad_words": ["a" * 1001]}, "is too long; allowed is 1000 characters or fewer"),
        ({"logit_bias": {str(n): 1 for n in range(1001)}}, "is too long; allowed is 1000 items or fewer"),
        ({"stop_token_ids": [1] * 1001}, "is too long; allowed is 1000 items or fewer"),
    ],
)
@pytest.mark.parametrize("kind", [CompletionBody, ChatBody])
def test_what_each_token_is_held_against_has_a_limit(
    kind: type[CompletionBody] | type[ChatBody], fields: dict[str, Any], message: str
) -> None:
    sound = {"prompt": "a"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({**sound, **fields})
    [mistake] = caught.value.errors()
    told = body_error([{**mistake, "loc": ("body", *mistake["loc"])}])
    assert told.message.endswith(message)
    assert (told.param or "").startswith(next(iter(fields)))


def test_prompts_that_are_too_many_are_refused_before_they_are_tokenized() -> None:
    class Counting(Tokenizer):
        encoded = 0

        def encode(self, text: str, add_special: bool) -> list[int]:
            self.encoded += 1
            return super().encode(text, add_special)

    tokenizer = byte_tokenizer()
    tokenizer.__class__ = Counting
    with serving(tokenizer=tokenizer) as api:
        assert api.refusal(COMPLETIONS, prompt=["a"] * 100_000).startswith(
            "prompt: 100000 prompts are too many"
        )
    assert not tokenizer.encoded  # type: ignore[attr-defined]
