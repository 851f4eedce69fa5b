"""Suffix drafting: what most often followed the end of the text will follow it again, and the longer the end,
the more of it.

Source: SuffixDecoding (Oliaro et al. 2411.04975), with suffix automata for its suffix trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from surefoot.drafters.automaton import NONE, ROOT, Automaton
from surefoot.drafters.base import DraftRequest
from surefoot.drafters.pool import Pool
from surefoot.tree import ROOT as COMMITTED
from surefoot.types import Draft, Verdict

DEPTH = 24  # tokens of context, at most
FACTOR = 1.5  # draft tokens for each token that matched
MIN_PROB = 0.2  # of a draft token and all before it
MANY = 64  # followers among which a tree looks at the likeliest alone


@dataclass(frozen=True, slots=True)
class Guess:
    """score: the tokens of it that are expected to be right, by how often each followed the ones before."""

    score: float = 0.0
    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None


Grow = Callable[[Automaton, int, int], Guess]
"""`grow(automaton, state, size)`: a guess of up to `size` tokens that follow a text."""


def grow_chain(automaton: Automaton, state: int, size: int) -> Guess:
    """The likeliest token after each, the latest of those as likely, as long as all of them together hold
    `MIN_PROB`."""
    count, follower = automaton.count, automaton.follower
    tokens: list[int] = []
    prob, score = 1.0, 0.0
    while len(tokens) < size:
        state = automaton.context(state)
        following = follower[state]
        if following == NONE:
            break
        prob *= count[following] / count[state]
        if prob < MIN_PROB:
            break
        score += prob
        tokens.append(automaton.token[state])
        state = following
    return Guess(score, tuple(tokens))


def grow_tree(automaton: Automaton, state: int, size: int) -> Guess:
    """The tokens that are likeliest with all before them; of those as likely the one that was found first."""
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    found = 0  # keeps the heap from comparing more
    heap: list[tuple[float, int, int, int, int]] = []

    def look(state: int, node: int, prob: float) -> None:
        nonlocal found
        state = automaton.context(state)
        for token, following in _followers(automaton, state):
            each = prob * automaton.count[following] / automaton.count[state]
            if each >= MIN_PROB:
                heappush(heap, (-each, found, token, following, node))
                found += 1

    look(state, COMMITTED, 1.0)
    while heap and len(tokens) < size:
        negative, _, token, state, parent = heappop(heap)
        score -= negative
        tokens.append(token)
        parents.append(parent)
        look(state, len(tokens) - 1, -negative)
    return Guess(score, tuple(tokens), tuple(parents))


def _followers(automaton: Automaton, state: int) -> Iterator[tuple[int, int]]:
    """The tokens that followed a state, each with its own state, the likeliest first; no others where there
    are `MANY`."""
    likeliest = automaton.token[state]
    if likeliest == NONE:
        return
    yield likeliest, automaton.follower[state]
    others = automaton.followers(state)
    if len(others) <= MANY:
        yield from ((token, follower) for token, follower in others.items() if token != likeliest)


def best_guess(automaton: Automaton, state: int, length: int, budget: int, grow: Grow) -> Guess:
    """The guess with the highest score after any ending of a text, after the longest of those as good.

    state, length: of the longest ending. An ending of m tokens has a guess of at most m · `FACTOR`.
    """
    best = Guess()
    while state != ROOT:
        size = min(budget, int(length * FACTOR))
        if size <= best.score:  # a guess scores no more than its length
            break
        guess = grow(automaton, state, size)
        if guess.score > best.score:
            best = guess
        state = automaton.link[state]
        length = automaton.length[state]
    return best


class _Text:
    """The committed tokens of one sequence."""

    def __init__(self) -> None:
        self.automaton = Automaton(DEPTH)
        self.state = ROOT
        self.known = 0

    def extend(self, tokens: Sequence[int]) -> Sequence[int]:
        """Takes in what is new of all committed tokens, and returns that."""
        new = tokens[self.known :]
        for token in new:
            self.state = self.automaton.extend(self.state, token)
        self.known += len(new)
        return new

    def guess(self, budget: int, grow: Grow) -> Guess:
        state = self.automaton.context(self.state)
        return best_guess(self.automaton, state, min(self.known, DEPTH), budget, grow)


class SuffixDrafter:
    """Looks up every ending of a text of up to `DEPTH` tokens in the same prompt and output, and drafts what
    most often came next, where the counts promise most accepted tokens.

    A committed token costs at most a few operations for each of `DEPTH` endings, a draft as many for each of
    its tokens, however long the text is. A token takes 2 states at most, of 20 bytes, and 3 followers.

    pool: of the latest outputs, so many tokens serve all requests; 0 for none. How soon one is answered may
    tell then what another was. tree: whether drafts branch where several tokens are likely.
    """

    name = "suffix"

    def __init__(self, *, pool: int = 0, tree: bool = False) -> None:
        self._texts: dict[int, _Text] = {}
        self._pool = Pool(pool, DEPTH) if pool else None
        self._grow: Grow = grow_tree if tree else grow_chain

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self._texts[seq] = _Text()
        self._texts[seq].extend(tokens)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        text = self._texts[request.seq]
        new = text.extend(request.tokens)
        best = text.guess(request.budget, self._grow)
        for guess in self._from_pool(request, new):
            if guess.score > best.score:
                best = guess
        return Draft(best.tokens, best.parents, source=self.name)

    def _from_pool(self, request: DraftRequest, new: Sequence[int]) -> Iterator[Guess]:
        if self._pool is None:
            return
        self._pool.extend(request.seq, new)
        end = request.tokens[-DEPTH:]
        for automaton in self._pool.automata:
            state, length = automaton.find(end)
            yield best_guess(automaton, state, length, request.budget, self._grow)

    def observe(self, seq: int, verdict: Verdict) -> None:
        pass  # only committed tokens are ever counted

    def stop(self, seq: int) -> None:
        self._texts.pop(seq, None)
        if self._pool is not None:
            self._pool.stop(seq)
