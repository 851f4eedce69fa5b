"""Tokens against plain decoding's: every kind of difference is found, and explained by what made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot import loop, rounds
from surefoot.audit.budget import Budget
from surefoot.audit.equality import same_tokens
from surefoot.audit.report import Check
from surefoot.audit.subject import Subject
from surefoot.drafters.base import DraftRequest
from surefoot.loop import Loop, Outcome
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.request import Request
from surefoot.sampling import TopLogprobs
from surefoot.scheduler import Slot
from surefoot.types import Draft, Verdict
from tests.audited import VOCAB_SIZE, Trusting, plan, subject, target
from tests.harness import LETTERS, Scripted, letters


class Crowded(ToyModel):
    """Adds a little noise to the logits, another for every number of rows."""

    def __init__(self, size: float) -> None:
        super().__init__(random_table(VOCAB_SIZE, seed=1, spread=1.5), VOCAB_SIZE)
        self._size = size

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        rows = sum(len(segment.tokens) for segment in batch)
        noise = np.random.default_rng(rows).normal(size=VOCAB_SIZE)
        return np.asarray(super().forward(batch) + self._size * noise * (rows > 1), np.float32)


def audited(broken: Subject, *, tokens: int = 6000, temperature: float = 0.9, **more: Any) -> Check:
    return same_tokens(broken, plan(temperature, **more), Budget(tokens=tokens))


@pytest.mark.parametrize("temperature", [0, 0.9])
@pytest.mark.parametrize("drafter", ["model", "tree"])
def test_a_wrong_choice_is_told_from_wrong_logits(temperature: float, drafter: str) -> None:
    check = audited(subject("coupled", drafter, loop=Trusting), temperature=temperature)
    assert check.verdict == "loss"
    assert check.facts["logits"] == "same"
    assert check.facts["repeated"] is True
    assert check.facts["max_logit_difference"] == 0
    told = "\n".join(check.details)
    assert f"plain decoding chose token {check.facts['plain']}" in told
    assert f"speculation chose token {check.facts['speculated']}" in told
    assert "the choice differed" in told
    assert "of a pass over" in told


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_logits_that_depend_on_their_company_are_told_from_a_wrong_choice(temperature: float) -> None:
    check = audited(subject("coupled", model=Crowded(0.5)), temperature=temperature)
    assert check.verdict == "loss"
    assert check.facts["logits"] == "moved"
    assert check.facts["max_logit_difference"] > 0.01
    assert "the pass differed, before any choice" in "\n".join(check.details)


def test_moved_logits_are_reported_even_where_no_choice_differs() -> None:
    check = audited(subject("coupled", model=Crowded(1e-6)), tokens=1000)
    assert check.verdict == "pass"
    assert check.facts["moved_logprobs"] > 0
    assert "had another log-probability" in check.details[0]
    still = audited(subject("coupled"), tokens=1000)
    assert still.facts["moved_logprobs"] == 0
    assert not still.details


@pytest.mark.parametrize("wrong", [0.0, None])
def test_log_probabilities_that_are_wrong_or_missing_are_a_loss(
    wrong: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As engines have reported them for accepted tokens (cases.md H1), their choices being right."""
    right = rounds.logprobs_of

    def reported(
        request: Request, emitted: Sequence[int], verdict: Verdict, logits: NDArray[np.float32]
    ) -> tuple[TopLogprobs, ...]:
        found = right(request, emitted, verdict, logits)
        if not verdict.path:
            return found
        return () if wrong is None else tuple(replace(entry, chosen=wrong) for entry in found)

    monkeypatch.setattr(loop, "logprobs_of", reported)
    check = audited(subject("coupled"), temperature=1, tokens=1000)
    assert (check.verdict, check.facts["differs"]) == ("loss", "log-probability")
    assert "log-probability differs" in "\n".join(check.details)


def test_the_first_difference_is_where_it_says() -> None:
    """The prefix, the tokens and their probabilities, checked by hand: the draft says 7 after the prompt's
    answer has begun, and the loop believes it."""
    said = lambda tokens, budget: Draft((7,))  # noqa: E731
    check = audited(subject("coupled", lambda: Scripted(said), loop=Trusting), temperature=0)
    prompt = plan().prompts[check.facts["prompt"]]
    table = random_table(VOCAB_SIZE, seed=1, spread=1.5)
    tokens = list(prompt)
    while True:  # the first token that isn't 7, behind the one that no draft can reach
        best = int(np.argmax(np.asarray(table(tuple(tokens)))))
        if len(tokens) > len(prompt) and best != 7:
            break
        tokens.append(best)
    assert check.facts["index"] == len(tokens) - len(prompt)
    assert (check.facts["plain"], check.facts["speculated"]) == (best, 7)
    row = np.exp(np.asarray(table(tuple(tokens)), np.float64))
    told = next(line for line in check.details if line.startswith("output token"))
    assert f"after {tokens}:" in told
    assert f"chose token {best} with probability 1 ({row[best] / row.sum():.6g} before" in told
    assert f"chose token 7 with probability 0 ({row[7] / row.sum():.6g} before" in told


def test_the_row_of_a_difference_is_described() -> None:
    check = audited(
        subject("coupled", lambda: Scripted(lambda tokens, budget: Draft((7,) * budget)), loop=Trusting),
        temperature=0,
        draft_tokens=(4,),
        companions=(1,),
        chunks=(64,),
    )
    told = "\n".join(check.details)
    assert "4 draft tokens, 1 companion, passes of at most 64 rows" in told
    assert "of the 10 of a pass over 2 sequences, which verified 4 draft tokens of its own" in told


class Failing(Loop):
    """Can't verify a draft of four tokens."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        if len(draft.tokens) == 4:
            raise RuntimeError("a\nbroken rule")
        return super()._judge(request, draft, logits)


def test_an_exception_is_a_loss() -> None:
    check = audited(subject("coupled", loop=Failing))
    assert check.verdict == "loss"
    assert check.details[0] == ("speculation failed where plain decoding didn't: RuntimeError: a broken rule")
    assert check.facts["differs"] == "exception"


class Unreliable(Loop):
    """Believes one draft in the life of the process."""

    calls = count()

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        if draft.tokens and not verdict.path and next(self.calls) == 30:
            return replace(verdict, path=(0,))
        return verdict


def test_a_difference_that_does_not_repeat_is_said_to_be_one() -> None:
    check = audited(subject("coupled", loop=Unreliable))
    assert check.verdict == "loss"
    assert check.facts["repeated"] is False
    assert "run again, it didn't repeat" in check.details


class Short(Loop):
    """Takes one token less than was asked for, once a draft was kept."""

    def _settle(self, slot: Slot[Request], draft: Draft, logits: NDArray[np.float32]) -> Outcome:
        request = slot.job
        if len(request.output) > 4:
            request.params = replace(request.params, max_tokens=request.params.max_tokens - 1)
        return super()._settle(slot, draft, logits)


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_an_output_that_ends_too_early_is_found(temperature: float) -> None:
    check = audited(subject("coupled", loop=Short), temperature=temperature)
    assert check.verdict == "loss"
    assert check.facts["speculated"] is None
    assert "speculation had ended" in "\n".join(check.details)


class Deaf(Loop):
    """Goes on after an end, up to the most tokens that were asked for."""

    def add(self, request: Request) -> None:
        request._end_ids = frozenset()
        super().add(request)


def test_an_output_that_goes_on_after_its_end_is_found() -> None:
    check = audited(subject("coupled", loop=Deaf))
    assert check.verdict == "loss"
    assert check.facts["plain"] is None
    assert "plain decoding had ended" in "\n".join(check.details)


class Misquoting(Loop):
    """Says another reason for the end, or another text."""

    what, value = "finish_reason", "length"

    def _settle(self, slot: Slot[Request], draft: Draft, logits: NDArray[np.float32]) -> Outcome:
        outcome = super()._settle(slot, draft, logits)
        if slot.job.finished:
            setattr(slot.job, self.what, self.value)
        return outcome


class Mumbling(Misquoting):
    what, value = "text", "mumble"


@pytest.mark.parametrize(("loop", "what"), [(Misquoting, "finish reason"), (Mumbling, "text")])
def test_the_right_tokens_with_a_wrong_end_or_text_are_found(loop: type[Loop], what: str) -> None:
    model = ToyModel(random_table(len(LETTERS), seed=3), len(LETTERS))
    check = audited(subject("coupled", "ngram", loop=loop, model=model, tokenizer=letters(eos="Z")))
    assert check.verdict == "loss"
    assert check.facts["differs"] == what
    assert check.details[-1].startswith(f"the {what} differs: plain decoding's is")


def test_text_is_shown_where_there_is_a_tokenizer() -> None:
    model = ToyModel(random_table(len(LETTERS), seed=3), len(LETTERS))
    said = lambda tokens, budget: Draft((2,) * budget)  # noqa: E731
    asked = subject("coupled", lambda: Scripted(said), loop=Trusting, model=model, tokenizer=letters())
    check = audited(asked)
    assert "speculation chose 'c' (token 2)" in "\n".join(check.details)


class Late(Loop):
    """Wrong only in large batches, with long drafts: where an audit of a single setting wouldn't look."""

    def _judge(self, request: Request, draft: Draft, logits: NDArray[np.float32]) -> Verdict:
        verdict = super()._judge(request, draft, logits)
        rare = len(self) > 7 and len(draft.tokens) >= 8 and not verdict.path
        return replace(verdict, path=(0,)) if rare else verdict


def test_a_fault_of_one_combination_is_found() -> None:
    check = audited(subject("coupled", loop=Late))
    assert check.verdict == "loss"
    assert (check.facts["companions"], check.facts["draft_tokens"]) == (7, 8)


def test_requests_that_ask_for_alternatives_can_be_audited() -> None:
    check = audited(subject("coupled", model=target(end=None)), tokens=800, params={"logprobs": 2})
    assert check.verdict == "pass"


def test_a_drafter_that_remembers_is_made_anew_for_every_engine() -> None:
    made: list[Scripted] = []

    def drafter() -> Scripted:
        made.append(Scripted(lambda tokens, budget: Draft((1,))))
        return made[-1]

    check = audited(subject("coupled", drafter), tokens=1000)
    assert len(made) >= check.facts["settings"] > 1
    assert not any(one.open for one in made)


def test_requests_differ_in_their_seeds_and_share_the_rest() -> None:
    asked: list[DraftRequest] = []

    class Asking(Scripted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            asked.extend(requests)
            return super().propose(requests)

    check = audited(subject("coupled", lambda: Asking(lambda tokens, budget: Draft())), tokens=1000)
    starts = {tuple(request.tokens[:2]) for request in asked if len(request.tokens) > 2}
    assert {prompt[:2] for prompt in plan().prompts if len(prompt) > 1} <= starts
    assert check.facts["different_requests"] > len(plan().prompts)
