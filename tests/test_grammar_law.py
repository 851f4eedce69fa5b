"""A form changes the target's distribution in one way only: what it forbids is taken out of every row, and
the rest keeps its proportions. Speculation changes nothing more, proved by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from surefoot import exact, verify
from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.exact import RowOf, fractions, round_law, target_law
from surefoot.grammar import GrammarMatcher, Grammars
from surefoot.models.toy import ToyModel
from surefoot.types import VERIFY_MODES, Constraint, Draft, SamplingParams, VerifyMode
from surefoot.verify import Rule
from tests.harness import Scripted, letters

VOCABULARY = "ab!c"
TOKENIZER = letters("!", VOCABULARY)
END, SIZE = 2, 4
RUNS, LENGTH = 2000, 4
GRAMMARS = Grammars(TOKENIZER, (END,), SIZE)
# No a behind another, and no c that something follows.
FORM = Constraint("regex", "b*(ab+)*a?c?")

RULES: dict[str, Rule] = {"rejection": verify.rejection, "block": verify.block}


def spelled(tokens: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in tokens)


def row(prefix: Sequence[int], weights: Sequence[int]) -> verify.Row:
    turned = [*weights[len(prefix) % SIZE :], *weights[: len(prefix) % SIZE]]
    return fractions(*(Fraction(weight, sum(turned)) for weight in turned))


def normalised(weights: verify.Row) -> verify.Row:
    return np.asarray(weights / weights.sum())


def masked(weights: Sequence[int], matcher: GrammarMatcher, before: Sequence[int] = ()) -> RowOf:
    """Rows as the engine has them: one matcher, asked along drafts in whatever order the rule asks."""

    def row_of(prefix: tuple[int, ...]) -> verify.Row:
        kept = row((*before, *prefix), weights) * matcher.allowed(prefix).astype(int)
        return normalised(kept)

    return row_of


FOLLOWING = {"": "ab!c", "a": "b!c", "b": "ab!c", "c": "!", "!": "!"}
"""What the expression lets follow a letter, read by hand; behind an end comes another."""


def independently(weights: Sequence[int], before: Sequence[int] = ()) -> RowOf:
    def row_of(prefix: tuple[int, ...]) -> verify.Row:
        may = FOLLOWING[spelled((*before, *prefix))[-1:]]
        kept = row((*before, *prefix), weights) * np.array([letter in may for letter in VOCABULARY]).astype(
            int
        )
        return normalised(kept)

    return row_of


TARGET, DRAFT = (4, 3, 1, 2), (1, 4, 2, 3)


@pytest.mark.parametrize("before", ["", "a", "bab"])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_drawn_drafts_keep_the_masked_law(rule: str, length: int, before: str) -> None:
    matcher, committed = GRAMMARS.matcher(FORM), [VOCABULARY.index(letter) for letter in before]
    for token in committed:
        matcher.advance(token)
    target, draft = masked(TARGET, matcher, committed), masked(DRAFT, matcher, committed)
    law = round_law(RULES[rule], exact.chain(draft, length), target, length + 1)
    assert law == target_law(independently(TARGET, committed), length + 1)


@pytest.mark.parametrize("tokens", list(product(range(SIZE), repeat=2)), ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_drafts_that_were_not_drawn_keep_it_legal_or_not(rule: str, tokens: tuple[int, ...]) -> None:
    target = masked(TARGET, GRAMMARS.matcher(FORM))
    law = round_law(RULES[rule], exact.given(tokens), target, len(tokens) + 1)
    assert law == target_law(independently(TARGET), len(tokens) + 1)


def test_drafts_drawn_without_regard_to_the_form_keep_it() -> None:
    """Drawn from what it forbids as well: rejected, and the rest is drawn from what is left."""
    target = masked(TARGET, GRAMMARS.matcher(FORM))
    for rule in RULES.values():
        law = round_law(rule, exact.chain(lambda prefix: row(prefix, DRAFT), 2), target, 3)
        assert law == target_law(independently(TARGET), 3)


def test_trees_keep_it() -> None:
    matcher = GRAMMARS.matcher(FORM)
    target, draft = masked(TARGET, matcher), masked(DRAFT, matcher)
    for widths in ((2,), (2, 1), (2, 2)):
        law = round_law(verify.rejection, exact.tree(draft, widths), target, len(widths) + 1)
        assert law == target_law(independently(TARGET), len(widths) + 1)


def model(weights: Sequence[int]) -> ToyModel:
    """Asked about a prompt of one token."""
    return ToyModel(lambda prefix: np.log(row(prefix[1:], weights).astype(float)), SIZE)


def illegal(tokens: Sequence[int], budget: int) -> Draft:
    return Draft((3, 0, 0)[:budget], source="illegal")


@pytest.mark.parametrize("verify_by", VERIFY_MODES)
@pytest.mark.parametrize("drafter", ["model", "illegal"])
def test_the_engine_keeps_it(verify_by: VerifyMode, drafter: str) -> None:
    """Texts of up to four tokens over 2000 seeds, at the level 10⁻³."""
    drafting: Drafter = ModelDrafter(model(DRAFT)) if drafter == "model" else Scripted(illegal)
    engine = Engine(
        model(TARGET), drafting, tokenizer=TOKENIZER, draft_tokens=3, verify=verify_by, max_requests=250
    )
    asked = SamplingParams(temperature=1, top_p=1, max_tokens=LENGTH, grammar=FORM)
    results = engine.generate([[1]] * RUNS, [replace(asked, seed=seed) for seed in range(RUNS)])
    said = Counter(result.text for result in results)
    wanted: Counter[str] = Counter()
    for tokens, weight in target_law(independently(TARGET), LENGTH).items():
        wanted[spelled(tokens).partition("!")[0]] += float(weight)  # type: ignore[assignment]
    assert set(said) <= set(wanted)
    assert chisquare([said[text] for text in wanted], [RUNS * p for p in wanted.values()]).pvalue > 1e-3
