"""Every mode of transformers' assisted generation, greedy and sampled, against plain `generate`."""

from __future__ import annotations

from itertools import count

from surefoot.audit.assisted.answers import Ending, power_reached, sampled_check
from surefoot.audit.assisted.greedy import greedy_check
from surefoot.audit.assisted.load import Loaded, library, load, quiet
from surefoot.audit.assisted.modes import Assistance, assistance, modes_of
from surefoot.audit.assisted.plain import Generation, ModeFailedError
from surefoot.audit.assisted.plan import AssistedPlan
from surefoot.audit.assisted.record import Round, rounds_of
from surefoot.audit.assisted.sampled import Game, new_game
from surefoot.audit.budget import Budget
from surefoot.audit.report import Check, Report

CONTROL = "plain generate: sampled (control)"


def audit_transformers(target: str, assistant: str | None, options: AssistedPlan, budget: Budget) -> Report:
    """Holds assisted `generate` against plain `generate` of the same library and models, on the CPU in fp32.

    target, assistant: folders as transformers saves them, .gguf files or names of models that were pulled.
    Greedy checks compare tokens; sampled ones score them, after plain `generate` has played the same game as
    a control. A mode that raises is `undecided`, and its check says what it raised. The budget begins when
    the models are loaded, and is shared out among the checks that are still to come. Raises SurefootError
    without transformers 5, for a model that it can't load, for a mode that can't be had, and when plain
    `generate` fails.
    """
    with quiet():
        loaded = load(target)
        helper = None if assistant is None else load(assistant)
        budget.restart()
        modes = modes_of(loaded, helper, options)
        generation = Generation(loaded, options)
        checks = _Checks(generation, options, budget, len(modes))
        for mode in modes:
            checks.greedy(assistance(mode, loaded, helper, options))
        if options.temperature > 0:
            checks.control()
            for mode in modes:
                checks.sampled(assistance(mode, loaded, helper, options))
    return Report(_subject(loaded, helper), _settings(options), tuple(checks.done), seconds=budget.elapsed)


class _Checks:
    """The checks of one audit, one after the other."""

    def __init__(self, generation: Generation, plan: AssistedPlan, budget: Budget, modes: int) -> None:
        self._generation, self._plan, self._budget = generation, plan, budget
        self._to_come = modes if plan.temperature == 0 else 2 * modes + 1
        self._broken = ""  # what the control found wrong with plain `generate`
        self.done: list[Check] = []

    def _share(self) -> Budget:
        """Of one check: as much as each of those to come."""
        self._to_come -= 1
        return self._budget.part(1 / (self._to_come + 1))

    def greedy(self, mode: Assistance) -> None:
        self.done.append(greedy_check(self._generation, mode, self._plan, self._share()))

    def control(self) -> None:
        game, ending = play(self._generation, None, self._plan, self._share())
        self.done.append(sampled_check(CONTROL, game, self._plan.detect, ending, assisted=False))
        if game.over:
            self._broken = f"not looked at: {CONTROL} doesn't follow its own probabilities"

    def sampled(self, mode: Assistance) -> None:
        share = Budget(tokens=0) if self._broken else self._share()
        game, ending = play(self._generation, mode, self._plan, share)
        if self._broken:
            ending = Ending(control=self._broken)
        label = f"{mode.label}: sampled"
        self.done.append(sampled_check(label, game, self._plan.detect, ending, assisted=True))


def play(
    generation: Generation, mode: Assistance | None, plan: AssistedPlan, budget: Budget
) -> tuple[Game, Ending]:
    """Continuations of one prompt after the other, each with a seed of its own, until a loss is found, or one
    of the size asked for could have been, or the budget is spent. mode: None for plain `generate`.
    """
    assisted, prompts = mode is not None, generation.prompts
    transformed = len(generation.processors(prompts[0], True)) > 0
    game = new_game(plan.alpha, plan.draft_tokens, transformed, assisted)
    for number in count():
        if not budget.left:
            break
        prompt, seed = prompts[number % len(prompts)], (plan.seed + number) % 2**64
        try:
            tokens, rounds = _continuation(generation, mode, prompt, seed)
        except ModeFailedError as error:
            return game, Ending(failure=str(error))
        budget.spend(len(tokens))
        game.add(generation, prompt, tokens, rounds)
        if game.over or power_reached(game, plan.detect, assisted=assisted):
            break
    return game, Ending()


def _continuation(
    generation: Generation, mode: Assistance | None, prompt: tuple[int, ...], seed: int
) -> tuple[tuple[int, ...], list[Round]]:
    if mode is None:
        return generation.plain(prompt, sampled=True, seed=seed), []
    with rounds_of(generation.model) as rounds:
        return generation.assisted(prompt, mode, sampled=True, seed=seed), rounds


def _subject(target: Loaded, assistant: Loaded | None) -> str:
    helped = f", assistant {assistant.name}" if assistant else ""
    return f"transformers {library().__version__}: {target.name}{helped}"


def _settings(plan: AssistedPlan) -> dict[str, str]:
    return {
        "precision": "fp32",
        "prompts": str(len(plan.prompts)),
        "temperature": f"{plan.temperature:g}",
        "top_p": f"{plan.top_p:g}",
        "top_k": str(plan.top_k),
        "max_tokens": str(plan.max_tokens),
        "draft_tokens": str(plan.draft_tokens),
        "alpha": f"{plan.alpha:g}",
        "detect": f"{plan.detect:g}",
        "tie_gap": f"{plan.tie_gap:g}",
        "seed": str(plan.seed),
    }
