"""The promise on a real model: SmolLM2, whoever drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.base import Drafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.loading import LoadedModel, load_model
from surefoot.results import Result
from surefoot.types import VERIFY_MODES, SamplingParams, VerifyMode
from tests.harness import Scripted, bushy, knowing
from tests.models_fixture import smollm2_path

PROMPTS = (
    "Repeat this three times: the cat sat on the mat.",
    "Write a function that adds two numbers.",
    "Tell me about the sea.",
)


@cache
def smollm2() -> LoadedModel:
    return load_model(smollm2_path())


@cache
def plain(number: int, temperature: float) -> tuple[str, SamplingParams, Result]:
    """A prompt, how it is sampled, and what plain decoding answers."""
    draw = random.Random(number)
    params = SamplingParams(
        seed=draw.getrandbits(63),
        temperature=temperature,
        top_p=draw.choice((0.9, 1.0)),
        frequency_penalty=draw.choice((0, 0.3)),
        max_tokens=24,
        logprobs=2,
    )
    prompt = PROMPTS[number % len(PROMPTS)]
    return prompt, params, Engine(smollm2(), None).generate(prompt, params, chat=True)[0]


def drafter(kind: str, right: Sequence[Result]) -> Drafter:
    """right: what plain decoding answers, which all but the n-gram drafter know in part."""
    if kind == "ngram":
        return NgramDrafter()
    answers = [[*result.prompt_token_ids, *result.token_ids] for result in right]
    chain = knowing(answers, lambda length: (length * 7) % 5)
    return Scripted(bushy(chain, 1000) if kind == "tree" else chain)


def everything() -> list[tuple[str, SamplingParams, Result]]:
    return [plain(number, temperature) for number in range(3) for temperature in (0.0, 0.8)]


@pytest.mark.parametrize(
    ("kind", "draft_tokens"), [("ngram", 12), ("half right", 1), ("half right", 7), ("tree", 12)]
)
def test_coupled_tokens_and_logprobs_are_plain_decodings(kind: str, draft_tokens: int) -> None:
    """One request alone, then all together."""
    prompts, each, wanted = zip(*everything(), strict=True)
    engine = Engine(smollm2(), drafter(kind, wanted), draft_tokens=draft_tokens, max_rows=40)
    prompt, params, want = plain(2, 0.8)
    same(engine.generate(prompt, params, chat=True)[0], want)
    for got, want in zip(engine.generate(list(prompts), list(each), chat=True), wanted, strict=True):
        same(got, want)


@pytest.mark.models
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.floats(0, 2),
    kind=st.sampled_from(("ngram", "half right", "tree")),
    draft_tokens=st.integers(1, 12),
    prompt=st.sampled_from(PROMPTS),
)
def test_coupled_tokens_are_plain_decodings_over_random_settings(
    seed: int, temperature: float, kind: str, draft_tokens: int, prompt: str
) -> None:
    params = SamplingParams(seed=seed, temperature=temperature, max_tokens=16, logprobs=0)
    want = Engine(smollm2(), None).generate(prompt, params, chat=True)[0]
    engine = Engine(smollm2(), drafter(kind, [want]), draft_tokens=draft_tokens)
    same(engine.generate(prompt, params, chat=True)[0], want)


def same(got: Result, want: Result) -> None:
    """To the bit, logprobs included: canonical shapes leave no room for less."""
    assert (got.token_ids, got.text, got.finish_reason) == (want.token_ids, want.text, want.finish_reason)
    assert [entry.chosen for entry in got.logprobs or ()] == [entry.chosen for entry in want.logprobs or ()]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_d1_a_model_that_drafts_for_itself_is_always_right(temperature: float) -> None:
    prompt, params, want = plain(1, temperature)
    engine = Engine(smollm2(), smollm2(), draft_tokens=4)
    result = engine.generate(prompt, params, chat=True)[0]
    same(result, want)
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.draft_tokens > 10


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_every_mode_is_greedy_equality_at_temperature_0(verify: VerifyMode) -> None:
    prompt, params, want = plain(0, 0.0)
    engine = Engine(smollm2(), "ngram", draft_tokens=6, verify=verify)
    same(engine.generate(prompt, params, chat=True)[0], want)
