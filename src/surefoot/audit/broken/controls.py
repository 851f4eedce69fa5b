"""The faults that an audit has to find, each in an engine over toy models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot import verify
from surefoot.audit.broken import drafts, ends, models, noises, rules, verdicts, views
from surefoot.audit.broken.engines import Draws, Extends, Judges, Submits, engine_by, engine_over, engine_with
from surefoot.audit.broken.settings import EOS, Setting, dice, tables
from surefoot.audit.subject import Subject
from surefoot.engine import Engine
from surefoot.models.base import Model
from surefoot.request import Request
from surefoot.rounds import judge, judge_by
from surefoot.types import Draft, SamplingParams, Verdict, VerifyMode
from surefoot.verify import Rule

MakesEngine = Callable[[], type[Engine]]
"""Makes a broken engine: a new class for every audit, so that nothing is remembered from another."""


@dataclass(frozen=True)
class Control:
    """A fault, and the engine that has it.

    name: of the fault. mode: of verification. setting: the toy models, and what is asked of them.
    """

    name: str
    mode: VerifyMode
    setting: Setting
    engine: MakesEngine

    def subject(self) -> Subject:
        """The broken engine over its toy models."""
        return self.setting.subject(self.mode, self.engine())

    def twin(self) -> Subject:
        """The same without the fault."""
        return self.setting.subject(self.mode)


def _asking(**params: Any) -> SamplingParams:
    return replace(SamplingParams(temperature=1, top_p=1), **params)


_MODEL = Setting(tables())
_NGRAM = replace(_MODEL, drafter="ngram", audited=1500)
_LONG = replace(_MODEL, pair=tables(order=3))
_CROWD = replace(_MODEL, companions=(2, 4))
_COLD = replace(_MODEL, params=_asking(temperature=0.3), draft_tokens=(1, 2), audited=2000)
_NARROW = replace(_MODEL, params=_asking(top_p=0.7))
_FLOORED = replace(_MODEL, params=_asking(min_p=0.2))
_BIASED = replace(_MODEL, params=_asking(logit_bias={1: 2.0, 2: 2.0, 3: -2.0}))
_ENDING = replace(_MODEL, ends=True)
_HELD_BACK = replace(_ENDING, params=_asking(min_tokens=12, logit_bias={EOS: 2.0}))
_GREEDY = replace(_MODEL, pair=tables(order=6), params=_asking(temperature=0))
_PENALISED = Setting(
    tables(off=0.3),
    params=_asking(presence_penalty=2, frequency_penalty=1),
    draft_tokens=(5, 7),
    max_tokens=16,
)

# Laws under which a fault of the rules shows soon.
_DICE = Setting(dice((0.6, 0.3, 0.1), (0.2, 0.5, 0.3)))
_DICE_LONG = replace(_DICE, audited=1500)
_ONE_LACKING = Setting(dice((0.5, 0.3, 0.2), (0.2, 0.1, 0.7)), draft_tokens=(3, 5))
_TWO_LACKING = Setting(dice((0.06, 0.69, 0.25), (0.01, 0.24, 0.75)), draft_tokens=(3,), audited=1500)
_IMPOSSIBLE = Setting(dice((0.5, 0.5, 0.0), (0.05, 0.05, 0.9)), audited=3000)
_UNSURE = Setting(dice((0.3, 0.3, 0.4), (0.5, 0.3, 0.2)), draft_tokens=(3,), audited=1500)
_ALIKE = Setting(dice((0.46, 0.16, 0.38), (0.47, 0.5, 0.03)), draft_tokens=(2,), audited=3000)
_COIN = Setting(
    dice((0.5, 0.5), (0.95, 0.05)), draft_tokens=(6,), companions=(0,), max_tokens=64, audited=3000
)
_BENT = replace(_COIN, pair=dice((0.6, 0.4), (0.3, 0.7)), audited=6000)
_TWINS = Setting(dice((0.1, 0.2, 0.7), (0.28, 0.28, 0.44)), drafter="tree", draft_tokens=(2,))
_TREE = Setting(dice((0.77, 0.17, 0.06), (0.03, 0.09, 0.88)), drafter="tree", draft_tokens=(4, 6))
_FOUR = Setting(
    dice((0.07, 0.05, 0.34, 0.54), (0.08, 0.72, 0.04, 0.16)), drafter="tree", draft_tokens=(2,), audited=3000
)


def _fault(
    name: str,
    engine: MakesEngine,
    *,
    coupled: Setting | None = None,
    rejection: Setting | None = None,
    block: Setting | None = None,
) -> list[Control]:
    """A fault in the modes that can have it."""
    settings: dict[VerifyMode, Setting | None] = {"coupled": coupled, "rejection": rejection, "block": block}
    return [Control(name, mode, setting, engine) for mode, setting in settings.items() if setting]


def _drawing(draws: Draws) -> MakesEngine:
    return lambda: engine_with(draws=draws)


def _judging(judges: Judges) -> MakesEngine:
    return lambda: engine_with(judges=judges)


def _seeing(seen: Callable[[Request], Request]) -> MakesEngine:
    return _judging(views.judges_as(seen))


def _submitting(submits: Submits) -> MakesEngine:
    return lambda: engine_with(submits=submits)


def _extending(extends: Extends) -> MakesEngine:
    return lambda: engine_with(extends=extends)


def _by(rule: Rule) -> MakesEngine:
    return lambda: engine_by(rule)


def _over(wrapped: Callable[[Model], Model]) -> MakesEngine:
    return lambda: engine_over(wrapped)


def _raw_bonus(request: Request, draft: Draft, logits: NDArray[np.float32], mode: VerifyMode) -> Verdict:
    if not request.params.temperature:
        return judge(request, draft, logits, mode)
    rule = rules.bonus_from(lambda tokens: drafts.softmax(logits[-1]))
    return judge_by(rule, request, draft, logits)


_SAID_TO_BE_DRAWN = (
    _fault(
        "argmax draft with the full q",
        _drawing(drafts.argmax_said_to_be_drawn),
        rejection=_DICE_LONG,
        block=_DICE_LONG,
    ),
    _fault("raw q, warped draft", _drawing(drafts.raw_row_of_a_warped_draw), rejection=_COLD),
    _fault("warped q, raw draft", _drawing(drafts.warped_row_of_a_raw_draw), block=_COLD),
    _fault("another request's q", _submitting(drafts.rows_of_a_neighbour), rejection=_CROWD, block=_CROWD),
)
_TRANSFORMED = (
    _fault(
        "temperature on the draft's side alone",
        _seeing(views.without_temperature),
        coupled=_COLD,
        rejection=_COLD,
    ),
    _fault("top-p on the draft's side alone", _seeing(views.without_top_p), coupled=_NARROW, block=_NARROW),
    _fault("greedy at any temperature", _seeing(views.greedy), coupled=_MODEL, rejection=_NGRAM),
    _fault("bonus from raw logits", _judging(_raw_bonus), rejection=_COLD),
    _fault("min-p on the bonus alone", _judging(views.min_p_on_bonus), block=_FLOORED),
    _fault(
        "logit bias on the bonus alone", _judging(views.bias_on_bonus), coupled=_BIASED, rejection=_BIASED
    ),
    _fault(
        "penalties miss the draft", _seeing(views.without_drafted), coupled=_PENALISED, rejection=_PENALISED
    ),
    _fault(
        "penalties count rejected tokens",
        lambda: engine_with(judges=views.counts_rejected()),
        block=_PENALISED,
    ),
)
_RULES = (
    _fault("residual not normalised", _judging(noises.judges_without_normalising), rejection=_DICE),
    _fault("no residual", _by(rules.by_tokens(recovers=rules.recovers_from_target)), rejection=_DICE),
    _fault(
        "no residual, n-gram", _by(rules.by_tokens(recovers=rules.recovers_from_target)), rejection=_NGRAM
    ),
    _fault("first draft token unverified", _by(rules.first_token_unverified), rejection=_MODEL),
    _fault("first draft token unverified", _judging(verdicts.first_token_agreed), coupled=_NGRAM),
    _fault("accepts when p ≥ q", _by(rules.by_tokens(accepts=rules.accepts_if_likelier)), rejection=_MODEL),
    _fault(
        "accepts when p ≥ 0.1",
        _by(rules.by_tokens(accepts=rules.accepts_what_is_typical)),
        rejection=_ONE_LACKING,
    ),
    _fault("accepts at u = 0, in bfloat16", _by(noises.coarse_uniforms), rejection=_IMPOSSIBLE),
    _fault("one coin for a whole draft", _by(rules.one_uniform), rejection=_ONE_LACKING),
    _fault("block rule, early break", _by(rules.block_with(early_break=True)), block=_DICE_LONG),
    _fault(
        "token rule, block residual",
        _by(rules.by_tokens(recovers=rules.recovers_as_by_blocks)),
        rejection=_TWO_LACKING,
    ),
    _fault("first mismatch stands", _judging(verdicts.first_mismatch_kept), coupled=_MODEL),
    _fault(
        "bonus from the row before",
        _judging(verdicts.bonus_from_the_row_before),
        coupled=_NGRAM,
        block=_MODEL,
    ),
)
_TREES = (
    _fault("tree: siblings sorted", _submitting(drafts.rearranged(drafts.likeliest_first)), rejection=_TWINS),
    _fault("tree: sibling pruned", _submitting(drafts.rearranged(drafts.without_unlikely)), rejection=_TWINS),
    _fault(
        "tree: top-k as samples", _submitting(drafts.rearranged(drafts.likeliest_of_all)), rejection=_TWINS
    ),
    _fault(
        "tree: eldest's q in the residual", _by(rules.recursive(residual_by_eldest=True)), rejection=_FOUR
    ),
    _fault("tree: eldest's q in the ratio", _by(rules.recursive(ratio_by_eldest=True)), rejection=_TREE),
)
_LENGTHS = (
    _fault(
        "unlikely drawn token dropped",
        _submitting(drafts.trimmed(drafts.without_unlikely_token)),
        rejection=_UNSURE,
        block=_UNSURE,
    ),
    _fault("length: best prefix", _submitting(drafts.trimmed(drafts.best_prefix)), rejection=_ALIKE),
    _fault("length: best rate", _submitting(drafts.trimmed(drafts.best_rate)), rejection=_UNSURE),
)
_NOISE = (
    _fault(
        "noise by position",
        lambda: engine_with(draws=noises.draws_by_position, judges=noises.judges_by_position(verify.block)),
        block=_COIN,
    ),
    _fault(
        "noise by position, length by the dropped tail",
        lambda: noises.length_by_dropped_tail(verify.rejection, halt=1),
        rejection=_BENT,
    ),
    _fault("noise by round", noises.key_of_the_round, coupled=_MODEL),
    _fault("one seed for the batch", noises.one_seed_for_the_batch, coupled=_CROWD),
    _fault("seed without effect", noises.seed_of_its_own, coupled=_NGRAM),
)
_PASSES = (
    _fault("stale row after a rollback", _over(models.Stale), coupled=_LONG, rejection=_LONG),
    _fault("rows handed to another request", _over(models.LongestFirst), coupled=_CROWD),
    _fault("another kernel for more rows", _over(models.AnotherKernel), coupled=_GREEDY),
)
_ENDS = (
    _fault(
        "end inside a block ignored",
        _extending(ends.ends_at_the_last_alone),
        coupled=_ENDING,
        rejection=_ENDING,
    ),
    _fault(
        "minimum unknown inside a block", _seeing(views.ends_inside), coupled=_HELD_BACK, block=_HELD_BACK
    ),
    _fault("a token beyond the maximum", lambda: ends.OneTokenMore, coupled=_NGRAM, rejection=_NGRAM),
)

CONTROLS: tuple[Control, ...] = tuple(
    chain.from_iterable(
        (
            *_SAID_TO_BE_DRAWN,
            *_TRANSFORMED,
            *_RULES,
            *_TREES,
            *_LENGTHS,
            *_NOISE,
            *_PASSES,
            *_ENDS,
        )
    )
)
