"""Whole answers, plain and with each drafter, taking turns on the same loaded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spread import Spread

from surefoot.engine import Engine
from surefoot.results import Result
from surefoot.types import SamplingParams

PROMPTS = Path(__file__).parent / "prompts"
KINDS = ("edit", "code", "story")
PLAIN = "none"


def prompts_of(kind: str, count: int) -> list[str]:
    """The first `count` prompts of a kind."""
    return [path.read_text().removesuffix("\n") for path in sorted(PROMPTS.glob(f"{kind}-*.txt"))[:count]]


@dataclass(frozen=True, slots=True)
class Answers:
    """What one drafter made of one kind of prompt at one temperature, beside plain decoding.

    ratio: plain decoding time / this one's, over all prompts, the spread over repetitions. tokens_per_second:
    likewise, first tokens left out. equal: every answer has plain decoding's tokens. other_share: of the
    rounds' time, what neither model took.
    """

    kind: str
    temperature: float
    draft: str
    tokens: int
    equal: bool
    tokens_per_second: Spread
    ratio: Spread
    mean_acceptance_length: float
    acceptance_rate: float
    other_share: float


def compare(
    engines: Mapping[str, Engine],
    kind: str,
    temperature: float,
    *,
    count: int,
    max_tokens: int,
    repetitions: int,
) -> list[Answers]:
    """Answers `count` prompts of a kind with every engine, plain decoding among them, in turn."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1)
    runs: dict[str, list[list[Result]]] = {name: [] for name in engines}
    for repetition in range(repetitions):
        taken: dict[str, list[Result]] = {name: [] for name in engines}
        for prompt in prompts_of(kind, count):
            for name in _rotated(list(engines), repetition):
                taken[name] += engines[name].generate(prompt, params, chat=True)
        for name, results in taken.items():
            runs[name].append(results)
    return [_summed(kind, temperature, name, runs[name], runs[PLAIN]) for name in engines]


def _rotated(names: list[str], by: int) -> list[str]:
    return names[by % len(names) :] + names[: by % len(names)]


def _summed(
    kind: str,
    temperature: float,
    draft: str,
    runs: Sequence[Sequence[Result]],
    plain: Sequence[Sequence[Result]],
) -> Answers:
    everything = [result for results in runs for result in results]
    stats = [result.stats for result in everything]
    rounds = sum(s.rounds for s in stats)
    drafted = sum(s.draft_tokens for s in stats)
    other = sum(s.other_ms for s in stats)
    whole = other + sum(s.draft_ms + s.verify_ms for s in stats)
    return Answers(
        kind=kind,
        temperature=temperature,
        draft=draft,
        tokens=sum(len(result.token_ids) for result in runs[0]),
        equal=all(
            one.token_ids == other.token_ids
            for results in runs
            for one, other in zip(results, plain[0], strict=True)
        ),
        tokens_per_second=Spread.of([_speed(results) for results in runs]),
        ratio=Spread.of([_speed(one) / _speed(other) for one, other in zip(runs, plain, strict=True)]),
        mean_acceptance_length=sum(s.mean_acceptance_length * s.rounds for s in stats) / max(rounds, 1),
        acceptance_rate=sum(s.accepted_tokens for s in stats) / max(drafted, 1),
        other_share=other / max(whole, 1e-9),
    )


def _speed(results: Sequence[Result]) -> float:
    """Tokens a second after each answer's first emission, of all answers together."""
    tokens = sum(result.stats.tokens_per_second * result.stats.decode_ms for result in results)
    return tokens / max(sum(result.stats.decode_ms for result in results), 1e-9)
