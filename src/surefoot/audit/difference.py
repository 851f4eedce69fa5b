"""Explains the first difference between plain decoding and speculation: where it is, and who made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.audit.replay import request_of
from surefoot.audit.subject import Subject
from surefoot.audit.trial import Asked, Reference, Trial, raised
from surefoot.audit.watch import Seen, Watch
from surefoot.audit.words import counted
from surefoot.results import Result
from surefoot.sampling import target_probs, top_logprobs
from surefoot.text import Tokenizer

_ROUNDING = 0.25  # nats: no kernel rounds a log-probability so far, not even in bf16
_SHOWN = 16  # tokens of a prefix, the last ones
_AROUND = 20  # characters before and behind the place where two texts part


@dataclass(frozen=True, slots=True)
class Difference:
    """what: "token", "log-probability", "finish reason", "text" or "usage". index: of the output token, from
    0; for the last three their number. plain, speculated: the two values, None for a token where the output
    had ended, and for a log-probability that isn't there."""

    what: str
    index: int
    plain: object
    speculated: object


@dataclass(frozen=True, slots=True)
class Explanation:
    """lines: for people. facts: the same, for programs."""

    lines: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


def first_difference(plain: Result, speculated: Result) -> Difference | None:
    """None when nothing that a caller sees differs; log-probabilities may, by what kernels round, and so may
    what of a prompt others had computed."""
    ours, theirs = plain.token_ids, speculated.token_ids
    for index in range(max(len(ours), len(theirs))):
        pair = [ids[index] if index < len(ids) else None for ids in (ours, theirs)]
        if pair[0] != pair[1]:
            return Difference("token", index, *pair)
    for index, (mine, other) in enumerate(zip_longest(plain.logprobs or (), speculated.logprobs or ())):
        if mine is None or other is None or abs(mine.chosen - other.chosen) > _ROUNDING:
            return Difference("log-probability", index, mine and mine.chosen, other and other.chosen)
    for what in ("finish_reason", "text"):
        values = getattr(plain, what), getattr(speculated, what)
        if values[0] != values[1]:
            return Difference(what.replace("_", " "), len(ours), *values)
    billed = plain.usage, replace(speculated.usage, cached_tokens=plain.usage.cached_tokens)
    if billed[0] != billed[1]:
        return Difference("usage", len(ours), *billed)
    return None


def explain(subject: Subject, trial: Trial, number: int, difference: Difference) -> Explanation:
    """Says where the `number`-th request of a trial differed, and runs the trial again to see whether it was
    the logits or the choice among them."""
    reference = trial.references[number]
    asked = reference.asked
    facts: dict[str, Any] = {
        "differs": difference.what,
        "prompt": asked.prompt,
        "seed": reference.result.seed,
        "index": difference.index,
        "plain": _plain_value(difference.plain),
        "speculated": _plain_value(difference.speculated),
        "draft_tokens": trial.setting.draft_tokens,
        "companions": trial.setting.companions,
        "max_rows": trial.setting.max_rows,
    }
    lines = [
        f"prompt {asked.prompt + 1}, seed {reference.result.seed}, request {number + 1} of "
        f"{len(trial.references)}: {trial.setting}"
    ]
    if difference.what == "token":
        again = _again(subject, trial, number, difference)
        lines += [
            f"{place(subject.tokenizer, asked.ids, reference.result.token_ids[: difference.index])} "
            f"plain decoding {_choice(subject, reference, difference.index, difference.plain, again.plain)}, "
            "speculation "
            f"{_choice(subject, reference, difference.index, difference.speculated, again.plain)}",
            *again.lines,
        ]
        facts |= again.facts
    else:
        plain, speculated = apart(difference.plain, difference.speculated)
        lines.append(
            f"the {difference.what} differs: plain decoding's is {plain}, speculation's {speculated}"
        )
    return Explanation(tuple(lines), facts)


def apart(one: object, other: object) -> tuple[str, str]:
    """Two values that differ, as Python writes them; of long texts what is around the first difference."""
    if not (isinstance(one, str) and isinstance(other, str)):
        return repr(one), repr(other)
    pairs = zip_longest(one, other)
    begin = max(0, next(index for index, pair in enumerate(pairs) if len({*pair}) > 1) - _AROUND)
    return repr(one[begin:][: 2 * _AROUND]), repr(other[begin:][: 2 * _AROUND])


def place(tokenizer: Tokenizer | None, prompt: Sequence[int], output: Sequence[int]) -> str:
    """Where the next output token stands, in words, with the end of the text before it."""
    before = [*prompt, *output][-_SHOWN:]
    text = str(before) if tokenizer is None else repr(tokenizer.decode(before, skip_special=False))
    return f"output token {len(output) + 1}, after {'…' if len(prompt) + len(output) > _SHOWN else ''}{text}:"


def named(tokenizer: Tokenizer | None, token: int) -> str:
    """A token as text and number."""
    if tokenizer is None:
        return f"token {token}"
    return f"{tokenizer.decode([token], skip_special=False)!r} (token {token})"


def prob_of(
    subject: Subject, asked: Asked, output: Sequence[int], row: NDArray[np.float32], token: int
) -> str:
    """A token's probability after the transforms, and before them."""
    history = request_of(subject, asked).history.then(output)
    candidates = target_probs(row, asked.params, history)
    after = float(candidates.probs[candidates.ids == token].sum())
    before = float(np.exp(top_logprobs(row, token, 0).chosen))
    return f"with probability {after:.6g} ({before:.6g} before the transforms)"


@dataclass(frozen=True, slots=True)
class _Again:
    """A trial run once more: plain decoding's row, and what was found."""

    plain: Seen | None
    lines: tuple[str, ...]
    facts: Mapping[str, Any]


def _again(subject: Subject, trial: Trial, number: int, difference: Difference) -> _Again:
    reference = trial.references[number]
    asked = reference.asked
    tokens = (*asked.ids, *reference.result.token_ids[: difference.index])
    alone = Watch(subject.model, 0, tokens)
    with replace(subject, model=alone).plain() as engine:
        plain = engine.generate([asked.ids], asked.params)[0]
    company = Watch(subject.model, number, tokens)
    repeated = False
    try:
        speculated = trial.run(replace(subject, model=company))[number]
    except Exception as error:  # whatever a broken engine raises is a finding
        outcome = f"run again, it failed: {raised(error)}"
    else:
        repeated = first_difference(reference.result, speculated) == difference
        outcome = "run again, it gave the same difference" if repeated else "run again, it didn't repeat"
    if first_difference(reference.result, plain):
        outcome += "; and plain decoding, run again, gave other tokens"
    lines = [outcome]
    facts: dict[str, Any] = {"repeated": repeated}
    if company.seen:
        lines.append(_shape(company.seen))
    if company.seen and alone.seen:
        facts["max_logit_difference"] = _distance(company.seen.logits, alone.seen.logits)
        facts["logits"] = "moved" if _moved(company.seen, alone.seen) else "same"
        lines.append(_verdict(company.seen, alone.seen))
    return _Again(alone.seen, tuple(lines), facts)


def _shape(seen: Seen) -> str:
    return (
        f"there it was chosen from row {seen.place + 1} of the {seen.rows} of a pass over "
        f"{counted(seen.sequences, 'sequence')}, which verified "
        f"{counted(seen.draft_tokens, 'draft token')} of its own"
    )


def _verdict(company: Seen, alone: Seen) -> str:
    if not _moved(company, alone):
        return "that row's logits are the same as plain decoding's, to the bit: the choice differed"
    return (
        "that row's logits differ from plain decoding's, by up to "
        f"{_distance(company.logits, alone.logits):.3g}: the pass differed, before any choice"
    )


def _moved(company: Seen, alone: Seen) -> bool:
    return company.logits.tobytes() != alone.logits.tobytes()


def _distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The largest difference of two logits; where both ban a token, there is none."""
    same = one == other
    return float(np.abs(one[~same].astype(np.float64) - other[~same]).max(initial=0.0))


def _choice(subject: Subject, reference: Reference, index: int, token: object, row: Seen | None) -> str:
    if not isinstance(token, int):
        return "had ended"
    chose = f"chose {named(subject.tokenizer, token)}"
    if row is None:
        return chose
    output = reference.result.token_ids[:index]
    return f"{chose} {prob_of(subject, reference.asked, output, row.logits, token)}"


def _plain_value(value: object) -> int | float | str | None:
    return value if isinstance(value, int | float | str | None) else str(value)
