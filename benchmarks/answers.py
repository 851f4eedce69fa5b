"""Whole answers, plain and with each drafter, ours and llama.cpp's, taking turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spread import Spread
from writers import PEER, Answer, Writer

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

    ratio: tokens a second / those of our plain decoding, over all prompts, the spread over repetitions.
    tokens_per_second: likewise, first tokens left out. equal: every answer has plain decoding's tokens; of
    llama.cpp's drafters, those of its own, which is held against ours itself. mean_acceptance_length: of
    llama.cpp's drafters from its count of accepted tokens, which may go beyond the answer's end.
    other_share: of the rounds' time, what neither model took; None where nobody says.
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
    other_share: float | None


def compare(
    writers: Mapping[str, Writer],
    kind: str,
    temperature: float,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    repetitions: int,
) -> list[Answers]:
    """Answers prompts of a kind, as token ids, with every writer, our plain decoding among them, in turn."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1)
    runs: dict[str, list[list[Answer]]] = {name: [] for name in writers}
    for repetition in range(repetitions):
        taken: dict[str, list[Answer]] = {name: [] for name in writers}
        for prompt in prompts:
            for name in _rotated(list(writers), repetition):
                taken[name].append(writers[name].write(prompt, params))
        for name, answers in taken.items():
            runs[name].append(answers)
    return [_summed(kind, temperature, name, runs) for name in writers]


def _rotated(names: list[str], by: int) -> list[str]:
    return names[by % len(names) :] + names[: by % len(names)]


def _summed(
    kind: str, temperature: float, draft: str, runs: Mapping[str, Sequence[Sequence[Answer]]]
) -> Answers:
    mine, plain = runs[draft], runs[PLAIN]
    expected = runs[PEER if draft.startswith(f"{PEER} ") else PLAIN][0]
    everything = [answer for answers in mine for answer in answers]
    rounds = sum(answer.rounds for answer in everything)
    drafted = sum(answer.drafted for answer in everything)
    whole = sum(answer.rounds_ms for answer in everything)
    return Answers(
        kind=kind,
        temperature=temperature,
        draft=draft,
        tokens=sum(len(answer.token_ids) for answer in mine[0]),
        equal=all(
            one.token_ids == other.token_ids
            for answers in mine
            for one, other in zip(answers, expected, strict=True)
        ),
        tokens_per_second=Spread.of([_speed(answers) for answers in mine]),
        ratio=Spread.of([_speed(one) / _speed(other) for one, other in zip(mine, plain, strict=True)]),
        mean_acceptance_length=sum(answer.timed_tokens for answer in everything) / max(rounds, 1),
        acceptance_rate=sum(answer.accepted for answer in everything) / max(drafted, 1),
        other_share=sum(answer.other_ms for answer in everything) / whole if whole else None,
    )


def _speed(answers: Sequence[Answer]) -> float:
    """Tokens a second after each answer's first, of all answers together."""
    tokens = sum(answer.timed_tokens for answer in answers)
    return 1000 * tokens / max(sum(answer.decode_ms for answer in answers), 1e-9)
