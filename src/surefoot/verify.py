"""Which of the drafted tokens stand, and what follows them.

No model and no generator in here: target rows, uniforms and draws are arguments, asked for by node and only
when needed. A node is an index into the draft; -1 is the last committed token. Every row is a vector over
the vocabulary *after* the sampling transforms, the bonus row included, of float64 or of Fractions: the
functions only compare, add, multiply and divide, so the proofs in `exact.py` run this very code.

`rejection` and `block` keep the distribution only when the uniforms and draws are fresh in every round, when
`Draft.probs` is what each token was really drawn from, and when whether a token is submitted was settled
before it was drawn. `coupled` needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from surefoot.tree import ROOT, children, parents_of
from surefoot.types import Draft, Verdict

Row = NDArray[Any]
"""[vocabulary], float64 or Fraction objects."""

TargetProbs = Callable[[int], Row]
"""node → the target's probabilities of the token after it."""

Uniform = Callable[[int], Any]
"""node → the uniform in (0, 1) that tests it, independent of every other."""

DrawFrom = Callable[[Row, int], int]
"""(probabilities, the node they follow) → a token drawn from them with fresh noise."""


class Rule(Protocol):
    """`rejection` or `block`, or somebody else's."""

    def __call__(
        self, draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom
    ) -> Verdict: ...


def coupled(draft: Draft, choose: Callable[[int], int]) -> Verdict:
    """Keeps the draft as far as it says what the target chooses by itself: plain decoding's own output.

    choose(node): the target's choice of the token after that node, a function of the tokens before it and
    nothing else. Called once per level, never past the first mismatch. Of equal siblings the first counts.
    At temperature 0 this is greedy verification; drafts may come from anywhere, chains or trees.
    """
    below = children(parents_of(draft.parents, len(draft.tokens)))
    path: list[int] = []
    node, tested = ROOT, 0
    while True:
        token = choose(node)
        siblings = below[node]
        for child in siblings:
            tested += 1
            if draft.tokens[child] == token:
                node = child
                path.append(child)
                break
        else:
            return Verdict(tuple(path), token, bonus=not siblings, tested=tested)


def rejection(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
    """Token by token: keep x with probability min(1, p(x) / q(x)), else go on from norm((p − q)+).

    Chains: Leviathan et al. 2211.17192 and Chen et al. 2302.01318. Trees: recursive rejection, siblings in
    the order they were drawn (SpecInfer 2305.09781; without replacement RSD 2402.14160, Sequoia
    2402.12374): each sibling's row of `draft.probs` is what *it* was drawn from, so without replacement
    `exclude` has already taken its elder siblings out. Tokens that were not drawn (`probs` None: an n-gram,
    a top-k tree) are point masses: x is kept with probability p(x), else p(x) ← 0.
    """
    below = children(parents_of(draft.parents, len(draft.tokens)))
    path: list[int] = []
    node, tested = ROOT, 0
    while True:
        target = target_probs(node)
        siblings = below[node]
        for child in siblings:
            tested += 1
            token = draft.tokens[child]
            if uniform(child) * _drawn_with(draft, child) < target[token]:
                node = child
                path.append(child)
                break
            target = _normalised(_excess(target, draft, child), target)
        else:
            return Verdict(tuple(path), draw(target, node), bonus=not siblings, tested=tested)


def block(draft: Draft, target_probs: TargetProbs, uniform: Uniform, draw: DrawFrom) -> Verdict:
    """The draft as a whole: keeps at least as much as `rejection` in expectation, and no rule keeps more.

    Block verification, Sun et al. 2403.10444. Every prefix is tested, whatever became of the shorter ones,
    and the longest that passes is kept. Chains only: raises ValueError for a tree.
    """
    size = len(draft.tokens)
    if parents_of(draft.parents, size) != parents_of(None, size):
        raise ValueError("block verification takes a chain, not a tree")
    target = target_probs(ROOT)
    reach = 1  # the probability with which the prefix so far may be kept
    kept, last = 0, target if not size else _excess(target, draft, 0)
    fallback = target
    for node in range(size):
        token = draft.tokens[node]
        reach = _shrunk(reach, target[token], _drawn_with(draft, node))
        if not reach > 0:
            break
        if node == size - 1:
            if not uniform(node) < reach:
                break  # and what would follow is nobody's business: maybe nothing may
            passed, weights = True, target_probs(node)
            target = weights
        else:
            target = target_probs(node)
            weights = _excess(reach * target, draft, node + 1)
            mass = weights.sum()
            # 0 / 0 is no case of its own: it means p = q from here, and the next prefix has reach 1 too.
            passed = uniform(node) * (mass + (1 - reach)) < mass
        if passed:
            kept, last, fallback = node + 1, weights, target
    token = draw(_normalised(last, fallback), kept - 1)
    return Verdict(tuple(range(kept)), token, bonus=kept == size, tested=min(kept + 1, size))


def exclude(draft_probs: Row, token: int) -> Row:
    """What the next sibling is drawn from, without replacement: `token` taken out, the rest normalised.

    Raises ValueError when nothing is left.
    """
    rest = draft_probs.copy()
    rest[token] = 0
    mass = rest.sum()
    if not mass > 0:
        raise ValueError(f"token {token} has all the probability; nothing is left to draw")
    rest /= mass
    return rest


def _drawn_with(draft: Draft, node: int) -> Any:
    """The probability a node's token was drawn with; 1 for one that was not drawn."""
    return 1 if draft.probs is None else draft.probs[node][draft.tokens[node]]


def _excess(target: Row, draft: Draft, node: int) -> Row:
    """(target − the row that a node was drawn from)+, not normalised."""
    if draft.probs is None:
        rest = target.copy()
        rest[draft.tokens[node]] = 0
    else:
        rest = np.maximum(target - draft.probs[node], 0)
    return rest


def _normalised(weights: Row, fallback: Row) -> Row:
    """Without mass the two distributions are the same, and what is drawn from is the target's own."""
    mass = weights.sum()
    return weights / mass if mass > 0 else fallback


def _shrunk(reach: Any, target: Any, drafted: Any) -> Any:
    """min(1, reach · target / drafted); a token of drafted probability zero passes if the target has it."""
    product = reach * target
    return product / drafted if product < drafted else 1
