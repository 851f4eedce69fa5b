"""Drafters as somebody might write them, each fault at its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surefoot.drafters.base import DraftRequest
from surefoot.models.toy import random_table
from surefoot.types import Draft, Verdict
from surefoot.verify import exclude

VOCAB = 16
TABLE = random_table(VOCAB, 2, seed=5)


def logits_after(tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.asarray(TABLE(tuple(tokens)), np.float32)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum(), np.float64)


class Stateless:
    """A chain from a table of logits, looking at the whole text anew each time."""

    name = "stateless"

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.chain(request) for request in requests]

    def observe(self, seq: int, verdict: Verdict) -> None:
        pass

    def stop(self, seq: int) -> None:
        pass

    def chain(self, request: DraftRequest) -> Draft:
        tokens: list[int] = []
        rows: list[NDArray[np.float64]] = []
        while len(tokens) < request.budget:
            token, row = self.drawn(request, tokens)
            tokens.append(token)
            if row is not None:
                rows.append(row)
        return self.finished(tokens, rows)

    def drawn(self, request: DraftRequest, tokens: list[int]) -> tuple[int, NDArray[np.float64] | None]:
        return request.draw(logits_after([*request.tokens, *tokens]), tokens)

    def finished(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Draft:
        return Draft(tuple(tokens), probs=np.array(rows) if rows else None, source=self.name)


class UntilUnsure(Stateless):
    """Stops behind an unlikely token, which it keeps."""

    def chain(self, request: DraftRequest) -> Draft:
        draft = super().chain(request)
        if draft.probs is None:
            return draft
        for index, token in enumerate(draft.tokens):
            if draft.probs[index, token] < 0.4:
                return Draft(draft.tokens[: index + 1], probs=draft.probs[: index + 1])
        return draft


class ByItself(Stateless):
    """Draws with its own generator."""

    def __init__(self) -> None:
        self.chance = np.random.default_rng(1)

    def drawn(self, request: DraftRequest, tokens: list[int]) -> tuple[int, NDArray[np.float64] | None]:
        row = softmax(logits_after([*request.tokens, *tokens]))
        return int(self.chance.choice(VOCAB, p=self.drawn_from(row))), row

    def drawn_from(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        return row


class Siblings(ByItself):
    """Two children of the last committed token, without replacement, and one of each of theirs."""

    def chain(self, request: DraftRequest) -> Draft:
        row = softmax(logits_after(request.tokens))
        first = self.one_of(row)
        rest = exclude(row, first)
        tokens, rows = self.ordered([first, self.one_of(rest)], [row, rest])
        parents = [-1, -1]
        for node in (0, 1):
            row = softmax(logits_after([*request.tokens, tokens[node]]))
            tokens.append(self.one_of(row))
            parents.append(node)
            rows.append(row)
        count = request.budget
        return Draft(tuple(tokens[:count]), tuple(parents[:count]), np.array(rows[:count]), self.name)

    def one_of(self, row: NDArray[np.float64]) -> int:
        return int(self.chance.choice(VOCAB, p=row))

    def ordered(
        self, tokens: list[int], rows: list[NDArray[np.float64]]
    ) -> tuple[list[int], list[NDArray[np.float64]]]:
        return tokens, rows


class TopTree(Stateless):
    """The likeliest two, and the likeliest after the first: not drawn."""

    def chain(self, request: DraftRequest) -> Draft:
        first, second = np.argsort(-logits_after(request.tokens))[:2].tolist()
        third = int(logits_after([*request.tokens, first]).argmax())
        count = request.budget
        return Draft((first, second, third)[:count], (-1, -1, 0)[:count], source=self.name)


class Silent(Stateless):
    def chain(self, request: DraftRequest) -> Draft:
        return Draft(source=self.name)


class Adaptive(Stateless):
    """Drafts less after a rejection, on purpose."""

    def __init__(self) -> None:
        self.limit: dict[int, int] = {}

    def chain(self, request: DraftRequest) -> Draft:
        draft = super().chain(request)
        count = self.limit.get(request.seq, 5)
        return Draft(draft.tokens[:count], probs=None if draft.probs is None else draft.probs[:count])

    def observe(self, seq: int, verdict: Verdict) -> None:
        self.limit[seq] = 1 + len(verdict.path)

    def stop(self, seq: int) -> None:
        self.limit.pop(seq, None)


class Stateful(Stateless):
    """Feeds itself what is new, and rolls back what was rejected, as a model with a cache does."""

    name = "stateful"

    def __init__(self) -> None:
        self.fed: dict[int, list[int]] = {}
        self.committed: dict[int, int] = {}

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.fed[seq] = []

    def chain(self, request: DraftRequest) -> Draft:
        seq = request.seq
        self.committed[seq] = len(request.tokens)
        self.fed[seq] += request.tokens[len(self.fed[seq]) :]
        draft = super().chain(request)
        self.fed[seq] += draft.tokens[:-1]
        return draft

    def drawn(self, request: DraftRequest, tokens: list[int]) -> tuple[int, NDArray[np.float64] | None]:
        return request.draw(logits_after([*self.fed[request.seq], *tokens]), tokens)

    def observe(self, seq: int, verdict: Verdict) -> None:
        del self.fed[seq][self.committed[seq] + len(verdict.path) :]

    def stop(self, seq: int) -> None:
        self.fed.pop(seq)
        self.committed.pop(seq, None)


# Wrong ones


class RawProbs(Stateless):
    def drawn(self, request: DraftRequest, tokens: list[int]) -> Any:
        token, row = super().drawn(request, tokens)
        return token, None if row is None else softmax(logits_after([*request.tokens, *tokens]))


class ArgmaxWithProbs(Stateless):
    def drawn(self, request: DraftRequest, tokens: list[int]) -> Any:
        logits = logits_after([*request.tokens, *tokens])
        return int(logits.argmax()), request.draw(logits, tokens)[1]


class WithoutUnlikely(Stateless):
    """Drops a token that it drew, for being unlikely."""

    def finished(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Draft:
        count = next((i for i, row in enumerate(rows) if row[tokens[i]] < 0.4), len(tokens))
        return super().finished(tokens[:count], rows[:count])


class UpToTheSurest(Stateless):
    """Ends where it was surest, which the tokens behind decide."""

    def finished(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Draft:
        sure = [row[token] for row, token in zip(rows, tokens, strict=False)]
        count = int(np.argmax(sure)) + 1 if sure else len(tokens)
        return super().finished(tokens[:count], rows[:count])


class PastItsBudget(Stateless):
    def finished(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Draft:
        return super().finished([*tokens, 0], [*rows, *rows[:1]])


class NoDistribution(Stateless):
    def drawn(self, request: DraftRequest, tokens: list[int]) -> Any:
        token, row = super().drawn(request, tokens)
        return token, None if row is None else row * 2


class Reversed(Stateless):
    """Answers the requests in the wrong order."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return super().propose(requests)[::-1]


class WritesIntoTokens(Stateless):
    def chain(self, request: DraftRequest) -> Draft:
        draft = super().chain(request)
        assert isinstance(request.tokens, list)
        request.tokens.extend(draft.tokens)
        return draft


class Warmer(ByItself):
    """Draws from something flatter than what it returns."""

    def drawn_from(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(row) / np.sqrt(row).sum(), np.float64)


class SortedSiblings(Siblings):
    def ordered(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Any:
        tokens = sorted(tokens, key=lambda token: -rows[0][token])
        return tokens, [rows[0], exclude(rows[0], tokens[0])]


class SiblingsWithEldestRow(Siblings):
    def ordered(self, tokens: list[int], rows: list[NDArray[np.float64]]) -> Any:
        return tokens, [rows[0], rows[0]]


class KeepsRejected(Stateful):
    def observe(self, seq: int, verdict: Verdict) -> None:
        pass


class LacksTheLastAccepted(Stateful):
    """After a draft that was accepted whole, its last token was never fed."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[int, int] = {}

    def chain(self, request: DraftRequest) -> Draft:
        fed = self.fed[request.seq]
        counted = self.counted.get(request.seq, len(fed))
        fed += request.tokens[counted:]
        draft = Stateless.chain(self, request)
        self.committed[request.seq] = len(fed)
        fed += draft.tokens[:-1]
        self.counted[request.seq] = len(request.tokens) + len(draft.tokens)
        return draft

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        if not verdict.bonus:
            self.counted[seq] = len(self.fed[seq])

    def stop(self, seq: int) -> None:
        super().stop(seq)
        self.counted.pop(seq, None)


class RollsBackTooFar(Stateful):
    """Takes one token too many away, and believes it to be there."""

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        if not verdict.bonus:
            self.fed[seq][-1] = 0


class OneStateForAll(Stateful):
    def drawn(self, request: DraftRequest, tokens: list[int]) -> Any:
        shared = next(iter(self.fed.values()))
        return request.draw(logits_after([*shared, *tokens]), tokens)


class StateByPrompt(Stateful):
    """Requests with the same prompt are taken for one."""

    def __init__(self) -> None:
        super().__init__()
        self.same: dict[tuple[int, ...], list[int]] = {}

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.fed[seq] = self.same.setdefault(tuple(tokens), [])


class RemembersTheStopped(Stateful):
    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.fed.setdefault(seq, [])

    def stop(self, seq: int) -> None:
        pass


class StopsEverything(Stateful):
    def stop(self, seq: int) -> None:
        self.fed.clear()


class SilentAfterARejection(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.silent: set[int] = set()

    def chain(self, request: DraftRequest) -> Draft:
        return Draft() if request.seq in self.silent else super().chain(request)

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        if not verdict.bonus:
            self.silent.add(seq)


class CantStopEarly(Stateful):
    """Fails for a sequence that ends before it was ever asked about."""

    def stop(self, seq: int) -> None:
        del self.committed[seq]
        del self.fed[seq]


class LosesItsTemper(Stateless):
    """A little colder each time it is asked: the tokens stay, the probabilities don't."""

    def __init__(self) -> None:
        self.asked = 0

    def chain(self, request: DraftRequest) -> Draft:
        self.asked += 1
        return super().chain(request)

    def drawn(self, request: DraftRequest, tokens: list[int]) -> tuple[int, NDArray[np.float64] | None]:
        colder = np.float32(1 + 1e-4 * self.asked)
        return request.draw(logits_after([*request.tokens, *tokens]) * colder, tokens)


class OnlyTheEldest(TopTree):
    """Takes the first child for the accepted one."""

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def chain(self, request: DraftRequest) -> Draft:
        return Draft() if request.seq in self.lost else super().chain(request)

    def observe(self, seq: int, verdict: Verdict) -> None:
        if verdict.path and verdict.path[0] != 0:
            self.lost.add(seq)


class CountsByVerdicts(Stateful):
    """Believes that every token comes through `observe`."""

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.fed[seq] = list(tokens)

    def chain(self, request: DraftRequest) -> Draft:
        draft = Stateless.chain(self, request)
        self.committed[request.seq] = len(self.fed[request.seq])
        self.fed[request.seq] += draft.tokens
        return draft

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        self.fed[seq].append(verdict.next_token)


class ForgetsTheAbsent(Stateful):
    """A sequence that sits out a round is taken for stopped."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        asked = {request.seq for request in requests}
        for seq in self.fed.keys() - asked:
            self.fed[seq] = [0] * len(self.fed[seq])
        return drafts


class KeepsADraftUnderWay(Stateful):
    """Forgets a stopped sequence, but not one whose last draft it never heard of."""

    def start(self, seq: int, tokens: Sequence[int]) -> None:
        self.fed.setdefault(seq, [])

    def observe(self, seq: int, verdict: Verdict) -> None:
        super().observe(seq, verdict)
        del self.committed[seq]

    def stop(self, seq: int) -> None:
        if seq not in self.committed:
            del self.fed[seq]


FRESH = r"it proposed \[.*\]; a new drafter that starts with its \d+ tokens proposes \["

WRONG: dict[str, tuple[type[Stateless], str]] = {
    "raw probs": (RawProbs, "row 0 of its probs isn't the distribution that draw gave"),
    "argmax with probs": (ArgmaxWithProbs, r"token \d of its draft is \d+, and draw gave \[\d+\]"),
    "drops unlikely tokens": (WithoutUnlikely, "token 0 of its drafts doesn't come with the probabilities"),
    "cut by what follows": (UpToTheSurest, "token [12] of its drafts doesn't come with the probabilities"),
    "past its budget": (PastItsBudget, "2 tokens drafted, 1 allowed"),
    "no distribution": (NoDistribution, "row 0 of its probs is no distribution: .*sum 2"),
    "in the wrong order": (Reversed, FRESH),
    "writes into tokens": (WritesIntoTokens, "it changed the tokens of a request"),
    "draws from other probabilities": (Warmer, "token 0 of its drafts doesn't come with the probabilities"),
    "siblings sorted": (SortedSiblings, "token 0 of its drafts doesn't come with the probabilities"),
    "siblings with the eldest's row": (SiblingsWithEldestRow, "token 1 of its drafts doesn't come with"),
    "keeps what was rejected": (KeepsRejected, FRESH),
    "lacks the last accepted token": (LacksTheLastAccepted, FRESH),
    "rolls back too far": (RollsBackTooFar, FRESH),
    "one state for all": (OneStateForAll, FRESH),
    "state by prompt": (StateByPrompt, f"({FRESH}|it returned other probs than a new drafter)"),
    "remembers the stopped": (RemembersTheStopped, FRESH),
    "stops everything": (StopsEverything, "propose raised KeyError: 1"),
    "silent after a rejection": (SilentAfterARejection, r"it proposed \[\]; a new drafter"),
    "can't stop early": (CantStopEarly, "stop raised KeyError: 0"),
    "other probs, same tokens": (LosesItsTemper, "it returned other probs than a new drafter"),
    "only the eldest child": (OnlyTheEldest, r"it proposed \[\]; a new drafter"),
    "counts by verdicts": (CountsByVerdicts, FRESH),
    "forgets the absent": (ForgetsTheAbsent, FRESH),
    "keeps a draft under way": (KeepsADraftUnderWay, FRESH),
    "never drafts": (Silent, "it drafted nothing, so nothing was shown"),
}
