"""A round, as the events that a trace has of it."""

from __future__ import annotations

from collections.abc import Iterator

from surefoot.loop import Round
from surefoot.trace import Event, peak_memory_bytes


def events_of(round_: Round, number: int, clock_began: float) -> Iterator[Event]:
    """One per request. number: of the round. clock_began: where the engine's clock is 0, in seconds on
    `time.perf_counter`'s."""
    peak = peak_memory_bytes()
    other = round_.ended - round_.began - round_.drafting - round_.verifying
    for outcome in round_.outcomes:
        request, draft, verdict = outcome.slot.job, outcome.draft, outcome.verdict
        yield Event(
            round=number,
            request=request.number,
            choice=request.choice,
            arrived=request.arrived,
            began=round_.began - clock_began,
            ended=round_.ended - clock_began,
            prompt_rows=outcome.slot.prompt_rows,
            rows=outcome.slot.prompt_rows or 1 + len(draft.tokens),
            draft_tokens=draft.tokens,
            parents=draft.parents,
            source=draft.source,
            tested=verdict.tested if verdict else 0,
            path=verdict.path if verdict else (),
            next_token=verdict.next_token if verdict else None,
            bonus=verdict is not None and verdict.bonus,
            emitted=outcome.emitted,
            finish_reason=request.finish_reason,
            draft_ms=1000 * round_.drafting,
            verify_ms=1000 * round_.verifying,
            other_ms=1000 * other,
            peak_memory_bytes=peak,
            cached_tokens=outcome.cached_tokens,
            preemptions=request.preemptions,
        )
