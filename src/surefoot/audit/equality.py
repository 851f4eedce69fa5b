"""Holds speculation's tokens to plain decoding's: any difference is a loss."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from surefoot.audit.budget import Budget
from surefoot.audit.difference import Explanation, explain, first_difference
from surefoot.audit.report import Check, Verdict
from surefoot.audit.subject import Plan, Subject
from surefoot.audit.trial import MAX_SEED, Asked, Pace, Reference, Setting, Trial, raised, settings
from surefoot.audit.words import counted
from surefoot.results import Result

_ON_REFERENCES = 0.4  # of what is spent, at most: one serves many trials


def same_tokens(subject: Subject, plan: Plan, budget: Budget) -> Check:
    """Whether a seed's tokens are those of plain decoding, over prompts, seeds, draft lengths, companions and
    chunk sizes.

    Ends at the first difference or when the budget is used. Raises SurefootError for what plain decoding
    can't answer either.
    """
    generator = np.random.default_rng(plan.seed)
    references = _References(subject, plan, budget, generator)
    tally = _Tally()
    found: Explanation | None = None
    each, pace = settings(plan, generator), Pace(budget, plan.companions)
    while budget.left and not found:
        setting = pace.cut(next(each))
        references.grow(1 + setting.companions)
        trial = Trial(setting, references.pick(1 + setting.companions))
        found = _try(subject, trial, tally, budget)
        pace.add(len(trial.references))
    return _check(plan, tally, found)


@dataclass(slots=True)
class _Tally:
    """What was compared. different: requests, by prompt and seed. moved: tokens that were the same, but
    whose reported log-probability differed."""

    tokens: int = 0
    requests: int = 0
    different: set[tuple[int, int]] = field(default_factory=set)
    drafted: int = 0
    moved: int = 0
    largest: float = 0.0
    settings: set[Setting] = field(default_factory=set)

    def add(self, reference: Reference, speculated: Result, same: int) -> None:
        """same: tokens from the first that don't differ."""
        plain = reference.result
        self.different.add((reference.asked.prompt, plain.seed))
        self.tokens += min(same + 1, len(plain.token_ids))
        self.requests += 1
        self.drafted += speculated.stats.draft_tokens
        pairs = zip(plain.logprobs or (), speculated.logprobs or (), strict=False)
        for ours, theirs in list(pairs)[:same]:
            if ours.chosen != theirs.chosen:
                self.moved += 1
                self.largest = max(self.largest, abs(ours.chosen - theirs.chosen))


class _References:
    """Requests that plain decoding has answered, more and more of them."""

    def __init__(self, subject: Subject, plan: Plan, budget: Budget, generator: np.random.Generator) -> None:
        self._subject, self._plan, self._budget, self._generator = subject, plan, budget, generator
        self._began = budget.used  # by checks before this one
        self._spent = 0.0  # of the budget, as a share
        self._pool: list[Reference] = []
        self._next: deque[Reference] = deque()
        self._prompts = generator.permutation(len(plan.prompts))

    def __len__(self) -> int:
        return len(self._pool)

    def grow(self, needed: int) -> None:
        """Adds what its share of the budget allows; two at least for a trial that needs several, since
        companions should differ."""
        least = min(needed, 2)
        while not self._complete and (len(self) < least or self._spent < _ON_REFERENCES * self._used):
            before = self._used
            self._pool.append(self._answered())
            self._next.appendleft(self._pool[-1])
            self._spent += self._used - before

    def pick(self, count: int) -> tuple[Reference, ...]:
        """The next members of a trial: newcomers first, then all in turn, each turn in another order."""
        picked = []
        for _ in range(count):
            if not self._next:
                self._next.extend(self._pool[i] for i in self._generator.permutation(len(self)))
            picked.append(self._next.popleft())
        return tuple(picked)

    @property
    def _used(self) -> float:
        """The share of the budget that this check has used."""
        return self._budget.used - self._began

    @property
    def _complete(self) -> bool:
        """Whether another one would only repeat: at temperature 0 a seed is nothing new."""
        return self._plan.params.temperature == 0 and len(self) == len(self._prompts)

    def _answered(self) -> Reference:
        plan = self._plan
        prompt = int(self._prompts[len(self) % len(self._prompts)])
        seed = int(self._generator.integers(MAX_SEED))
        params = replace(plan.params, seed=seed, n=1, logprobs=plan.params.logprobs or 0)
        asked = Asked(prompt, plan.prompts[prompt], params)
        with self._subject.plain() as engine:
            result = engine.generate([asked.ids], asked.params)[0]
        self._budget.spend(len(result.token_ids))
        return Reference(asked, result)


def _try(subject: Subject, trial: Trial, tally: _Tally, budget: Budget) -> Explanation | None:
    """Runs a trial; what is wrong with it, if anything is."""
    tally.settings.add(trial.setting)
    try:
        results = trial.run(subject)
    except Exception as error:  # plain decoding answered all of these
        return Explanation(
            (
                f"speculation failed where plain decoding didn't: {raised(error)}",
                f"{counted(len(trial.references), 'request')}: {trial.setting}",
            ),
            {"differs": "exception", "exception": raised(error)},
        )
    budget.spend(sum(len(result.token_ids) for result in results))
    for number, (reference, result) in enumerate(zip(trial.references, results, strict=True)):
        difference = first_difference(reference.result, result)
        tally.add(reference, result, difference.index if difference else len(result.token_ids))
        if difference:
            return explain(subject, trial, number, difference)
    return None


def _check(plan: Plan, tally: _Tally, found: Explanation | None) -> Check:
    bound = math.log(1 / plan.alpha) / tally.tokens if tally.tokens else math.inf
    details = list(found.lines) if found else []
    if tally.moved:
        details.append(
            f"{counted(tally.moved, 'token')} had another log-probability than alone, by up to "
            f"{tally.largest:.3g}, though no choice differed there: rows depend on their company"
        )
    facts = {
        "tokens": tally.tokens,
        "requests": tally.requests,
        "different_requests": len(tally.different),
        "settings": len(tally.settings),
        "draft_tokens": tally.drafted,
        "moved_logprobs": tally.moved,
        "largest_logprob_difference": tally.largest,
        "bound": bound if tally.tokens else None,
        **(found.facts if found else {}),
    }
    verdict, summary = _answer(plan, tally, found, bound)
    name = f"same tokens at temperature {plan.params.temperature:g}"
    return Check(name, verdict, summary, tally.tokens, tuple(details), facts=facts)


def _answer(plan: Plan, tally: _Tally, found: Explanation | None, bound: float) -> tuple[Verdict, str]:
    compared = (
        f"{counted(tally.tokens, 'token')} of {counted(tally.requests, 'request')} "
        f"({counted(len(tally.different), 'different one')}) in "
        f"{counted(len(tally.settings), 'combination')} of draft length, companions and rows"
    )
    if found:
        return "loss", f"speculation doesn't give what plain decoding gives; it took {compared}"
    if not tally.tokens:
        return "undecided", "the budget was used before anything could be compared"
    if not tally.drafted:
        return "undecided", f"{compared}: none differs, but the drafter never drafted"
    seen = f"{compared}: none differs; a difference in one token of {1 / bound:,.0f} would have been found"
    summary = f"{seen} with {100 * (1 - plan.alpha):.4g}%"
    return ("pass" if bound <= plan.detect else "undecided"), summary
