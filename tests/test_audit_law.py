"""Tokens against the probabilities they should have had: faults are found, and named where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.audit.broken.views import with_params
from surefoot.audit.budget import Budget
from surefoot.audit.law import same_distribution
from surefoot.audit.report import Check
from surefoot.audit.subject import Subject
from surefoot.audit.suspicions import (
    ALONE,
    BEHIND,
    FIRST,
    LIKELIEST,
    LIKELY,
    NEIGHBOUR,
    PLACES,
    SUSPICIONS,
    THE_DRAFT,
    UNTRANSFORMED,
    Guess,
    Standing,
    observations,
    prob_of,
)
from surefoot.drafters.base import DraftRequest, Draw
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.loop import Loop, Outcome
from surefoot.models.toy import ToyModel, random_table
from surefoot.noise import race, token_key
from surefoot.request import Request
from surefoot.rounds import draw_for, judge
from surefoot.sampling import Candidates, History, target_probs
from surefoot.scheduler import Slot
from surefoot.types import Draft, SamplingParams, Verdict, VerifyMode
from tests.audited import Shortened, draft_model, plan, subject, target
from tests.harness import LETTERS, letters

MODES: tuple[VerifyMode, ...] = ("rejection", "block")


def audited(broken: Subject, *, tokens: int = 8000, temperature: float = 0.9, **more: Any) -> Check:
    return same_distribution(broken, plan(temperature, **more), Budget(tokens=tokens))


class Trusting(Loop):
    """Keeps whole drafts, whatever the target says of them."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        if not draft.tokens:
            return super()._judge(request, draft, logits)
        last = len(draft.tokens) - 1
        verdict = judge(request, Draft(), logits[last + 1 :], "rejection")
        return Verdict(tuple(range(last + 1)), verdict.next_token, bonus=True, tested=last + 1)


@pytest.mark.parametrize("mode", MODES)
def test_drafts_that_are_not_verified_pull_towards_the_draft(mode: VerifyMode) -> None:
    check = audited(subject(mode, loop=Trusting), params={"top_p": 1.0})
    assert check.verdict == "loss"
    assert check.facts["suspicion"] == THE_DRAFT
    assert check.facts["excess"] > 0.1
    assert check.tokens < 2000
    assert f"toward {THE_DRAFT}" in check.details[0]
    assert "the tokens don't have the target's probabilities" in check.summary


class TrustingTheThird(Loop):
    """Doesn't verify the third token of a draft."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        if len(verdict.path) == 2 < len(draft.tokens):
            after = replace(draft, tokens=(), probs=None)
            next_token = judge(request, after, logits[3:], "rejection").next_token
            return Verdict((0, 1, 2), next_token, bonus=len(draft.tokens) == 3, tested=3)
        return verdict


def test_a_fault_at_one_place_is_named_by_it() -> None:
    near = lambda: ModelDrafter(ToyModel(random_table(8, seed=1, spread=1.0), 8))  # noqa: E731
    check = audited(
        subject("rejection", near, loop=TrustingTheThird),
        tokens=20_000,
        temperature=1,
        params={"top_p": 1.0},
        draft_tokens=(4, 8),
    )
    assert check.verdict == "loss"
    assert check.facts["place"] == "draft 3"


class Untransformed(Loop):
    """Draws what follows a whole draft from the logits as they are."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        if len(verdict.path) < len(draft.tokens):
            return verdict
        raw = target_probs(logits[len(draft.tokens)], SamplingParams(temperature=1, top_p=1), History())
        key = token_key(request.seed, 7, len(request.tokens))
        return replace(verdict, next_token=race(key, raw.ids, raw.probs))


def test_a_bonus_before_the_transforms_is_told_from_the_draft() -> None:
    check = audited(
        subject("rejection", loop=Untransformed), temperature=0.5, params={"top_p": 1.0}, tokens=20_000
    )
    assert check.verdict == "loss"
    assert check.facts["suspicion"] == UNTRANSFORMED
    assert check.facts["place"] in ("after the draft", "anywhere")


def test_a_token_that_cannot_be_chosen_is_a_loss_at_once() -> None:
    check = audited(subject("rejection", loop=Untransformed), params={"top_p": 0.5})
    assert check.verdict == "loss"
    assert check.facts["differs"] == "impossible token"
    place = check.facts["place"]
    assert place in (BEHIND, ALONE, FIRST)
    assert check.tokens < 100
    assert f"was chosen {place} with probability 0 (0." in check.details[1]


class OneSeed(Loop):
    """All requests have the seed of the first."""

    def add(self, request: Request) -> None:
        request.seed = 1
        super().add(request)


def test_a_seed_shared_across_the_batch_is_seen_in_the_neighbours_tokens() -> None:
    check = audited(subject("rejection", loop=OneSeed))
    assert check.verdict == "loss"
    assert check.facts["suspicion"] == NEIGHBOUR
    assert check.tokens < 1500


class Greedy(Loop):
    """Takes the likeliest token where nothing was drafted or all was kept."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        row = logits[len(draft.tokens)]
        whole = len(verdict.path) == len(draft.tokens)
        return replace(verdict, next_token=int(row.argmax())) if whole else verdict


def test_a_greedy_bonus_is_seen_in_the_likeliest_token() -> None:
    check = audited(subject("block", loop=Greedy))
    assert check.verdict == "loss"
    assert (check.facts["suspicion"], check.facts["excess"] > 0.1) == (LIKELIEST, True)


def likeliest(request: Request, logits: NDArray[np.float32]) -> Verdict:
    return judge(with_params(request, temperature=0), Draft(), logits, "rejection")


class GreedyStart(Loop):
    """Takes the likeliest token behind the prompt."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        return super()._judge(request, draft, logits) if request.output else likeliest(request, logits)


class GreedyEnd(Loop):
    """Takes the likeliest token where no draft has room any more."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        return (
            likeliest(request, logits) if request.remaining == 1 else super()._judge(request, draft, logits)
        )


@pytest.mark.parametrize(("loop", "place"), [(GreedyStart, "at the start"), (GreedyEnd, "without a draft")])
def test_a_fault_in_one_token_of_each_answer_is_not_washed_out(loop: type[Loop], place: str) -> None:
    check = audited(subject("rejection", loop=loop, model=target(end=None)), params={"top_p": 1.0})
    assert check.verdict == "loss"
    assert (check.facts["suspicion"], check.facts["place"]) == (LIKELIEST, place)


@pytest.mark.parametrize("drafter", ["ngram", "model"])
@pytest.mark.parametrize("filtered", [{"top_p": 0.9}, {"top_k": 4}, {"min_p": 0.1}])
def test_a_filter_that_was_not_asked_for_is_found(filtered: dict[str, Any], drafter: str) -> None:
    class Filtered(Loop):
        def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
            return super()._judge(with_params(request, **filtered), draft, logits)

    check = audited(subject("rejection", drafter, loop=Filtered), temperature=1, params={"top_p": 1.0})
    assert check.verdict == "loss"
    assert check.facts["suspicion"] == LIKELY


class Argmax(Loop):
    """Drafts the likeliest token, and says that it was drawn."""

    def _draw_for(self, request: Request) -> Draw:
        draw = draw_for(request, self._mode, self._model.vocab_size)

        def broken(
            logits: NDArray[np.float32], drafted: Sequence[int]
        ) -> tuple[int, NDArray[np.float64] | None]:
            return int(logits.argmax()), draw(logits, drafted)[1]

        return broken


@pytest.mark.parametrize("mode", MODES)
def test_an_argmax_said_to_be_drawn_is_found_by_the_draw(mode: VerifyMode) -> None:
    check = audited(subject(mode, loop=Argmax))
    assert check.verdict == "loss"


class Trimming(ModelDrafter):
    """Drops tokens for what they are, after drawing them."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._cut(draft) for draft in super().propose(requests)]

    def _cut(self, draft: Draft) -> Draft:
        length = next((i for i, token in enumerate(draft.tokens) if token % 2), len(draft.tokens))
        return Draft(draft.tokens[:length], probs=None if draft.probs is None else draft.probs[:length])


@pytest.mark.parametrize("mode", MODES)
def test_drafts_cut_short_for_what_they_say_are_found_and_others_are_not(mode: VerifyMode) -> None:
    """Ending early is no fault: ending early because of the token is."""
    check = audited(subject(mode, lambda: Trimming(draft_model())))
    assert check.verdict == "loss"
    assert audited(subject(mode, lambda: Shortened(draft_model())), tokens=2500).verdict == "pass"


class Deaf(Loop):
    """Hears no end."""

    def add(self, request: Request) -> None:
        request._end_ids = frozenset()
        super().add(request)


class Greedier(Loop):
    """Takes three more tokens than were asked for."""

    def add(self, request: Request) -> None:
        request.params = replace(request.params, max_tokens=request.params.max_tokens + 3)
        super().add(request)


class Short(Loop):
    """Takes two less."""

    def add(self, request: Request) -> None:
        request.params = replace(request.params, max_tokens=request.params.max_tokens - 2)
        super().add(request)


class Misquoting(Loop):
    def _settle(self, slot: Slot[Request], draft: Draft, logits: NDArray[np.float32]) -> Outcome:
        outcome = super()._settle(slot, draft, logits)
        if slot.job.finished:
            slot.job.text += "!"
        return outcome


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (Deaf, "follow the end (stop)"),
        (Greedier, "3 tokens follow the end (length)"),
        (Short, "the output ends too early"),
    ],
)
def test_an_end_in_the_wrong_place_is_a_loss_at_once(loop: type[Loop], told: str) -> None:
    check = audited(subject("rejection", loop=loop))
    assert check.verdict == "loss"
    assert check.facts["differs"] == "end"
    assert told in "\n".join(check.details)


def test_a_text_that_is_not_the_tokens_is_a_loss() -> None:
    model = ToyModel(random_table(len(LETTERS), seed=3), len(LETTERS))
    check = audited(subject("block", "ngram", loop=Misquoting, model=model, tokenizer=letters()))
    assert check.verdict == "loss"
    assert "the text is '" in "\n".join(check.details)


class Failing(Loop):
    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        if len(draft.tokens) == 4:
            raise ValueError("broken rule")
        return super()._judge(request, draft, logits)


def test_an_exception_is_a_loss() -> None:
    check = audited(subject("rejection", loop=Failing))
    assert check.verdict == "loss"
    assert check.details[0] == "speculation failed where plain decoding didn't: ValueError: broken rule"


def test_what_every_audit_shows() -> None:
    check = audited(subject("block"), tokens=2500, params={"max_tokens": 6})
    by_place, by_suspicion = check.tables
    assert by_place.columns[0] == "place"
    assert [row[0] for row in by_place.rows][:2] == ["draft 1", "draft 2"]
    assert [row[0] for row in by_suspicion.rows] == list(SUSPICIONS)
    assert sum(int(row[1]) for row in by_place.rows) == by_suspicion.rows[0][1] == check.facts["draft_tokens"]
    (curve,) = check.curves
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1] == (check.tokens, check.facts["log10_e"])
    assert len(curve.points) <= 202
    assert curve.limit == pytest.approx(2)
    assert "e-value" in check.summary
    assert "would have been seen" in check.summary


def test_no_table_names_a_bias_that_cannot_be() -> None:
    check = audited(subject("block"), tokens=300)
    sizes = [value for table in check.tables for row in table.rows for value in row[3:5]]
    assert all(not isinstance(size, float) or math.isinf(size) or size <= 1 for size in sizes)
    assert check.verdict == "undecided"


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"presence_penalty": 1}]
)
@pytest.mark.parametrize("other", [{"min_tokens": 10}, {"logit_bias": {3: 2.0}}, {"ignore_eos": True}])
def test_the_transforms_are_those_of_the_engine(params: dict[str, Any], other: dict[str, Any]) -> None:
    check = audited(subject("rejection"), tokens=250, params={**params, **other})
    assert check.verdict != "loss", check.details


def test_padding_is_left_out() -> None:
    """A vocabulary larger than the tokenizer's: what is beyond can't be chosen, and counts nowhere."""
    model = ToyModel(random_table(len(LETTERS) + 9, seed=3, spread=0.5), len(LETTERS) + 9)
    check = audited(
        subject("block", "ngram", model=model, tokenizer=letters()),
        temperature=1,
        tokens=1500,
        params={"top_p": 1.0},
    )
    assert check.verdict != "loss"
    assert [row[0] for row in check.tables[1].rows] == [THE_DRAFT, LIKELIEST, LIKELY, NEIGHBOUR]


# Observations


@given(st.data())
def test_observations_are_fair_bets(data: st.DataObject) -> None:
    """Over every token there is: each set is hit with the probability that is said, and the same whatever
    the token."""
    size = data.draw(st.integers(2, 6))
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    target_row, draft_row = (np.array(data.draw(weights), np.float64) for _ in range(2))
    ids = np.flatnonzero(target_row)
    candidates = Candidates(ids, target_row[ids] / target_row.sum())
    logits = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)), np.float32)
    drawn = data.draw(st.sampled_from((None, draft_row / draft_row.sum())))
    guess = data.draw(st.sampled_from((None, Guess(int(draft_row.argmax()), drawn))))
    neighbour = data.draw(st.none() | st.integers(0, size - 1))
    hits: dict[str, float] = {}
    said: dict[str, set[float]] = {}
    for token in range(size):
        for seen in observations(token, candidates, logits, Standing(PLACES[0], guess), neighbour):
            hits[seen.suspicion] = hits.get(seen.suspicion, 0.0) + seen.hit * prob_of(candidates, token)
            said.setdefault(seen.suspicion, set()).add(seen.prob)
    assert (THE_DRAFT in said, NEIGHBOUR in said) == (guess is not None, neighbour is not None)
    for suspicion, probs in said.items():
        assert len(probs) == 1
        assert probs.pop() == pytest.approx(hits[suspicion])


def test_engines_for_the_audit_take_what_engine_takes() -> None:
    """The place for faults: an engine whose loop is another, and a model of one's own."""
    engine = subject("block", loop=Trusting).speculated(
        ModelDrafter(draft_model()), draft_tokens=2, max_rows=17, max_requests=3
    )
    assert isinstance(engine, Engine)
    assert target().vocab_size == engine.model.vocab_size
