"""Sampled answers of two servers: honest ones pass, leaking drafts are found, by score or by text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Report
from surefoot.audit.servers.answers import Choice
from surefoot.audit.servers.answers import Place as Listed
from surefoot.audit.servers.audit import audit_servers
from surefoot.audit.servers.game import GUESS, HALF, LIKELIEST, UNLISTED, new_evidence, play
from surefoot.audit.servers.plan import ServerPlan, Side
from tests.scripted_server import (
    END,
    VOCABULARY,
    WORDS,
    Direct,
    Logits,
    Place,
    Running,
    Script,
    honest,
    probabilities,
    toy_logits,
)

PLAN = ServerPlan(tuple(f"tell me about{word}" for word in WORDS[:12]), max_tokens=20, samples=4)

Choose = Callable[[Place], int]

WAYS = [
    pytest.param({"ids": True, "prompt_logprobs": True, "by_id": True}, {}, "prompt", id="prompt by id"),
    pytest.param({"prompt_logprobs": True}, {}, "prompt", id="prompt by text"),
    pytest.param({}, {}, "echo", id="echo by text"),
    pytest.param({"names_half": "lost"}, {}, "echo", id="echo, lost halves"),
    pytest.param({"names_half": "empty"}, {}, "echo", id="echo, empty halves"),
    pytest.param({"shape": "content"}, {}, "echo", id="echo, content"),
    pytest.param(
        {"by_id": True, "tokenizes": True, "shape": "content", "ids": True}, {}, "echo", id="echo by id"
    ),
    pytest.param({"echo": False}, {"samples": 3}, "step", id="step by text"),
    pytest.param(
        {"echo": "breaks", "by_id": True, "tokenizes": True, "ids": True, "shape": "content"},
        {"samples": 3},
        "step",
        id="step by id",
    ),
    pytest.param({"listed": 5}, {}, "echo", id="short lists"),
    pytest.param({"per_chunk": 3}, {"stream": True}, "echo", id="stream"),
    pytest.param(
        {"ids": True, "prompt_logprobs": True, "by_id": True, "template": ("user: ", "")},
        {"chat": True},
        "prompt",
        id="chat by id",
    ),
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.audit.servers.asking.Client", Direct)


def audit(plain: Script, other: Script, budget: Budget | None = None, **changes: Any) -> Report:
    Direct.scripts = {"http://plain": Running(plain), "http://other": Running(other)}
    sides = Side("http://other"), Side("http://plain")
    return audit_servers(*sides, replace(PLAN, **changes), budget or Budget(), lambda seconds: None)


def sampled(plain: Script, other: Script, **changes: Any) -> tuple[Check, Check]:
    *_, own, scored = audit(plain, other, **changes).checks
    return own, scored


def leaking(share: float) -> Choose:
    """Now and then the likeliest token instead of a drawn one, as an argmax draft that nobody verified."""

    def choose(place: Place) -> int:
        leaks = place.temperature > 0 and place.rng.random() < share
        return int(place.logits.argmax()) if leaks else honest(place)

    return choose


def repeating(place: Place) -> int:
    """Now and then what followed the last token when it stood there before: an n-gram draft that leaks."""
    if place.temperature > 0 and place.rng.random() < 0.4:
        for at in range(len(place.output) - 2, -1, -1):
            if place.output[at] == place.output[-1]:
                return place.output[at + 1]
    return honest(place)


@pytest.mark.parametrize(("shape", "changes", "scoring"), WAYS)
def test_an_honest_pair_passes_and_a_leak_is_found(
    shape: dict[str, Any], changes: dict[str, Any], scoring: str
) -> None:
    plain = Script(**shape)
    report = audit(plain, replace(plain, seed=1), **changes, detect=0.3)
    assert report.settings["scoring"] == scoring
    assert [check.verdict for check in report.checks] == ["pass"] * 4
    own, scored = report.checks[2:]
    assert scored.tokens > 400
    own, scored = sampled(plain, replace(plain, seed=1, choose=leaking(0.3)), **changes)
    assert (own.verdict, scored.verdict) == ("pass", "loss")


def test_honest_pairs_pass_over_many_seeds() -> None:
    """Of 60 games one may be won and a false alarm; by Ville's inequality each is, once in a hundred."""
    shape: dict[str, Any] = {"ids": True, "prompt_logprobs": True, "by_id": True}
    found = []
    for seed in range(30):
        plain, other = Script(**shape, seed=2 * seed), Script(**shape, seed=2 * seed + 1)
        found += [
            check.verdict
            for check in sampled(plain, other, samples=2, max_tokens=10, detect=0.9, prompts=PLAN.prompts[:8])
        ]
    assert found.count("pass") >= 59
    assert "undecided" not in found


def test_an_end_of_sequence_is_a_token_like_any_other() -> None:
    """A server that ends too seldom is found, though an end shows in no text."""

    def ending(ids: Any) -> Logits:
        logits = toy_logits(ids).copy()
        logits[END] = logits.max() + 0.5
        return logits

    def endless(place: Place) -> int:
        chosen = honest(place)
        return honest(place) if chosen == END else chosen

    for shape in ({}, {"echo": False}, {"ids": True, "prompt_logprobs": True, "by_id": True}):
        plain = Script(logits=ending, **shape)  # type: ignore[arg-type]
        own, scored = sampled(plain, replace(plain, seed=1), samples=12, detect=0.3)
        assert (own.verdict, scored.verdict) == ("pass", "pass")
        _, scored = sampled(plain, replace(plain, choose=endless), samples=12)
        assert scored.verdict == "loss"


def test_a_draft_that_repeats_the_text_is_found_by_its_guess() -> None:
    _, scored = sampled(Script(), Script(choose=repeating), samples=60, max_tokens=32)
    assert scored.verdict == "loss"
    assert GUESS in scored.summary


def test_a_lower_temperature_on_one_side_gets_its_hint() -> None:
    def cooler(place: Place) -> int:
        return honest(replace(place, temperature=0.6 * place.temperature))

    _, scored = sampled(Script(), Script(choose=cooler))
    assert scored.verdict == "loss"
    assert "look at its temperature and top-p" in scored.details[-1]


def test_reports_that_are_not_what_is_sampled_from_are_told_from_a_loss() -> None:
    """The plain server's own samples don't fit, so that no speculation is to blame."""
    plain = Script(report=lambda logits: logits / 2)
    own, scored = sampled(plain, plain)
    assert own.verdict == scored.verdict == "settings"
    assert own.summary == "the log probabilities that the plain server reports aren't those it samples from"


def test_probabilities_that_are_slightly_off_are_tolerated() -> None:
    def nudged(logits: Logits) -> Logits:
        raised = logits.copy()
        raised[logits.argmax()] += 0.02
        return raised

    plain = Script(report=nudged)
    own, scored = sampled(plain, replace(plain, seed=1), samples=8)
    assert (own.verdict, scored.verdict) == ("pass", "pass")


def test_another_temperature_needs_complete_lists() -> None:
    def top_3(place: Place) -> int:
        kept = np.where(place.logits >= np.sort(place.logits)[-3], place.logits, -np.inf)
        return honest(replace(place, logits=kept))

    own, scored = sampled(
        Script(choose=top_3), Script(choose=top_3, seed=1), temperature=0.7, top_k=3, detect=0.3
    )
    assert (own.verdict, scored.verdict, scored.name) == ("pass", "pass", "sampled tokens, scored")
    own, scored = sampled(Script(choose=top_3), Script(seed=1), temperature=0.7, top_k=3)
    assert scored.verdict == "loss"
    own, scored = sampled(Script(), Script(seed=1), temperature=0.7, top_k=3)
    assert own.verdict == "settings", "a top_k that isn't honoured shows in the plain server's own samples"
    for changes, reason in (
        ({"temperature": 0.7}, "at temperature 0.7 the lists say too little without a top_k of 20 or less"),
        ({"top_k": 30}, "top_k is 30, and the plain server lists 20 tokens"),
    ):
        _, texts = sampled(Script(), Script(seed=1), samples=2, **changes)
        assert reason in texts.details[0]


TERSE = partial(toy_logits, sharpness=4.0)


@pytest.mark.parametrize("shape", [{"listed": 0}, {"listed": 0, "usage": False, "strict": True}])
def test_without_log_probabilities_texts_are_compared(shape: dict[str, Any]) -> None:
    plain = Script(logits=TERSE, **shape)
    own, texts = sampled(plain, replace(plain, seed=1), samples=10, detect=0.9)
    assert (own.verdict, texts.verdict, texts.name) == ("pass", "pass", "sampled texts, compared")
    assert "offers no log probabilities" in texts.details[0]
    assert "foreign texts would have been found with probability 90%" in texts.details[1]
    own, texts = sampled(plain, replace(plain, seed=1, choose=leaking(0.6)), samples=10)
    assert (own.verdict, texts.verdict) == ("pass", "loss")


def test_texts_too_few_for_a_pass() -> None:
    _, texts = sampled(Script(listed=0), Script(listed=0, seed=1), samples=2)
    assert texts.verdict == "undecided"


def test_a_server_whose_seed_is_fixed_is_no_measure() -> None:
    def frozen(place: Place) -> int:
        return int(place.logits.argmax())

    own, texts = sampled(Script(listed=0, choose=frozen), Script(listed=0))
    assert (own.verdict, texts.verdict) == ("undecided", "undecided")
    assert "its seed is fixed" in own.summary


def test_nothing_sampled_is_no_pass() -> None:
    report = audit(Script(), Script(), Budget(tokens=20 * 36))
    assert report.verdict == "undecided"
    assert "budget was spent" in report.checks[-1].summary


def listed(*probs: float) -> tuple[Choice, ...]:
    return tuple(Choice(str(number), math.log(prob), None, number) for number, prob in enumerate(probs))


def test_what_a_token_is_held_against_is_fixed_before_it() -> None:
    """The same lists and tokens before give the same sets and probabilities, whatever the token is."""
    probs = (0.4, 0.3, 0.2)
    tokens = [1, 2, 1, 2, 1]
    for last, hits in ((0, {LIKELIEST, HALF}), (2, {GUESS}), (9, {UNLISTED}), (1, {HALF})):
        evidence = new_evidence(0.01, 0.0)
        places = [Listed(Choice(str(token), 0.0, None, token), listed(*probs)) for token in (*tokens, last)]
        play(evidence, places[:-1], shown=3, temperature=1.0, top_k=0)
        before = {name: evidence.sight(name) for name in (LIKELIEST, HALF, UNLISTED, GUESS)}
        again = new_evidence(0.01, 0.0)
        play(again, places, shown=3, temperature=1.0, top_k=0)
        for name, prob in ((LIKELIEST, 0.4), (HALF, 0.7), (UNLISTED, 0.1), (GUESS, 0.2)):
            sight = again.sight(name)
            assert sight.tokens == before[name].tokens + 1
            gained = sight.excess * sight.tokens - before[name].excess * before[name].tokens
            assert gained == pytest.approx((name in hits) - prob)


def test_tokens_that_cannot_be_told_apart_count_as_one() -> None:
    """Two parts of characters have one name: what is held against them is both their probability."""
    half = [Choice("�", math.log(0.3)), Choice("a", math.log(0.4), b"a"), Choice("�", math.log(0.2))]
    evidence = new_evidence(0.01, 0.0)
    play(evidence, [Listed(half[0], tuple(half))], shown=3, temperature=1.0, top_k=0)
    assert evidence.sight(LIKELIEST).excess == pytest.approx(1 - 0.5)
    assert evidence.sight(UNLISTED).excess == pytest.approx(-0.1)


def test_the_toy_honest_server_draws_what_it_reports() -> None:
    rng = np.random.default_rng(0)
    logits = toy_logits([1, 2])
    drawn = [honest(Place([1], [2], logits, 1.0, rng)) for _ in range(4000)]
    found = np.bincount(drawn, minlength=len(VOCABULARY)) / len(drawn)
    assert np.abs(found - probabilities(logits)).max() < 0.03
