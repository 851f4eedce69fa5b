"""`assert_drafter`: does a drafter keep its contract, whatever becomes of its drafts?"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from surefoot.testing.drawing import ALPHA, BUDGET, drawn_otherwise
from surefoot.testing.play import Ask, MakeDrafter, Play
from surefoot.types import VerifyMode

ROUNDS = 3
MODES: tuple[VerifyMode, ...] = ("coupled", "rejection")  # to a drafter, block is as rejection

Prompts = tuple[Sequence[int], Sequence[int]]
Script = Callable[[Play, Prompts], None]


def assert_drafter(
    make_drafter: MakeDrafter,
    *,
    vocab_size: int,
    prompts: Prompts | None = None,
    runs: int = 2000,
    learns: bool = False,
) -> None:
    """Raises AssertionError, with what was done to the drafter, unless it keeps the contract of
    `drafters.base.Drafter`.

    make_drafter: makes a new drafter at each call; several live at once, and if they share a model, their
    sequences have different numbers. vocab_size: of the target. prompts: two, as token ids, for a drafter
    that has nothing to say about tokens at random.

    Short scripts come first, then longer ones: budgets of 1, 2 and 5; rejection at each index and full
    acceptance, several rounds of it; tokens that come without a draft; requests side by side and in any
    order; stop and a sequence number used again. After each the drafts must be as long as allowed and well
    formed, their tokens and probs those that `draw` gave if it was called, and equal to those of a new
    drafter that was started with the same tokens. A drafter that draws by itself must have the same to draw
    from. The tokens may not come from other probabilities than the returned ones, either, given that they
    come: `runs` drafts after each of two prompts show it. A right drafter fails with probability 1e-6 at
    most; in 2000 runs nine wrong ones in ten show that have .12 of the probability in a wrong place.

    learns: for a drafter whose drafts depend on more than the tokens of their own request on purpose, such
    as other requests or what became of earlier drafts: they are compared with no new drafter's then.

    Raises ValueError or TypeError for arguments that make no sense.
    """
    if not callable(make_drafter):
        raise TypeError(f"make_drafter: {make_drafter!r} can't be called; give a function that makes one")
    if vocab_size < 2:
        raise ValueError(f"vocab_size: {vocab_size}; needed are 2 tokens or more")
    if runs < 1:
        raise ValueError(f"runs: {runs}; needed is 1 or more")
    chosen = _prompts(vocab_size) if prompts is None else prompts
    if len(chosen) != 2 or not all(len(prompt) for prompt in chosen):
        raise ValueError(f"prompts: {chosen}; needed are two, of a token or more each")
    drafted = 0
    for script in _scripts():
        for mode in MODES:
            play = Play(make_drafter, mode, vocab_size, learns)
            script(play, chosen)
            play.end()
            drafted += play.drafted
    name = f"drafter {make_drafter().name}"
    if not drafted:
        raise AssertionError(
            f"{name}: it drafted nothing, so nothing was shown; give prompts it has drafts for"
        )
    for prompt in chosen:
        try:
            wrong = drawn_otherwise(make_drafter, prompt, vocab_size, runs, math.log(ALPHA / (2 * BUDGET)))
        except Exception as error:
            wrong = f"it raised {type(error).__name__}: {error}"
        if wrong is not None:
            raise AssertionError(f"{name}: after the prompt {list(prompt)}, {wrong}")


def _prompts(vocab_size: int) -> Prompts:
    """Two that repeat themselves, each in its own way."""
    chance = random.Random(0)
    one, other = ([chance.randrange(vocab_size) for _ in range(size)] for size in (4, 3))
    return [*one, *one, one[0]], [*other, *other, other[0]]


def _scripts() -> list[Script]:
    """From short to long."""
    return [
        *(_again_and_again(budget, accepted) for budget in (1, 2, 5) for accepted in range(budget + 1)),
        _tokens_without_drafts,
        _stopped_before_it_was_asked,
        *(_a_number_again(accepted) for accepted in (None, 0, 2, 5)),
        _a_twin,
        _side_by_side,
    ]


def _again_and_again(budget: int, accepted: int) -> Script:
    def script(play: Play, prompts: Prompts) -> None:
        play.start(0, prompts[0])
        for _ in range(ROUNDS):
            play.round(Ask(0, budget, accepted))
        play.round(Ask(0, 5, None))

    return script


def _tokens_without_drafts(play: Play, prompts: Prompts) -> None:
    play.start(0, prompts[0])
    play.decode(0, 2)
    for accepted in (1, 3, 0):
        play.round(Ask(0, 3, accepted))
        play.decode(0, 4)
    play.round(Ask(0, 3, None))


def _stopped_before_it_was_asked(play: Play, prompts: Prompts) -> None:
    for prompt in prompts:
        play.start(0, prompt)
        play.stop(0)
    play.start(0, prompts[0])
    play.round(Ask(0, 5, None))


def _a_number_again(accepted: int | None) -> Script:
    """Sequences that follow each other under one number; None stops each with a draft under way."""

    def script(play: Play, prompts: Prompts) -> None:
        for prompt in (*prompts, prompts[0][:1], prompts[0]):
            play.start(0, prompt)
            play.round(Ask(0, 5, accepted))
            if accepted is not None:
                play.round(Ask(0, 2, accepted))
            play.stop(0)

    return script


def _a_twin(play: Play, prompts: Prompts) -> None:
    """Two requests with one prompt, whose drafts fare differently."""
    for seq in (0, 1):
        play.start(seq, prompts[0])
    for _ in range(ROUNDS):
        play.round(Ask(0, 3, 0), Ask(1, 3, 3))
    play.stop(0)
    play.round(Ask(1, 3, None))


def _side_by_side(play: Play, prompts: Prompts) -> None:
    """Requests that come and go, together and alone, in any order."""
    play.start(0, prompts[0])
    play.start(1, prompts[1])
    play.round(Ask(0, 3, 1), Ask(1, 3, 0))
    play.round(Ask(1, 3, 3), Ask(0, 2, 0))
    play.round(Ask(1, 5, 2))
    play.start(2, prompts[1][:2])
    play.round(Ask(2, 1, 1), Ask(0, 5, 5), Ask(1, 2, 0))
    play.stop(1)
    play.round(Ask(0, 3, 3), Ask(2, 3, 0))
    play.start(1, prompts[0][1:])
    play.round(Ask(2, 3, 2), Ask(1, 3, 1), Ask(0, 3, 0))
    play.stop(0)
    play.round(Ask(1, 5, None), Ask(2, 5, None))
