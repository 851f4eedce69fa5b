"""Requests that come and go while memory is short, and what each would have been given alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.engine import Engine
from surefoot.models.base import Model
from surefoot.results import Result
from surefoot.types import Draft, SamplingParams
from tests.harness import Scripted, bushy

DRAFTERS = ("none", "ngram", "suffix", "half right", "wrong", "tree", "model")


@dataclass(frozen=True)
class Guest:
    """A request. arrives, leaves: in which round it comes, and in which it is cancelled, None for never.
    draft_tokens: its own, None for the engine's."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    leaves: int | None
    draft_tokens: int | None


@st.composite
def guests(draw: st.DrawFn, vocab_size: int, longest: int, most: int = 40) -> list[Guest]:
    """Prompts are a page or more of one of two beginnings, often, and an end of their own; a few are alike.
    longest, most: tokens of a prompt and of an output."""
    token = st.integers(0, vocab_size - 1)
    beginnings = draw(
        st.lists(st.lists(token, min_size=longest // 2, max_size=longest - 6), min_size=1, max_size=2)
    )
    found = []
    for number in range(draw(st.sampled_from((1, 4, 6, 8)))):
        beginning = draw(st.sampled_from(beginnings))
        cut = draw(st.integers(0, len(beginning)))
        own = draw(st.lists(token, min_size=1, max_size=5))
        params = SamplingParams(
            seed=number,
            max_tokens=draw(st.sampled_from((1, 5, most // 2, most, most))),
            temperature=draw(st.sampled_from((0.0, 1.0, 1.5))),
            n=draw(st.sampled_from((1, 1, 1, 2, 3))),
            logprobs=draw(st.sampled_from((None, 1))),
            prompt_logprobs=draw(st.sampled_from((None, None, None, 1))),
            frequency_penalty=draw(st.sampled_from((0.0, 0.5))),
        )
        found.append(
            Guest(
                (*beginning[:cut], *own),
                params,
                arrives=draw(st.sampled_from((0, 0, 1, 2, 5, 9, 30))),
                leaves=draw(st.none() | st.none() | st.integers(1, 40)),
                draft_tokens=draw(st.sampled_from((None, None, None, 0, 2))),
            )
        )
    return found


def drafter_for(kind: str, draft_model: Callable[[], Model], vocab_size: int) -> Drafter | None:
    """Whoever drafts, a function of the committed tokens alone."""
    if kind == "none":
        return None
    if kind == "ngram":
        return NgramDrafter()
    if kind == "suffix":
        return SuffixDrafter()
    if kind == "model":
        return ModelDrafter(draft_model(), max_rows=9)

    def script(tokens: Sequence[int], budget: int) -> Draft:
        if kind == "wrong":
            return Draft((tokens[0],) * budget, source="wrong")
        return Draft(tuple(tokens[-budget:]), source=kind)  # repeats itself: right now and then

    return Scripted(bushy(script, vocab_size) if kind == "tree" else script)


def alone(engine: Callable[[], Engine], guest: Guest) -> Result:
    """What the guest is given by an engine that has nobody else."""
    params = guest.params
    if guest.draft_tokens is None:
        with engine() as own:
            return own.generate(guest.prompt, params)[0]
    with engine() as own:
        limit = own.max_draft_tokens
        number = own.add(guest.prompt, params, draft_tokens=min(guest.draft_tokens, limit))
        return serve(own, {number: guest})[number]


def serve(engine: Engine, present: dict[int, Guest]) -> dict[int, Result]:
    """Runs an engine dry; the results by number."""
    results = {}
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error:
                raise chunk.error
            if chunk.result:
                results[chunk.request] = chunk.result
    return {number: results[number] for number in present}


def crowd(engine: Engine, invited: Sequence[Guest], check: Callable[[], None]) -> dict[int, Result]:
    """Serves guests as they come and go. check: called after every round. Returns the results of those that
    stayed, by their place in the list; every one of these has a result."""
    results: dict[int, Result] = {}
    numbers: dict[int, int] = {}
    round_ = 0
    while engine.has_work or round_ <= 40:
        for place, guest in enumerate(invited):
            if guest.arrives == round_:
                drafted = guest.draft_tokens
                drafted = None if drafted is None else min(drafted, engine.max_draft_tokens)
                numbers[engine.add(guest.prompt, guest.params, draft_tokens=drafted)] = place
            if guest.leaves is not None and guest.leaves + guest.arrives == round_:
                for number in [n for n, p in numbers.items() if p == place]:
                    engine.abort(number)
        for chunk in engine.step():
            if chunk.error:
                raise chunk.error
            if chunk.result:
                results[numbers[chunk.request]] = chunk.result
        check()
        round_ += 1
        assert round_ < 5000, "no progress"
    staying = {place for place, guest in enumerate(invited) if guest.leaves is None}
    assert staying <= set(results)
    return results


def seen(result: Result) -> object:
    """Everything that a caller sees of a result, comparable to the bit, but what says how it was computed."""
    return [
        (
            choice.token_ids,
            choice.text,
            choice.finish_reason,
            [(entry.chosen, entry.ids.tolist(), entry.values.tolist()) for entry in choice.logprobs or ()],
        )
        for choice in result.choices
    ] + [
        [
            entry and (entry.chosen, entry.ids.tolist(), entry.values.tolist())
            for entry in result.prompt_logprobs or ()
        ],
        replace(result.usage, cached_tokens=0),
    ]
