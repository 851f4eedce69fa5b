"""`assert_drafter` passes right drafters, and names what is wrong with others."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.models.toy import ToyModel, random_table
from surefoot.testing import assert_drafter
from surefoot.testing.counts import log_p_value
from surefoot.testing.drawing import ALPHA, BINS, BUDGET
from surefoot.testing.play import MakeDrafter
from tests import drafters
from tests.drafters import TABLE, VOCAB, WRONG, Stateless

SHARED = ToyModel(TABLE, VOCAB)

RIGHT: dict[str, MakeDrafter] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
    "suffix with a tree": lambda: SuffixDrafter(tree=True),
    "model": lambda: ModelDrafter(ToyModel(random_table(VOCAB, 3, seed=2), VOCAB)),
    "model, shared": lambda: ModelDrafter(SHARED),
    "model with a short context": lambda: ModelDrafter(ToyModel(TABLE, VOCAB, max_length=14)),
    "model with fewer tokens": lambda: ModelDrafter(ToyModel(random_table(14, 2, seed=1), 14)),
    "stateless": Stateless,
    "stateful": drafters.Stateful,
    "stops behind an unlikely token": drafters.UntilUnsure,
    "draws by itself": drafters.ByItself,
    "sampled siblings": drafters.Siblings,
    "top-k tree": drafters.TopTree,
}


@pytest.mark.parametrize("make_drafter", RIGHT.values(), ids=RIGHT)
def test_a_right_drafter_passes(make_drafter: MakeDrafter) -> None:
    assert_drafter(make_drafter, vocab_size=VOCAB, runs=400)


@pytest.mark.parametrize(("make_drafter", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_drafter_is_named(make_drafter: type[Stateless], message: str) -> None:
    with pytest.raises(AssertionError, match=f"(?m)^drafter {make_drafter.name}: .*{message}"):
        assert_drafter(make_drafter, vocab_size=VOCAB)


def test_the_message_tells_what_happened_in_the_shortest_script() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_drafter(drafters.SilentAfterARejection, vocab_size=VOCAB)
    assert str(caught.value) == "\n".join(
        [
            "drafter stateful: for sequence 0 it proposed []; a new drafter that starts with its 10 tokens "
            "proposes [9]",
            "after, in mode coupled:",
            "  start 0 with [12, 13, 1, 8, 12, 13, 1, 8, 12]",
            "  propose at most 1 for 0 → 0: [7]",
            "  observe 0: 0 accepted, then token 12",
            "  propose at most 1 for 0 → 0: []",
        ]
    )


def test_a_drafter_that_learns_on_purpose_is_compared_with_no_new_one() -> None:
    with pytest.raises(AssertionError, match="a new drafter"):
        assert_drafter(drafters.Adaptive, vocab_size=VOCAB)
    assert_drafter(drafters.Adaptive, vocab_size=VOCAB, learns=True, runs=400)
    with pytest.raises(AssertionError, match="doesn't come with the probabilities"):
        assert_drafter(drafters.WithoutUnlikely, vocab_size=VOCAB, learns=True)


def test_a_drafter_that_draws_by_itself_must_have_the_same_to_draw_from() -> None:
    class Drifting(drafters.ByItself):
        """Its distribution depends on how often it was asked."""

        times = 0

        def drawn(self, request: Any, tokens: list[int]) -> Any:
            self.times += 1
            row = drafters.softmax(drafters.logits_after([*request.tokens, *tokens, self.times % VOCAB]))
            return int(self.chance.choice(VOCAB, p=row)), row

    with pytest.raises(AssertionError, match=r"it drew from other probabilities than a new drafter"):
        assert_drafter(Drifting, vocab_size=VOCAB)


def test_other_probs_for_the_same_tokens_are_seen() -> None:
    class Tampering(Stateless):
        """Returns what a token was drawn from, but not in every round."""

        def __init__(self) -> None:
            self.asked = 0

        def finished(self, tokens: list[int], rows: list[Any]) -> Any:
            self.asked += 1
            return super().finished(tokens, rows if self.asked == 1 else [])

    with pytest.raises(AssertionError, match="it returned other probs than a new drafter"):
        assert_drafter(Tampering, vocab_size=VOCAB)


def test_prompts_of_ones_own() -> None:
    class Picky(drafters.Silent):
        def chain(self, request: Any) -> Any:
            return Stateless.chain(self, request) if 5 in request.tokens else super().chain(request)

    with pytest.raises(AssertionError, match="give prompts it has drafts for"):
        assert_drafter(Picky, vocab_size=VOCAB, runs=80)
    assert_drafter(Picky, vocab_size=VOCAB, runs=80, prompts=([1, 5, 2], [5]))


def test_a_drafter_that_fails_now_and_then_while_it_is_counted() -> None:
    class Seldom(Stateless):
        def start(self, seq: int, tokens: Any) -> None:
            if seq == 300:
                raise MemoryError("no room")

    with pytest.raises(AssertionError, match="it raised MemoryError: no room"):
        assert_drafter(Seldom, vocab_size=VOCAB, runs=400)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"make_drafter": NgramDrafter()}, TypeError, "make_drafter: .*give a function that makes one"),
        ({"vocab_size": 1}, ValueError, "vocab_size: 1; needed are 2 tokens or more"),
        ({"runs": 0}, ValueError, "runs: 0; needed is 1 or more"),
        ({"prompts": ([1], [])}, ValueError, "prompts: .*needed are two, of a token or more each"),
        ({"prompts": ([1],)}, ValueError, "prompts: .*needed are two"),
    ],
)
def test_arguments_that_make_no_sense(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        assert_drafter(**{"make_drafter": NgramDrafter, "vocab_size": VOCAB, **change})


def test_the_bias_that_is_promised_is_seen() -> None:
    chance, even = np.random.default_rng(1), [1 / BINS] * BINS
    limit = math.log(ALPHA / (2 * BUDGET))
    tilted = np.array(even) + np.resize([1, -1], BINS) * 0.12 * 2 / BINS
    seen = [log_p_value(c.tolist(), even) < limit for c in chance.multinomial(2000, tilted, 300)]
    assert np.mean(seen) > 0.9


def test_the_tools_load_no_torch() -> None:
    code = "import sys, surefoot.testing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
