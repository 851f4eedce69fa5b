"""Sampled answers as texts, for servers that offer no probabilities: two heaps, from one source or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.audit.report import Check, Verdict
from surefoot.audit.servers.asking import Server
from surefoot.audit.servers.plan import ServerPlan
from surefoot.audit.servers.samples import ask_samples
from surefoot.audit.servers.twosample import POWER, TwoSample, string_kernel, two_sample, word_kernel

_TESTS = 2  # first words, and what follows them


def check_texts(plain: Server, other: Server, plan: ServerPlan, reason: str) -> tuple[Check, ...]:
    """Twice as many samples of the plain server: its halves against each other, all against the other's."""
    halves = [_texts(plain, plan, range(start, start + plan.samples)) for start in (0, plan.samples)]
    theirs = _texts(other, plan, range(plan.samples))
    both = [[*one, *two] for one, two in zip(*halves, strict=True)]
    foreign = [text for texts in both for text in texts]
    rng = np.random.default_rng(plan.seed)
    floor = _run(list(zip(*halves, strict=True)), plan, rng, ())
    found = _run(list(zip(both, theirs, strict=True)), plan, rng, foreign)
    tokens = found[0].texts * plan.max_tokens
    floor_alarm = _alarm(floor, plan)
    frozen = all(len(set(texts)) == 1 for texts in both if len(texts) > 1)
    summary = f"its samples differ from its own as much as chance allows ({_values(floor)})"
    if floor_alarm:
        summary = f"its own two halves differ by more than chance ({_values(floor)})"
    verdict: Verdict = "undecided" if floor_alarm or frozen else "pass"
    if frozen:
        summary = "every sample of a prompt was the same: its seed is fixed, or its temperature is"
    own = Check("the plain server's own samples", verdict, summary, floor[0].texts * plan.max_tokens)
    return own, _texts_check(found, plan, reason, tokens, usable=not (floor_alarm or frozen))


def _texts(server: Server, plan: ServerPlan, numbers: range) -> list[list[str]]:
    texts: list[list[str]] = [[] for _ in plan.prompts]
    for number in numbers:
        for sample in ask_samples(server, plan, number):
            texts[sample.prompt].append(sample.answer.text)
    return texts


def _run(
    heaps: Sequence[tuple[Sequence[str], Sequence[str]]],
    plan: ServerPlan,
    rng: np.random.Generator,
    foreign: Sequence[str],
) -> tuple[TwoSample, TwoSample]:
    words, rests = (
        two_sample(heaps, kernel, plan.alpha / _TESTS, rng, foreign)
        for kernel in (word_kernel, string_kernel)
    )
    return words, rests


def _alarm(tests: tuple[TwoSample, TwoSample], plan: ServerPlan) -> bool:
    return min(test.p for test in tests) <= plan.alpha / _TESTS


def _values(tests: tuple[TwoSample, TwoSample]) -> str:
    return f"first words p = {tests[0].p:.4f}, the rest p = {tests[1].p:.4f}"


def _texts_check(
    found: tuple[TwoSample, TwoSample], plan: ServerPlan, reason: str, tokens: int, *, usable: bool
) -> Check:
    shares = [test.detectable for test in found if test.detectable is not None]
    share = min(shares, default=None)
    verdict: Verdict
    if not usable:
        verdict, summary = "undecided", "not judged: the plain server's own samples are no measure"
    elif _alarm(found, plan):
        verdict, summary = (
            "loss",
            f"its texts differ from the plain server's by more than chance ({_values(found)})",
        )
    else:
        verdict = "pass" if share is not None and share <= plan.detect else "undecided"
        summary = f"its texts differ from the plain server's as much as chance allows ({_values(found)})"
    names = ("the first word", "the rest")
    details = [f"compared as texts: {reason}"]
    for name, test in zip(names, found, strict=True):
        seen = f"a share of {test.detectable:.0%} of foreign texts" if test.detectable else "no foreign texts"
        details.append(f"in {name}, {seen} would have been found with probability {POWER:.0%}")
    facts = {"p_first_word": found[0].p, "p_rest": found[1].p, "smallest_share_seen": share}
    return Check("sampled texts, compared", verdict, summary, tokens, tuple(details), facts=facts)
