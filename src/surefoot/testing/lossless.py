"""`assert_lossless`: does a sampler for speculative decoding keep the target's distribution?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from surefoot.testing.cases import Case, Context, bank
from surefoot.testing.trial import Fault, Sampler, Trial, tokens_text

ALPHA = 1e-6  # how often a lossless sampler is called a lossy one, at most, all cases together
STEPS = 100  # smaller cases that are tried after a failure
PLAIN = Fraction(1, 20)  # total variation that a smaller case must keep, if there was so much


def assert_lossless(
    sampler: Sampler,
    *,
    vocab_sizes: Sequence[int] = (2, 3),
    draft_lengths: Sequence[int] = (1, 2, 3),
    cases: Sequence[Case] | None = None,
    runs: int = 4000,
    seed: int = 0,
    make_generator: Callable[[int], Any] | None = None,
) -> None:
    """Raises AssertionError, with the smallest case that shows it, unless a sampler's tokens have the
    distribution of the target's own.

    sampler: called as `sampler(target_probs, draft_probs, draft_tokens, generator)` with arrays of its own,
    [γ + 1, vocabulary], [γ, vocabulary] and [γ]; the draft tokens were drawn from `draft_probs`, and row i of
    the target is for the token after i of them. It returns the draft tokens it accepts and one more, the
    recovered or the bonus token. The first γ + 1 tokens, filled up with draws of the target where there are
    fewer, must have the target's law.

    Each case is enumerated: the probabilities are then object arrays of fractions, the generator stands in
    for numpy's, and every draw and both sides of every comparison with a uniform are taken. A pass is a proof
    for those probabilities (laws nearer than 1e-6 count as equal, for the sake of constants that guard a
    division); uniforms that are exactly 0 are tried as well. A sampler that can't be enumerated (it makes
    floats of what it gets, uses torch or other methods of the generator) is run `runs` times per case
    instead, with float64 arrays and `numpy.random.default_rng(seed)`. A lossless one fails with probability
    1e-6 at most, all cases together. In 4000 runs of a case nine lossy ones in ten show that take the first
    of two tokens too often by .07, or whose joint law of three tokens of 27 cells is off by a total variation
    of .1; sixteen times the runs see a quarter of that.

    vocab_sizes, draft_lengths: of the cases. cases: your own instead. make_generator: takes the seed and
    returns the generator for a sampler that wants another kind, as in
    `make_generator=lambda seed: torch.Generator().manual_seed(seed)`; nothing is enumerated then.

    Raises ValueError or TypeError for arguments that make no sense.
    """
    if not callable(sampler):
        raise TypeError(f"sampler: {sampler!r} can't be called")
    if make_generator is not None and not callable(make_generator):
        raise TypeError(f"make_generator: {make_generator!r} can't be called; give what makes one of a seed")
    _check_sizes("vocab_sizes", vocab_sizes, 2)
    _check_sizes("draft_lengths", draft_lengths, 1)
    _check_whole("runs", runs, 1)
    _check_whole("seed", seed, 0)
    chosen = bank(vocab_sizes, draft_lengths, seed) if cases is None else list(cases)
    if not chosen:
        raise ValueError("cases: there are none")
    for case in chosen:
        if not isinstance(case, Case):
            raise TypeError(f"cases: {case!r} is no Case")
    trial = Trial(sampler, runs, seed, make_generator, math.log(ALPHA / len(chosen)))
    for case in chosen:
        fault = trial.fault(case)
        if fault is not None:
            least = (1, 2) if cases is not None else (min(draft_lengths), min(vocab_sizes))
            raise AssertionError(_message(_smallest(trial, fault, *least), trial)) from fault.cause


def _check_sizes(name: str, sizes: Iterable[int], least: int) -> None:
    if not isinstance(sizes, Iterable):
        raise TypeError(f"{name}: {sizes!r}; needed are several numbers, as in ({least}, {least + 1})")
    found = list(sizes)
    if not found:
        raise ValueError(f"{name}: there are none")
    for size in found:
        _check_whole(name, size, least)


def _check_whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r}; needed are whole numbers of {least} or more")


def _smallest(trial: Trial, fault: Fault, least_length: int, least_vocab: int) -> Fault:
    """The fault again, in a case that can't be made smaller without hiding it."""
    steps, least = 0, min(fault.distance, PLAIN)
    shrinking = True
    while shrinking:
        shrinking = False
        for case in fault.case.smaller(least_length, least_vocab):
            if case.size >= fault.case.size:
                continue
            steps += 1
            found = trial.fault(case)
            if found is not None and found.distance >= least:
                fault, shrinking = found, True
                break
            if steps == STEPS:
                return fault
    return fault


def _message(fault: Fault, trial: Trial) -> str:
    case, settings = fault.case, f"runs={trial.runs}, seed={trial.seed}"
    if trial.make_generator is not None:
        settings += ", make_generator=..."
    sections = [
        [f"the sampler is not lossless: {fault.what}"],
        [*_listed("target_probs", case.target), *_listed("draft_probs", case.draft)],
        fault.evidence,
        [f"again: assert_lossless(sampler, cases=[{case!r}], {settings})"],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _listed(name: str, table: Mapping[Context, str]) -> list[str]:
    if len(table) == 1:
        return [f"{name}: {table[()]} after any tokens"]
    return [f"{name}: {row} after {tokens_text(c) if c else 'any other'}" for c, row in table.items()]
