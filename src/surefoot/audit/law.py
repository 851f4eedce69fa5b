"""Holds speculation's tokens to the probabilities they should have had: for the modes that keep nothing else.

The probability of every token is computed apart from the engine, and bets are placed against it (see
`surefoot.evidence`): a test of known probabilities that may be looked at whenever one likes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.budget import Budget
from surefoot.audit.difference import Explanation, apart, named, place
from surefoot.audit.recorder import Recorder
from surefoot.audit.replay import request_of, rows
from surefoot.audit.report import Check, Curve, Table, Verdict
from surefoot.audit.subject import Plan, Subject
from surefoot.audit.suspicions import (
    PLACES,
    SUSPICIONS,
    THE_DRAFT,
    Standing,
    observations,
    prob_of,
    standings,
)
from surefoot.audit.trial import MAX_SEED, Asked, Pace, Setting, raised, settings, speculate
from surefoot.audit.words import counted
from surefoot.evidence import ANYWHERE, Evidence, Observation, Sight
from surefoot.request import Request
from surefoot.results import Result
from surefoot.sampling import target_probs, top_logprobs
from surefoot.types import Draft

_POINTS = 200  # of a curve, at most


def same_distribution(subject: Subject, plan: Plan, budget: Budget) -> Check:
    """Whether tokens have the target's distribution, over prompts, seeds, draft lengths, companions and chunk
    sizes.

    Ends as soon as a loss is shown, or when the budget is used. Raises SurefootError for what plain decoding
    can't answer either.
    """
    generator = np.random.default_rng(plan.seed)
    law = _Law(subject, plan, budget)
    pairs = _Pairs(plan, generator)
    found: Explanation | None = None
    each, pace = settings(plan, generator), Pace(budget, plan.companions)
    while budget.left and not found and not law.evidence.found:
        asked = pairs.take(setting := pace.cut(next(each)))
        found = law.run(replace(setting, companions=len(asked) - 1), asked)
        pace.add(len(asked))
    return _check(plan, law, found)


class _Pairs:
    """Requests in pairs of one prompt and two seeds, side by side: what mixes up a batch then shows."""

    def __init__(self, plan: Plan, generator: np.random.Generator) -> None:
        self._plan, self._generator = plan, generator
        self._prompts: deque[int] = deque()

    def take(self, setting: Setting) -> list[Asked]:
        """As many pairs as hold one request and its companions."""
        asked = []
        for _ in range(setting.companions // 2 + 1):
            if not self._prompts:
                self._prompts.extend(map(int, self._generator.permutation(len(self._plan.prompts))))
            prompt = self._prompts.popleft()
            for seed in self._generator.integers(MAX_SEED, size=2):
                params = replace(self._plan.params, seed=int(seed), n=1)
                asked.append(Asked(prompt, self._plan.prompts[prompt], params))
        return asked


@dataclass(slots=True)
class _Law:
    """Batches of requests, and the evidence they gave."""

    subject: Subject
    plan: Plan
    budget: Budget
    requests: int = 0
    settings: set[Setting] = field(default_factory=set)
    evidence: Evidence = field(init=False)

    def __post_init__(self) -> None:
        self.evidence = Evidence(SUSPICIONS, PLACES, self.plan.alpha)

    def run(self, setting: Setting, asked: Sequence[Asked]) -> Explanation | None:
        """One batch; what can't be, if anything is: an error, a token of probability 0 or behind the end."""
        self.settings.add(setting)
        recorder = Recorder(self.subject.drafter())
        try:
            results = speculate(self.subject, recorder, setting, asked)
        except Exception as error:  # whatever a broken engine raises is a finding
            return self._failed(setting, asked, error)
        for number, result in enumerate(results):
            neighbour = results[number - 1].token_ids if number % 2 else ()
            rounds = recorder.rounds(number, asked[number].ids)
            found = self._score(asked[number], result, rounds, neighbour)
            if found:
                told = f"request {number + 1} of {len(asked)}: {setting}"
                return replace(found, lines=(*found.lines, told))
            if self.evidence.found:
                return None
        return None

    def _failed(self, setting: Setting, asked: Sequence[Asked], error: Exception) -> Explanation:
        with self.subject.plain() as engine:  # raises what is the user's own mistake
            engine.generate([each.ids for each in asked], [each.params for each in asked])
        lines = f"speculation failed where plain decoding didn't: {raised(error)}", str(setting)
        return Explanation(lines, {"differs": "exception", "exception": raised(error)})

    def _score(
        self, asked: Asked, result: Result, rounds: Mapping[int, Draft], neighbour: Sequence[int]
    ) -> Explanation | None:
        output = result.token_ids
        self.requests += 1
        self.budget.spend(len(output))
        request = request_of(self.subject, asked)
        request.extend(output)
        wrong = _wrong_end(request, result)
        if wrong:
            return _told(self.subject, asked, output[: len(request.output)], wrong, "end")
        seen: list[Observation] = []
        where = standings(len(asked.ids), output, rounds)
        for index, row in enumerate(rows(self.subject.model, asked.ids, output)):
            history = replace(request.history, output=output[:index])
            target = target_probs(row, asked.params, history)
            if not prob_of(target, output[index]):
                self.evidence.add(seen, index)
                return self._impossible(asked, output, index, row, where[index])
            beside = neighbour[index] if index < len(neighbour) else None
            raw = row[: history.vocab_limit]
            seen.extend(observations(output[index], target, raw, where[index], beside))
        self.evidence.add(seen, len(output))
        return None

    def _impossible(
        self, asked: Asked, output: Sequence[int], index: int, row: NDArray[np.float32], standing: Standing
    ) -> Explanation:
        token = output[index]
        before = math.exp(top_logprobs(row, token, 0).chosen)
        wrong = (
            f"{named(self.subject.tokenizer, token)} was chosen {_where(standing.place)} "
            f"with probability 0 ({before:.6g} before the transforms)"
        )
        return _told(self.subject, asked, output[:index], wrong, "impossible token", standing.place)


def _wrong_end(request: Request, result: Result) -> str | None:
    """What is wrong with the end of an output, which `request` took as far as it goes."""
    rest = len(result.token_ids) - len(request.output)
    if rest:
        return f"{counted(rest, 'token')} follow the end ({request.finish_reason})"
    if not request.finished:
        return "the output ends too early"
    for what in ("finish_reason", "text"):
        wanted, given = getattr(request, what), getattr(result, what)
        if wanted != given:
            given, wanted = apart(given, wanted)
            return f"the {what.replace('_', ' ')} is {given}, but of these tokens it is {wanted}"
    return None


def _told(
    subject: Subject, asked: Asked, before: Sequence[int], wrong: str, differs: str, where: str | None = None
) -> Explanation:
    lines = (
        f"prompt {asked.prompt + 1}, seed {asked.params.seed}",
        f"{place(subject.tokenizer, asked.ids, before)} {wrong}",
    )
    facts = {
        "differs": differs,
        "prompt": asked.prompt,
        "seed": asked.params.seed,
        "index": len(before),
        "place": where,
    }
    return Explanation(lines, facts)


def _check(plan: Plan, law: _Law, found: Explanation | None) -> Check:
    evidence = law.evidence
    sight = evidence.sight(THE_DRAFT)
    sights = evidence.sights()
    shown = sights[0] if evidence.found else None
    facts: dict[str, Any] = {
        "tokens": evidence.tokens,
        "requests": law.requests,
        "settings": len(law.settings),
        "log10_e": evidence.log_e / math.log(10),
        "log10_e_limit": -math.log10(plan.alpha),
        "draft_tokens": sight.tokens,
        "bias_seen": sight.bias if sight.bias <= 1 else None,
        "share_seen": sight.share if sight.share is not None and sight.share <= 1 else None,
    }
    if shown:
        facts |= {"suspicion": shown.suspicion, "place": shown.place, "excess": shown.excess}
    verdict, summary = _answer(plan, law, found, shown)
    return Check(
        f"same distribution at temperature {plan.params.temperature:g}",
        verdict,
        summary,
        evidence.tokens,
        found.lines if found else tuple(map(_in_words, sights[:3])) if shown else (),
        _tables(evidence),
        (_curve(evidence),),
        {**facts, **(found.facts if found else {})},
    )


def _answer(plan: Plan, law: _Law, found: Explanation | None, shown: Sight | None) -> tuple[Verdict, str]:
    evidence = law.evidence
    scored = f"{counted(evidence.tokens, 'token')} in {counted(law.requests, 'request')}"
    if found:
        return "loss", f"speculation gave what plain decoding can't give; it took {scored}"
    if not evidence.tokens:
        return "undecided", "the budget was used before any token could be scored"
    size = f"e-value {_e_value(evidence.log_e)}, a loss shows at {1 / plan.alpha:,.0f}"
    if shown:
        return "loss", f"{scored}: the tokens don't have the target's probabilities ({size})"
    none = f"{scored}: no evidence of another distribution ({size})"
    sight = evidence.sight(THE_DRAFT)
    if not sight.tokens:
        return "undecided", f"{none}, but the drafter never drafted"
    if sight.bias > 1:
        return "undecided", f"{none}; that is too little to see any shift"
    seen = f"a shift of {100 * sight.bias:.2g} points of probability toward the draft would have been seen"
    return ("pass" if sight.bias <= plan.detect else "undecided"), f"{none}; {seen}"


def _in_words(sight: Sight) -> str:
    way = "toward" if sight.excess > 0 else "away from"
    size = f"{abs(100 * sight.excess):.2g} points of probability"
    of = f"{counted(sight.tokens, 'token')} (e-value {_e_value(sight.log_e)} by itself)"
    return f"{_where(sight.place)}, {size} went {way} {sight.suspicion}, over {of}"


def _where(place: str) -> str:
    if place == ANYWHERE:
        return "wherever tokens stood"
    number = place.removeprefix("draft ")
    return place if place == number else f"at place {number} of the draft"


def _e_value(log_e: float) -> str:
    exponent = log_e / math.log(10)
    return f"{10**exponent:.3g}" if abs(exponent) < 6 else f"10^{exponent:.0f}"


_NUMBERS = ("tokens", "excess", "smallest bias seen", "as a share", "log10 of e")


def _tables(evidence: Evidence) -> tuple[Table, ...]:
    by_place = [evidence.sight(THE_DRAFT, where) for where in PLACES]
    by_suspicion = [evidence.sight(suspicion) for suspicion in SUSPICIONS]
    return (
        Table(
            "toward the draft, by place",
            ("place", *_NUMBERS),
            tuple((sight.place, *_numbers(sight)) for sight in by_place if sight.tokens),
            bar="smallest bias seen",
        ),
        Table(
            "by suspicion",
            ("suspicion", *_NUMBERS),
            tuple((sight.suspicion, *_numbers(sight)) for sight in by_suspicion if sight.tokens),
            bar="smallest bias seen",
        ),
    )


def _numbers(sight: Sight) -> tuple[int | float, ...]:
    share = math.nan if sight.share is None else _possible(sight.share)
    return sight.tokens, sight.excess, _possible(sight.bias), share, sight.log_e / math.log(10)


def _possible(size: float) -> float:
    """Infinite beyond 1: there is no such bias, so none would have been seen."""
    return size if size <= 1 else math.inf


def _curve(evidence: Evidence) -> Curve:
    step = max(1, math.ceil(len(evidence.curve) / _POINTS))
    kept = sorted({*range(0, len(evidence.curve), step), len(evidence.curve) - 1})
    points = tuple((evidence.curve[i][0], evidence.curve[i][1] / math.log(10)) for i in kept)
    return Curve("evidence of another distribution", points, -math.log10(evidence.alpha))
