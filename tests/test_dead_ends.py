"""Drafts that lead to where nothing may follow change nothing where plain decoding never comes there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.types import VERIFY_MODES, Constraint, SamplingParams, SurefootError, VerifyMode
from tests.harness import Scripted, knowing
from tests.serving import byte_tokenizer, toy_model

PROMPT = list(b"say ")


def drafter(answer: bytes, kind: str) -> Drafter:
    """Drafts right up to the end of an answer: forced letters, for the model."""
    if kind == "model":
        return ModelDrafter(toy_model())
    return Scripted(knowing([[*PROMPT, *answer]]))


def answered(params: SamplingParams, make: Callable[[], Drafter | None], mode: VerifyMode) -> tuple[str, str]:
    """The text that came, and how it ended: by a reason, or a mistake."""
    engine = Engine(toy_model(), make(), tokenizer=byte_tokenizer(), draft_tokens=4, verify=mode)
    text = ""
    try:
        for chunk in engine.stream(PROMPT, params):
            text += chunk.text
    except SurefootError as error:
        return text, str(error)
    assert chunk.finish_reason
    return text, chunk.finish_reason


@pytest.mark.parametrize("mode", VERIFY_MODES)
@pytest.mark.parametrize("kind", ["scripted", "model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop", [(), (" ",), ("y",), ("x y",)])
def test_what_lies_behind_the_end_of_an_answer_is_not_looked_at(
    mode: VerifyMode, kind: str, temperature: float, stop: tuple[str, ...]
) -> None:
    """x, space, y are forced, and the a behind them is banned."""
    form = Constraint("choice", '["x ya"]')
    params = SamplingParams(temperature=temperature, grammar=form, bad_words=("a",), stop=stop, seed=3)
    plain = answered(params, lambda: None, mode)
    assert plain[1] == "stop" or "banned, so none can be chosen" in plain[1]
    assert (plain[1] == "stop") == bool(stop)
    assert answered(params, partial(drafter, b"x yaaaa", kind), mode) == plain


@pytest.mark.parametrize("mode", VERIFY_MODES)
@pytest.mark.parametrize("kind", ["scripted", "model"])
def test_what_lies_behind_a_draft_that_falls_is_not_looked_at(mode: VerifyMode, kind: str) -> None:
    """y leads to nothing, z to an end; a draft that says y stands no more often than y would have come."""
    form = Constraint("choice", '["ya", "zb"]')
    ends = [
        answered(
            SamplingParams(temperature=2, grammar=form, bad_words=("a",), seed=seed),
            partial(drafter, b"yaaaaa", kind),
            mode,
        )
        for seed in range(60)
    ]
    assert {text for text, end in ends if end == "stop"} == {"zb"}
    assert {text for text, end in ends if end != "stop"} == {"y"}
    if mode == "coupled":
        plain = [
            answered(
                SamplingParams(temperature=2, grammar=form, bad_words=("a",), seed=seed), lambda: None, mode
            )
            for seed in range(60)
        ]
        assert ends == plain
