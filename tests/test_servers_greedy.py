"""Two servers at temperature 0: the same, near-ties, losses, and settings that only look like one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Report
from surefoot.audit.servers.audit import audit_servers
from surefoot.audit.servers.plan import ServerPlan, Side
from tests.scripted_server import (
    END,
    VOCABULARY,
    WORDS,
    Logits,
    Place,
    Script,
    honest,
    keyed,
    probabilities,
    serving,
    toy_logits,
)

PLAN = ServerPlan(tuple(f"tell me about{word}" for word in WORDS[:16]), max_tokens=24, samples=0)

Choose = Callable[[Place], int]


def audit(plain: Script, other: Script, **changes: Any) -> Report:
    with serving(plain) as ours, serving(other) as theirs:
        plan = replace(PLAN, **changes)
        return audit_servers(Side(theirs.url), Side(ours.url), plan, Budget(), lambda seconds: None)


def checks(plain: Script, other: Script, **changes: Any) -> tuple[Check, Check]:
    floor, greedy = audit(plain, other, **changes).checks
    return floor, greedy


def jumps(share: float, gap: float) -> Choose:
    """Now and then a token that is `gap` nats or more below the likeliest: a loss."""

    def choose(place: Place) -> int:
        ranked = np.argsort(-place.logits)
        below = [int(i) for i in ranked if place.logits[ranked[0]] - place.logits[i] > gap]
        unlucky = place.temperature == 0 and keyed("jump", place.prompt, place.output).random() < share
        return below[0] if unlucky else honest(place)

    return choose


def rounded(size: float, *, every_time: bool = False) -> Choose:
    """Logits that are off by up to half of `size`, as another kernel's are, or otherwise on every call."""

    def choose(place: Place) -> int:
        rng = place.rng if every_time else keyed("noise", place.prompt, place.output)
        return int((place.logits + rng.uniform(-size / 2, size / 2, len(VOCABULARY))).argmax())

    return choose


def penalized(place: Place) -> int:
    logits = place.logits.copy()
    logits[list({*place.prompt, *place.output})] -= 1.5
    return int(logits.argmax())


def endless(share: float) -> Choose:
    """Runs over an end of sequence for some prompts, the same ones every time."""

    def choose(place: Place) -> int:
        if place.logits.argmax() != END or keyed("end", place.prompt).random() >= share:
            return honest(place)
        return int(np.delete(place.logits, END).argmax()) + 1

    return choose


def ending(ids: Sequence[int]) -> Logits:
    """Logits with an end of sequence to be expected within an answer."""
    logits = toy_logits(ids).copy()
    if keyed("ends", list(ids[-2:])).random() < 0.06:
        logits[END] = logits.max() + 1.5
    return logits


SHAPES = [
    pytest.param({}, {}, id="completions"),
    pytest.param({"shape": "content"}, {}, id="content"),
    pytest.param({"names_half": "lost"}, {}, id="lost halves"),
    pytest.param({"names_half": "empty"}, {}, id="empty halves"),
    pytest.param({"names_half": "empty"}, {"chat": True}, id="chat, empty halves"),
    pytest.param({"echo": "breaks"}, {}, id="an echo breaks"),
    pytest.param({"listed": 5}, {}, id="short lists"),
    pytest.param({"strict": True}, {}, id="strict"),
    pytest.param({"usage": False}, {}, id="no usage"),
    pytest.param({}, {"chat": True}, id="chat"),
    pytest.param({"per_chunk": 3}, {"stream": True}, id="stream"),
    pytest.param({"per_chunk": 4}, {"stream": True, "chat": True}, id="chat stream"),
    pytest.param({"ids": True, "prompt_logprobs": True, "by_id": True}, {}, id="ids"),
]


@pytest.mark.parametrize(("shape", "changes"), SHAPES)
def test_an_honest_pair_passes(shape: dict[str, Any], changes: dict[str, Any]) -> None:
    floor, greedy = checks(Script(**shape), Script(**shape, seed=1), **changes)
    assert (floor.verdict, greedy.verdict, greedy.facts["differ"]) == ("pass", "pass", 0)
    assert greedy.tokens > 300


@pytest.mark.parametrize(("shape", "changes"), SHAPES)
def test_a_loss_is_told_from_a_near_tie(shape: dict[str, Any], changes: dict[str, Any]) -> None:
    _, lost = checks(Script(**shape), Script(**shape, choose=jumps(0.03, 0.3)), **changes)
    assert (lost.verdict, lost.facts["near_ties"]) == ("loss", 0)
    assert lost.facts["losses"] == lost.facts["differ"] >= 4
    assert "nats apart for the plain server (loss)" in lost.details[0]
    _, tied = checks(Script(**shape), Script(**shape, choose=rounded(0.14)), **changes)
    assert (tied.verdict, tied.facts["losses"]) == ("pass", 0)
    assert tied.facts["near_ties"] == tied.facts["differ"] >= 6
    assert "runs other kernels" in tied.details[0]


@pytest.mark.parametrize("shape", [{"listed": 0}, {"listed": 1}, {"listed": 0, "usage": False}])
def test_without_lists_draws_tell_a_loss_from_what_may_be_a_near_tie(shape: dict[str, Any]) -> None:
    script = Script(logits=partial(toy_logits, sharpness=3.0), **shape)
    _, lost = checks(script, replace(script, choose=jumps(0.03, 2.5)))
    assert lost.verdict == "loss"
    assert any("(loss)" in line for line in lost.details)
    _, tied = checks(script, replace(script, choose=rounded(0.14)))
    assert (tied.verdict, tied.facts["losses"]) == ("undecided", 0)
    assert "lists too few tokens" in tied.details[0]


ENDING: dict[str, Any] = {"logits": ending}
SETTINGS = [
    pytest.param({}, {"choose": penalized}, "penalty on that side only", id="penalty"),
    pytest.param({"choose": penalized}, {}, "on the plain side only", id="penalty on the plain side"),
    pytest.param(
        ENDING | {"choose": endless(1.0)}, ENDING, "only the speculative server stops", id="no ends"
    ),
    pytest.param(ENDING, ENDING | {"choose": endless(1.0)}, "runs over every end", id="runs over ends"),
    pytest.param({}, {"stop": (" ba", " kune")}, "speculative server stops there: other stop", id="stops"),
    pytest.param({"stop": (" mist",)}, {}, "the plain server always stops before ' mist", id="a stop"),
    pytest.param({}, {"most": 10}, "speculative server's answers end at 10 tokens", id="maximum"),
    pytest.param({"most": 10}, {}, "plain server's answers end at 10 tokens", id="maximum of the plain one"),
    pytest.param({}, {"logits": partial(toy_logits, model=1)}, "another model or prompt", id="model"),
]


@pytest.mark.parametrize(("plain", "other", "sentence"), SETTINGS)
def test_other_settings_are_told_from_a_loss(
    plain: dict[str, Any], other: dict[str, Any], sentence: str
) -> None:
    _, greedy = checks(Script(**plain), Script(**other))
    assert greedy.verdict == "settings"
    assert sentence in " ".join(greedy.details)


def test_a_chat_template_on_one_side_shows_in_the_prompts_length() -> None:
    _, greedy = checks(Script(), Script(template=("", "now: ")), chat=True)
    assert greedy.verdict == "settings"
    assert "the same prompt has" in greedy.details[0]
    assert "another chat template" in greedy.details[0]


def test_a_template_that_changes_nothing_is_told_all_the_same() -> None:
    _, greedy = checks(Script(), Script(template=("system: ", "")), chat=True)
    assert greedy.verdict == "pass"
    assert "another chat template" in greedy.details[0]


def test_nothing_is_sampled_when_the_settings_differ() -> None:
    assert len(audit(Script(), Script(most=10), samples=2).checks) == 2


def test_an_end_that_is_ignored_now_and_then_is_a_loss() -> None:
    """No stop rule is kept in one answer and broken in another."""
    script = Script(logits=ending)
    _, greedy = checks(script, replace(script, choose=endless(0.5)))
    assert greedy.verdict == "loss"
    assert "the end became" in greedy.details[0]


def test_a_loss_beside_other_settings_stays_a_loss() -> None:
    _, greedy = checks(Script(), Script(most=20, choose=jumps(0.05, 1.0)))
    assert greedy.verdict == "loss"
    assert "end at 20 tokens" in greedy.details[0]


def test_leaking_ngram_drafts_are_no_penalty() -> None:
    """Tokens that were there before, taken where the plain server turns to new ones, are not its penalty."""

    def repeats(place: Place) -> int:
        leaks = place.output and keyed("leak", place.prompt, place.output).random() < 0.1
        return place.output[0] if leaks else honest(place)

    _, greedy = checks(Script(), Script(choose=repeats))
    assert greedy.verdict == "loss"


def test_an_answer_cut_short_now_and_then_is_a_loss() -> None:
    def cut(place: Place) -> int:
        return END if keyed("cut", place.prompt, place.output).random() < 0.02 else honest(place)

    _, greedy = checks(Script(), Script(choose=cut))
    assert greedy.verdict == "loss"
    assert "became the end" in greedy.details[0]


def test_what_the_plain_server_does_to_itself_is_the_floor() -> None:
    """Flips wider than a near-tie that it makes alone are no loss on the other side."""
    for seed in range(3):
        floor, greedy = checks(
            Script(choose=rounded(0.4, every_time=True)),
            Script(choose=rounded(0.4, every_time=True), seed=10 + seed),
        )
        assert (floor.verdict, greedy.verdict) == ("pass", "pass")
        assert floor.facts["changed"] >= 8
        assert floor.facts["tie_gap"] > PLAN.tie_gap
        assert "count as one from here on" in floor.summary


def test_a_loss_beyond_the_floor_is_found() -> None:
    _, greedy = checks(Script(choose=rounded(0.2, every_time=True)), Script(choose=jumps(0.05, 1.0)))
    assert greedy.verdict == "loss"


def test_a_plain_server_that_samples_at_temperature_0_is_no_measure() -> None:
    def samples(place: Place) -> int:
        return int(place.rng.choice(len(VOCABULARY), p=probabilities(place.logits)))

    floor, greedy = checks(Script(choose=samples), Script(choose=samples, seed=1))
    assert floor.verdict == "undecided"
    assert "not reproducible at temperature 0" in floor.summary
    assert greedy.verdict != "loss"


def test_too_few_tokens_are_no_pass() -> None:
    _, greedy = checks(Script(), Script(), max_tokens=1, prompts=PLAN.prompts[:5])
    assert (greedy.verdict, greedy.tokens) == ("undecided", 5)
    _, greedy = checks(Script(), Script(), max_tokens=1, prompts=PLAN.prompts[:5], detect=0.5)
    assert greedy.verdict == "pass"


def test_all_requests_but_the_extras_are_the_ones_a_user_would_send() -> None:
    """The speculative server isn't asked for log probabilities, for which some decode plainly."""
    with serving(Script()) as ours, serving(Script()) as theirs:
        audit_servers(Side(theirs.url), Side(ours.url), PLAN, Budget(), lambda seconds: None)
        greedy = [body for body in theirs.bodies if body.get("max_tokens") == PLAN.max_tokens]
    assert len(greedy) == len(PLAN.prompts)
    assert not any("logprobs" in body for body in greedy)
    assert {body["temperature"] for body in greedy} == {0.0}
