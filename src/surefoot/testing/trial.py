"""A sampler on trial: the law of its tokens in one case, enumerated where that can be done, else counted."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.exact import Chances, Law, outcomes, target_law, total_variation
from surefoot.testing.cases import Case, Context, Probs
from surefoot.testing.counts import log_p_value
from surefoot.testing.scripted import Exact, NotEnumerable, ScriptedGenerator

Sampler = Callable[[Any, Any, Any, Any], Any]
"""`sampler(target_probs, draft_probs, draft_tokens, generator)` → the output tokens."""

ROUNDING = Fraction(1, 10**6)  # total variation that constants such as 1e-10 beside a divisor may make
PLAYS = 5000  # of one case; a sampler with more branches is tried by running it
REPEATS = 5  # before a law is believed to be off, not to vary by itself
LONG = 10**7  # a denominator that nobody wants to read
LINES = 16  # of the laws, in the evidence


@dataclass(frozen=True)
class Fault:
    """What is wrong in a case.

    what: one sentence. evidence: the lines that show it. distance: of the laws, in total variation, where
    they are what is wrong.
    """

    case: Case
    what: str
    evidence: tuple[str, ...] = ()
    cause: Exception | None = None
    distance: Fraction = Fraction(1)


class _MisshapenError(Exception):
    """What came back are no output tokens."""


@dataclass(frozen=True)
class Trial:
    """A sampler, and how it is tried. log_limit: of the p-value of one case."""

    sampler: Sampler
    runs: int
    seed: int
    make_generator: Callable[[int], Any] | None
    log_limit: float

    def fault(self, case: Case) -> Fault | None:
        """What is wrong with the sampler in this case, if anything is."""
        reason = "a generator was given"
        if self.make_generator is None:
            try:
                return self._by_enumeration(case)
            except _MisshapenError as error:
                return Fault(case, str(error))
            except Exception as error:  # whatever exact numbers and scripted draws are no good for
                reason = f"{type(error).__name__}: {error}"
        try:
            return self._by_running(case, reason)
        except _MisshapenError as error:
            return Fault(case, str(error))
        except Exception as error:
            return Fault(case, f"the sampler raised {type(error).__name__}: {error}", cause=error)

    def _by_enumeration(self, case: Case) -> Fault | None:
        law = self._exact_law(case)
        target = {n: target_law(_exact_rows(case.target_row), n) for n in range(1, case.draft_length + 2)}
        for length, wanted in target.items():
            found = _first(law, length)
            distance = total_variation(found, wanted)
            if distance > ROUNDING:
                if any(self._exact_law(case) != law for _ in range(REPEATS)):
                    raise NotEnumerable("the same draws gave other tokens: it has a randomness of its own")
                evidence = (*_table(found, wanted, _written), f"total variation {_both(distance)}, exactly")
                return Fault(case, _where(length, case), evidence, distance=distance)
        return self._at_zero(case)

    def _exact_law(self, case: Case) -> Law:
        """Of the first γ + 1 tokens, filled up by the target. Raises NotEnumerable."""
        target, law = _exact_rows(case.target_row), defaultdict[Context, Fraction](Fraction)
        for plays, (tokens, weight) in enumerate(outcomes(lambda chances: self._play(case, chances, False))):
            if plays == PLAYS:
                raise NotEnumerable(f"it has more than {PLAYS} branches")
            for rest, chance in target_law(target, case.draft_length + 1, tokens).items():
                law[rest] += weight * chance
        return dict(law)

    def _at_zero(self, case: Case) -> Fault | None:
        """A uniform may be exactly 0, where < and ≤ are not the same; an impossible token shows which was
        written."""
        where = "where a uniform is exactly 0, as random() may be, it"
        advice = ("write u * q < p, not ≤; in cumulated probabilities search with side='right'",)
        try:
            outputs = [tokens for tokens, _ in outcomes(lambda chances: self._play(case, chances, True))]
        except (ArithmeticError, ValueError, IndexError) as error:
            return Fault(case, f"{where} raised {type(error).__name__}: {error}", advice, error)
        for tokens in outputs:
            for i, token in enumerate(tokens):
                if not case.target_row(tokens[:i])[token]:
                    what = f"returned {list(tokens)}, and after {list(tokens[:i])} the target has no {token}"
                    return Fault(case, f"{where} {what}", advice)
        return None

    def _play(self, case: Case, chances: Chances, at_zero: bool) -> Context:
        draft: Context = ()
        while len(draft) < case.draft_length:
            draft = (*draft, chances.pick(case.draft_row(draft)))
        target, drafted = (_array(rows, Exact, object) for rows in _rows(case, draft))
        generator = ScriptedGenerator(chances, uniforms_at_zero=at_zero)
        output = self.sampler(target, drafted, np.array(draft, np.int64), generator)
        return _checked(output, draft, case.vocab_size)

    def _by_running(self, case: Case, reason: str) -> Fault | None:
        counts = self._counts(case)
        for length in range(1, case.draft_length + 2):
            wanted = target_law(_exact_rows(case.target_row), length)
            found = _first(counts, length)
            cells = sorted(found.keys() | wanted.keys())
            log_p = log_p_value([found.get(c, 0) for c in cells], [float(wanted.get(c, 0)) for c in cells])
            if log_p < self.log_limit - math.log(case.draft_length + 1):
                shares = {tokens: Fraction(count, self.runs) for tokens, count in found.items()}
                distance, power = total_variation(shares, wanted), max(log_p / math.log(10), -999)
                evidence = (
                    *_table(shares, wanted, lambda share: f"{float(share):.4f}"),
                    f"total variation {float(distance):.4f} in {self.runs} runs; "
                    f"p-value at most 1e{power:.0f}",
                    f"(tried by running it, not by enumeration: {reason})",
                )
                return Fault(case, _where(length, case), evidence, distance=distance)
        return None

    def _counts(self, case: Case) -> Counter[Context]:
        """How often each sequence of γ + 1 tokens came out, filled up by the target."""
        chance = np.random.default_rng((self.seed, 1))
        make = self.make_generator or np.random.default_rng
        generator = make(self.seed)
        counts: Counter[Context] = Counter()
        drafts = _drawn(target_law(_exact_rows(case.draft_row), case.draft_length), self.runs, chance)
        for draft, times in drafts.items():
            target, drafted = (_array(rows, float, np.float64) for rows in _rows(case, draft))
            for _ in range(times):
                tokens_given = np.array(draft, np.int64)
                output = self.sampler(target.copy(), drafted.copy(), tokens_given, generator)
                counts[_checked(output, draft, case.vocab_size)] += 1
        filled: Counter[Context] = Counter()
        for tokens, times in counts.items():
            rest = target_law(_exact_rows(case.target_row), case.draft_length + 1, tokens)
            filled.update(_drawn(rest, times, chance))
        return filled


def _rows(case: Case, draft: Context) -> tuple[list[Probs], list[Probs]]:
    """The target's and the drafter's, as they are for this draft."""
    prefixes = [draft[:i] for i in range(len(draft) + 1)]
    return [case.target_row(prefix) for prefix in prefixes], [case.draft_row(p) for p in prefixes[:-1]]


def _array(rows: Sequence[Probs], kind: type, dtype: Any) -> NDArray[Any]:
    return np.array([[kind(prob) for prob in row] for row in rows], dtype=dtype)


def _exact_rows(row_of: Callable[[Context], Probs]) -> Callable[[Context], NDArray[Any]]:
    return lambda before: np.array(row_of(before), dtype=object)


def _checked(output: Any, draft: Context, vocab_size: int) -> Context:
    """What a sampler returned, as tokens."""
    told = f"after the draft {list(draft)} it returned {output!r}"
    try:
        tokens = tuple(map(index, output))
    except TypeError:
        raise _MisshapenError(f"{told}, not a list of whole numbers") from None
    if not 1 <= len(tokens) <= len(draft) + 1:
        raise _MisshapenError(f"{told}, {len(tokens)} tokens; allowed are 1 to {len(draft) + 1}")
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise _MisshapenError(f"{told}; token {token} is out of range, allowed is [0, {vocab_size - 1}]")
    if tokens[:-1] != draft[: len(tokens) - 1]:
        raise _MisshapenError(f"{told}; all but the last token must be the draft's own first ones")
    return tokens


def _drawn(law: Law, times: int, chance: np.random.Generator) -> dict[Context, int]:
    """How often each sequence comes in so many draws."""
    counts = chance.multinomial(times, [float(prob) for prob in law.values()])
    return {tokens: int(count) for tokens, count in zip(law, counts, strict=True) if count}


def _first(law: Mapping[Context, Any], length: int) -> dict[Context, Any]:
    """The law, or the counts, of the first tokens alone."""
    summed: dict[Context, Any] = defaultdict(int)
    for tokens, weight in law.items():
        summed[tokens[:length]] += weight
    return dict(summed)


def _where(length: int, case: Case) -> str:
    if length > case.draft_length:
        return "the token after the whole draft (the bonus) is the first that is off"
    return f"draft position {length} of {case.draft_length} is the first that is off"


def _table(found: Law, wanted: Law, written: Callable[[Fraction], str]) -> list[str]:
    """Both laws side by side, the largest differences first."""
    zero = Fraction(0)
    cells = [(tokens, wanted.get(tokens, zero), found.get(tokens, zero)) for tokens in found.keys() | wanted]
    cells.sort(key=lambda cell: (-abs(cell[1] - cell[2]), cell[0]))
    lines = [("tokens", "should be", "came out")]
    lines += [(tokens_text(tokens), str(should), written(did)) for tokens, should, did in cells[:LINES]]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return table + ([f"and {len(cells) - LINES} more"] if len(cells) > LINES else [])


def _both(value: Fraction) -> str:
    return f"{_written(value)} = {float(value):.4f}"


def _written(value: Fraction) -> str:
    """As a fraction; constants such as 1e-10 make long ones, which say more as decimals."""
    return str(value) if value.denominator < LONG else f"{float(value):.6g}"


def tokens_text(tokens: Context) -> str:
    """Tokens as they stand in messages."""
    return " ".join(map(str, tokens))
