"""`assert_lossless` passes right samplers, and names what is wrong with others."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import surefoot
from surefoot import verify
from surefoot.exact import outcomes
from surefoot.testing import Case, assert_lossless
from surefoot.testing.cases import bank
from surefoot.testing.counts import log_p_value
from surefoot.testing.scripted import Exact, NotEnumerable, ScriptedGenerator
from surefoot.testing.trial import Sampler, Trial
from tests import samplers
from tests.samplers import WRONG, by_blocks, by_race, by_rule, by_tokens, by_torch, faulty

SMALL = Case(1, {(): "1/2,1/2"}, {(): "2/3,1/3"})

RIGHT: dict[str, Sampler] = {
    "tokens": by_tokens,
    "inverse": samplers.by_inverse,
    "multinomial": samplers.by_multinomial,
    "blocks": by_blocks(),
    "verify.rejection": by_rule(verify.rejection),
    "verify.block": by_rule(verify.block),
    "plain": samplers.plainly,
    "without a bonus": samplers.without_a_bonus,
}


@pytest.fixture
def only_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    def running(self: Trial, case: Case, reason: str) -> None:
        raise AssertionError(f"it was not enumerated: {reason}")

    monkeypatch.setattr(Trial, "_by_running", running)


@pytest.mark.parametrize("sampler", RIGHT.values(), ids=RIGHT)
@pytest.mark.usefixtures("only_enumerated")
def test_a_right_sampler_is_proved(sampler: Sampler) -> None:
    assert_lossless(sampler)


@pytest.mark.parametrize(("sampler", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_sampler_is_named(sampler: Sampler, message: str) -> None:
    with pytest.raises(AssertionError, match=f"(?m)^the sampler is not lossless: .*({message})"):
        assert_lossless(sampler)


def test_a_uniform_may_be_zero() -> None:
    def leftmost(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        return [int(np.searchsorted(np.cumsum(target_probs[0]), generator.random()))]

    zero = r"where a uniform is exactly 0, .* it returned \[0\], and after \[\] the target has no 0"
    with pytest.raises(AssertionError, match=zero):
        assert_lossless(leftmost)


def test_the_message_shows_the_smallest_case_and_both_laws() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_lossless(faulty(recover=lambda p, q, token: p))
    assert str(caught.value) == "\n".join(
        [
            "the sampler is not lossless: draft position 1 of 1 is the first that is off",
            "",
            "target_probs: 1/2,1/2 after any tokens",
            "draft_probs: 1,0 after any tokens",
            "",
            "tokens  should be  came out",
            "0       1/2        3/4",
            "1       1/2        1/4",
            "total variation 1/4 = 0.2500, exactly",
            "",
            "again: assert_lossless(sampler, cases=[Case(draft_length=1, target={(): '1/2,1/2'}, "
            "draft={(): '1,0'})], runs=4000, seed=0)",
        ]
    )


def test_a_smaller_case_shows_the_fault_no_less() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_lossless(by_blocks(token_residual=True))
    assert float(str(caught.value).partition("total variation ")[2].split()[2].rstrip(",")) > 0.005


@pytest.mark.parametrize("name", ["q of the position before", "block rule with an early break"])
@pytest.mark.parametrize("make_generator", [None, np.random.default_rng])
def test_the_last_line_shows_the_same_again(name: str, make_generator: Callable[[int], Any] | None) -> None:
    sampler, _ = WRONG[name]
    with pytest.raises(AssertionError) as caught:
        assert_lossless(sampler, runs=500, make_generator=make_generator)
    again = str(caught.value).rpartition("again: ")[2].replace("...", "make_generator")
    known = {"sampler": sampler, "Case": Case, "assert_lossless": assert_lossless}
    with pytest.raises(AssertionError) as second:
        eval(again, known | {"make_generator": make_generator})
    assert str(second.value) == str(caught.value)


# What can't be enumerated


def test_torch_samplers_are_tried_by_running_them() -> None:
    import torch

    def seeded(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    assert_lossless(by_torch, draft_lengths=(1, 2), runs=100, make_generator=seeded)

    def resampling(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Any:
        return by_torch(target_probs, draft_probs * (draft_probs > 0.4), draft_tokens, generator)

    with pytest.raises(AssertionError, match=r"(?s)total variation .* in 500 runs; p-value at most 1e-"):
        assert_lossless(resampling, runs=500, make_generator=seeded)


def test_a_sampler_may_write_into_what_it_gets() -> None:
    assert_lossless(samplers.by_multinomial, runs=100, make_generator=np.random.default_rng)


def test_a_sampler_with_too_many_branches_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surefoot.testing.trial, "PLAYS", 3)
    with pytest.raises(AssertionError, match=r"not by enumeration: NotEnumerable: .*more than 3 branches"):
        assert_lossless(faulty(recover=lambda p, q, token: p), runs=1000)


def test_what_defies_enumeration_is_tried_by_running_it() -> None:
    assert_lossless(by_race, runs=300)

    def cold(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        return by_race(samplers.squared(target_probs), draft_probs, draft_tokens, generator)

    with pytest.raises(AssertionError, match=r"not by enumeration: NotEnumerable: .*exponential"):
        assert_lossless(cold, runs=2000)


def test_a_randomness_of_its_own_is_no_fault_and_hides_none() -> None:
    own = np.random.default_rng(3)

    def right(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        return by_tokens(target_probs, draft_probs, draft_tokens, own)

    def right_in_floats(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        cut = random.random() < 0.5
        tokens = by_tokens(target_probs, draft_probs, draft_tokens, generator)
        return tokens[:1] if cut else tokens

    resampling, _ = WRONG["plain resample after a rejection"]

    def wrong(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> Any:
        return resampling(target_probs, draft_probs, draft_tokens, own)

    random.seed(3)
    assert_lossless(right, runs=300)
    assert_lossless(right_in_floats, runs=300)
    with pytest.raises(AssertionError, match="p-value at most"):
        assert_lossless(wrong, runs=2000)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda p, q, tokens, g: [], r"returned \[\], 0 tokens; allowed are 1 to 2"),
        (lambda p, q, tokens, g: [*tokens, 0, 0], "3 tokens; allowed are 1 to 2"),
        (lambda p, q, tokens, g: [2], r"token 2 is out of range, allowed is \[0, 1\]"),
        (lambda p, q, tokens, g: [-1], "token -1 is out of range"),
        (lambda p, q, tokens, g: [1 - tokens[0], 0], "all but the last token must be the draft's own"),
        (lambda p, q, tokens, g: [0.0], "not a list of whole numbers"),
        (lambda p, q, tokens, g: 0, "returned 0, not a list of whole numbers"),
        (lambda p, q, tokens, g: None, "returned None, not a list of whole numbers"),
        (lambda p, q, tokens, g: [1, 2][5], "the sampler raised IndexError: list index out of range"),
        (lambda p, q, tokens: [0], "the sampler raised TypeError: .*positional argument"),
    ],
)
@pytest.mark.parametrize("make_generator", [None, np.random.default_rng])
def test_what_is_no_output_is_named(
    sampler: Any, message: str, make_generator: Callable[[int], Any] | None
) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_lossless(sampler, cases=[SMALL], runs=50, make_generator=make_generator)


def test_a_sampler_that_never_ends_by_chance_alone_is_run() -> None:
    def patient(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        """Rejection sampling proper."""
        while True:
            token = int(generator.integers(len(target_probs[0])))
            if generator.random() < target_probs[0][token]:
                return [token]

    assert_lossless(patient, runs=200, cases=[SMALL])


# Arguments


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sampler": 3}, TypeError, "sampler: 3 can't be called"),
        ({"vocab_sizes": (1, 2)}, ValueError, "vocab_sizes: 1; needed are whole numbers of 2 or more"),
        ({"vocab_sizes": 3}, TypeError, r"vocab_sizes: 3; needed are several numbers, as in \(2, 3\)"),
        ({"draft_lengths": ()}, ValueError, "draft_lengths: there are none"),
        ({"draft_lengths": (0,)}, ValueError, "draft_lengths: 0; needed are whole numbers of 1 or more"),
        ({"runs": 0}, ValueError, "runs: 0; needed are whole numbers of 1 or more"),
        ({"seed": -1}, ValueError, "seed: -1; needed are whole numbers of 0 or more"),
        ({"make_generator": 3}, TypeError, "make_generator: 3 can't be called"),
        ({"cases": []}, ValueError, "cases: there are none"),
        ({"cases": ["1/2"]}, TypeError, "cases: '1/2' is no Case"),
    ],
)
def test_arguments_that_make_no_sense(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        assert_lossless(**{"sampler": by_tokens, **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, {(): "1,0"}, {(): "1,0"}), "draft_length: 0 is no whole number of 1 or more"),
        ((1, {(0,): "1,0"}, {(): "1,0"}), r"target: it has no context \(\)"),
        ((1, {(): "1,0"}, {(): "1"}), r"draft after \(\): 1 tokens, not 2"),
        ((1, {(): "1,1"}, {(): "1,0"}), r"target after \(\): 1,1 is no distribution, it sums to 2"),
        ((1, {(): "2,-1"}, {(): "1,0"}), "is no distribution"),
        ((1, {(): "1,0"}, {(): "x,0"}), r"draft after \(\): 'x' is not a probability"),
    ],
)
def test_cases_that_make_no_sense(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case(*arguments)


def test_only_the_sizes_asked_for_are_tried() -> None:
    seen = set()

    def watching(target_probs: Any, draft_probs: Any, draft_tokens: Any, generator: Any) -> list[int]:
        seen.add((*draft_probs.shape, len(target_probs), len(draft_tokens)))
        return by_tokens(target_probs, draft_probs, draft_tokens, generator)

    assert_lossless(watching, vocab_sizes=(4,), draft_lengths=(2,))
    assert seen == {(2, 4, 3, 2)}
    with pytest.raises(AssertionError, match="draft position 1 of 2"):
        assert_lossless(faulty(recover=lambda p, q, token: p), draft_lengths=(2,))


def test_the_bank_has_every_corner() -> None:
    cases = bank((2, 3), (1, 2, 3), 0)
    assert len(cases) > 40
    assert [c.size[:2] for c in cases] == sorted(c.size[:2] for c in cases)
    first = [(c.target_row(()), c.draft_row(())) for c in cases if c.draft_length == 1]
    assert any(p == q for p, q in first)
    assert any(not sum(a * b for a, b in zip(p, q, strict=True)) for p, q in first)
    for one, other in ((0, 1), (1, 0)):
        assert any(0 in pair[one] and 0 not in pair[other] for pair in first)
        assert any(1 in pair[one] and 1 not in pair[other] for pair in first)
    later = cases[-1]
    assert len({later.target_row((a, b)) for a, b in itertools.product(range(3), repeat=2)}) > 5


def test_a_smaller_case_is_a_case() -> None:
    """Over the same tokens or fewer, for drafts as long or shorter; nothing is smaller than the smallest."""
    for case in bank((2, 3), (1, 2), 5):
        for smaller in case.smaller(1, 2):
            assert smaller.size[:2] <= case.size[:2]
            assert smaller.target_row((0,) * smaller.draft_length)
    smallest = Case(1, {(): "1,0"}, {(): "1,0"})
    assert not [case for case in smallest.smaller(1, 2) if case.size < smallest.size]


# The scripted generator


def row(*probs: str) -> Any:
    return np.array([Exact(prob) for prob in probs], dtype=object)


ROW = row("1/6", "1/3", "1/2")


def scripted_law(play: Callable[[ScriptedGenerator], Any]) -> dict[Any, Fraction]:
    law: dict[Any, Fraction] = defaultdict(Fraction)
    for result, weight in outcomes(lambda chances: play(ScriptedGenerator(chances))):
        law[result] += weight
    return dict(law)


DRAWS: dict[str, Callable[[ScriptedGenerator], Any]] = {
    "searchsorted": lambda g: int(np.searchsorted(np.cumsum(ROW), g.random())),
    "right": lambda g: int(np.cumsum(ROW).searchsorted(g.random(), side="right")),
    "argmax": lambda g: int(np.argmax(np.cumsum(ROW) > g.random())),
    "argmax, uniform first": lambda g: int(np.argmax(g.uniform() <= np.cumsum(ROW))),
    "sum": lambda g: int((np.cumsum(ROW) < g.random()).sum()),
    "less": lambda g: int(np.less(np.cumsum(ROW), g.random()).sum()),
    "bisect": lambda g: bisect.bisect(list(np.cumsum(ROW)), g.random()),
    "choice": lambda g: int(g.choice(3, p=ROW)),
    "choice of one": lambda g: int(g.choice([0, 1, 2], size=1, p=ROW)[0]),
    "multinomial": lambda g: int(g.multinomial(1, ROW).argmax()),
    "subtraction": lambda g: next(i for i, rest in enumerate(g.random() - np.cumsum(ROW)) if rest < 0),
    "integers": lambda g: {0: 0, 1: 1, 2: 1}.get(int(g.integers(6)), 2),
    "integers from": lambda g: {1: 0, 2: 1, 3: 1}.get(int(g.integers(1, 6, endpoint=True)), 2),
    "a loop": lambda g: next(
        i for i, p in enumerate((ROW / (1 - np.cumsum(ROW) + ROW)).tolist()) if g.random() < p
    ),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_however_it_is_written_a_draw_is_enumerated(draw: Callable[[ScriptedGenerator], Any]) -> None:
    assert scripted_law(draw) == {0: Fraction(1, 6), 1: Fraction(1, 3), 2: Fraction(1, 2)}


@given(
    factor=st.fractions(-3, 3).filter(bool),
    shift=st.fractions(-3, 3),
    first=st.fractions(-4, 4),
    second=st.fractions(-4, 4),
)
def test_comparisons_weigh_what_they_leave(
    factor: Fraction, shift: Fraction, first: Fraction, second: Fraction
) -> None:
    def play(generator: ScriptedGenerator) -> tuple[bool, bool]:
        value = shift + generator.random() * factor
        return value < first, second <= value

    def below(threshold: Fraction) -> Fraction:
        share = (threshold - shift) / factor
        return min(max(share if factor > 0 else 1 - share, Fraction(0)), Fraction(1))

    law = scripted_law(play)
    assert sum(weight for (is_below, _), weight in law.items() if is_below) == below(first)
    assert sum(weight for (_, is_above), weight in law.items() if is_above) == 1 - below(second)


@given(st.fractions(-2, 2), st.floats(-4, 4), st.sampled_from(["+", "-", "*", "/"]))
def test_fractions_stay_exact_beside_floats(one: Fraction, other: float, sign: str) -> None:
    operations = {"+": "__add__", "-": "__sub__", "*": "__mul__", "/": "__truediv__"}
    for left, right in ((Exact(one), other), (other, Exact(one))):
        if sign == "/" and not right:
            continue
        result = eval(f"left {sign} right", {"left": left, "right": right})
        assert type(result) is Exact
        assert result == getattr(Fraction(left), operations[sign])(Fraction(right))


@pytest.mark.parametrize(
    "play",
    [
        lambda g: float(g.random()),
        lambda g: int(g.random() * 3),
        lambda g: bool(g.random()),
        lambda g: 1 / g.random(),
        lambda g: g.random() ** 2,
        lambda g: g.random() < g.random(),
        lambda g: g.random() + g.random(),
        lambda g: math.log(g.random()),
        lambda g: ROW.astype(float),
        lambda g: np.array(ROW, dtype=np.float64),
        lambda g: float(ROW[0]),
        lambda g: g.exponential(),
        lambda g: g.permutation(3),
        lambda g: g.multinomial(2, ROW),
        lambda g: g.choice(3, size=2, replace=False),
        lambda g: [g.random() for _ in range(2000)],
    ],
)
def test_what_needs_a_value_is_not_enumerable(play: Callable[[ScriptedGenerator], Any]) -> None:
    with pytest.raises(NotEnumerable):
        scripted_law(play)


@pytest.mark.parametrize(
    "play",
    [
        lambda g: g.choice(3, p=row("1/2", "1/3", "1/7")),
        lambda g: g.choice(2, p=ROW),
        lambda g: g.choice(2, p=row("3/2", "-1/2")),
        lambda g: g.multinomial(1, row("3/2", "0")),
    ],
)
def test_what_numpy_refuses_is_refused(play: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"distribution|probabilities"):
        scripted_law(play)


# The bound on p-values


@pytest.mark.parametrize("probs", [(0.5, 0.5), (0.9, 0.1), (0.6, 0.3, 0.1), (0.97, 0.02, 0.01)])
def test_the_p_value_is_no_smaller_than_the_truth(probs: tuple[float, ...]) -> None:
    """Every outcome of 25 draws, in the order of their p-values."""
    outcomes_of_25 = []
    for some in itertools.product(range(26), repeat=len(probs) - 1):
        counts = [*some, 25 - sum(some)]
        if counts[-1] >= 0:
            ways = math.factorial(25) / math.prod(map(math.factorial, counts))
            chance = ways * math.prod(p**c for p, c in zip(probs, counts, strict=True))
            outcomes_of_25.append((log_p_value(counts, probs), chance))
    outcomes_of_25.sort()
    so_far = 0.0
    for log_p, chance in outcomes_of_25:
        so_far += chance
        assert so_far <= math.exp(log_p) + 1e-12


def test_a_token_without_probability_is_evidence_enough() -> None:
    assert log_p_value([5, 1], [1.0, 0.0]) == -math.inf
    assert log_p_value([5, 0], [1.0, 0.0]) == 0


def test_the_bias_that_is_promised_is_seen() -> None:
    chance = np.random.default_rng(1)
    limit = math.log(surefoot.testing.lossless.ALPHA / len(bank((2, 3), (1, 2, 3), 0)))
    first = [log_p_value(c.tolist(), [0.5, 0.5]) for c in chance.multinomial(4000, [0.57, 0.43], 300)]
    assert np.mean(np.array(first) < limit - math.log(2)) > 0.9
    even = np.full(27, 1 / 27)
    tilted = even + np.resize([1, -1], 27) * (np.arange(27) < 26) * 0.2 / 26  # total variation .1
    joint = [log_p_value(c.tolist(), even.tolist()) for c in chance.multinomial(4000, tilted, 300)]
    assert np.mean(np.array(joint) < limit - math.log(3)) > 0.9


def test_right_samplers_are_not_called_wrong() -> None:
    """The bound is far from tight: of 300 laws that are right, none is near the limit."""
    chance = np.random.default_rng(2)
    values = [
        log_p_value(c.tolist(), [0.25, 0.5, 0.25]) for c in chance.multinomial(4000, [0.25, 0.5, 0.25], 300)
    ]
    assert min(values) > math.log(1e-4)


def test_long_fractions_are_shown_as_decimals() -> None:
    def guarded(target: Any, draft: Any, tokens: Any, generator: Any) -> list[int]:
        if generator.random() * (draft[0][tokens[0]] + 1e-3) < target[0][tokens[0]] + 1e-3:
            return [*tokens, generator.choice(2, p=target[1])]
        return [1 - tokens[0]]

    with pytest.raises(AssertionError) as raised:
        assert_lossless(guarded, cases=[Case(1, {(): "0,1"}, {(): "1,0"})])
    assert "0       0          0.000999001" in str(raised.value)
    assert "total variation 0.000999001 = 0.0010, exactly" in str(raised.value)
