"""What happened, round by round: the only source of every number shown anywhere.

A trace is JSON lines, one `Event` per round and request, in the order of the rounds; the fields are
`Event`'s, tuples as lists.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from surefoot.types import FinishReason, SurefootError


@dataclass(frozen=True, slots=True)
class Event:
    """One request's part in one round. Times are seconds on the engine's clock.

    round: numbers the engine's passes. request, choice: whose tokens. arrived: when the request came.
    began, ended: the round. prompt_rows: prompt tokens computed; 0 in a round that verifies, which is every
    round after the prompt. A request that was preempted computes its output so far anew, which counts as
    prompt. rows: the request's rows in the target's pass. cached_tokens: in the first event of a choice, the
    prompt tokens that others had computed. preemptions: of the choice so far.

    draft_tokens, parents, source: the draft, as `Draft` has it. path: the accepted ones, by index into the
    draft. tested: as in `Verdict`. next_token: what follows them, *bonus* or recovered; None while the
    prompt is not through. These say what verification found. emitted: the tokens delivered, fewer when an
    end or a limit cut the block. finish_reason: set in the last event of a choice.

    draft_ms, verify_ms, other_ms: of the *whole* round, the same in every event of it, since a request waits
    for all of it: in the drafter, in the target's pass, and the rest, choosing tokens for either included.
    peak_memory_bytes: of the process, so far.
    """

    round: int
    request: int
    choice: int
    arrived: float
    began: float
    ended: float
    prompt_rows: int
    rows: int
    draft_tokens: tuple[int, ...]
    parents: tuple[int, ...] | None
    source: str
    tested: int
    path: tuple[int, ...]
    next_token: int | None
    bonus: bool
    emitted: tuple[int, ...]
    finish_reason: FinishReason | None
    draft_ms: float
    verify_ms: float
    other_ms: float
    peak_memory_bytes: int
    cached_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of one request, or of any other set of events.

    rounds: verifications, one per round and request; the prompt's passes are none. draft_tokens,
    tested_tokens, accepted_tokens: over those rounds, before any cut. mean_acceptance_length: tokens emitted
    per verification, the recovered or bonus token included (plain decoding = 1.0; 0 without rounds).
    acceptance_rate: accepted / draft tokens (0 without drafts); accepted / tested is the α of the formulas.
    acceptance_histogram: how many rounds with a draft accepted 0, 1, … tokens of it, up to the longest draft
    (one 0 without drafts).

    ttft_ms: from arrival to a choice's first token, the mean over the choices. decode_ms: from the first
    token to the last. draft_ms, verify_ms, other_ms: of the rounds counted above, each round once however
    many requests shared it. tokens_per_second: tokens after each choice's first emission / decode_ms (0 when
    there are none).
    """

    rounds: int
    draft_tokens: int
    tested_tokens: int
    accepted_tokens: int
    mean_acceptance_length: float
    acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    ttft_ms: float
    decode_ms: float
    draft_ms: float
    verify_ms: float
    other_ms: float
    tokens_per_second: float
    peak_memory_bytes: int


def stats(events: Iterable[Event]) -> Stats:
    """Sums up the events of one engine, of one request of it or of several."""
    events = list(events)
    verified = [event for event in events if not event.prompt_rows]
    shared = {event.round: event for event in verified}.values()
    emitting = [event for event in events if event.emitted]
    first: dict[tuple[int, int], Event] = {}
    for event in emitting:
        first.setdefault((event.request, event.choice), event)
    began = min((event.ended for event in emitting), default=0.0)
    decode_s = max((event.ended for event in emitting), default=0.0) - began
    later = sum(len(event.emitted) for event in emitting) - sum(
        len(event.emitted) for event in first.values()
    )
    draft_tokens = sum(len(event.draft_tokens) for event in verified)
    accepted = sum(len(event.path) for event in verified)
    return Stats(
        rounds=len(verified),
        draft_tokens=draft_tokens,
        tested_tokens=sum(event.tested for event in verified),
        accepted_tokens=accepted,
        mean_acceptance_length=_ratio(sum(len(event.emitted) for event in verified), len(verified)),
        acceptance_rate=_ratio(accepted, draft_tokens),
        acceptance_histogram=_histogram(verified),
        ttft_ms=1000 * _ratio(sum(event.ended - event.arrived for event in first.values()), len(first)),
        decode_ms=1000 * decode_s,
        draft_ms=sum(event.draft_ms for event in shared),
        verify_ms=sum(event.verify_ms for event in shared),
        other_ms=sum(event.other_ms for event in shared),
        tokens_per_second=_ratio(later, decode_s),
        peak_memory_bytes=max((event.peak_memory_bytes for event in events), default=0),
    )


def _histogram(verified: Sequence[Event]) -> tuple[int, ...]:
    accepted = Counter(len(event.path) for event in verified if event.draft_tokens)
    longest = max((len(event.draft_tokens) for event in verified), default=0)
    return tuple(accepted[length] for length in range(longest + 1))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def peak_memory_bytes() -> int:
    """The most memory this process has held so far; 0 on Windows, which keeps no such record."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Writer:
    """Appends events to a file that it begins anew. Raises SurefootError when it can't be written."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            self._file = self._path.open("w", buffering=1, encoding="utf-8")
        except OSError as error:
            raise SurefootError(f"trace: {path} can't be written: {error.strerror}") from error

    def __call__(self, event: Event) -> None:
        line = {field.name: getattr(event, field.name) for field in fields(event)}
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:  # it tries once more what couldn't be written
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> SurefootError:
        return SurefootError(f"trace: {self._path} can't be written: {error.strerror}")

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | Path) -> list[Event]:
    """The events of a trace file. Raises SurefootError naming the line that is no event."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SurefootError(f"trace: {path} can't be read: {error.strerror}") from error
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_parse(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SurefootError(f"trace: line {number} of {path} is no event: {error}") from error
    return events


def _parse(line: dict[str, Any]) -> Event:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in line.items()}
    return Event(**values)
