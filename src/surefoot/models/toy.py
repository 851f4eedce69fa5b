"""A model whose probabilities are known exactly: for tests, and for trying out a drafter.

    model = ToyModel(random_table(vocab_size=32, order=2, seed=1), vocab_size=32)

Its logits are a function of the tokens before a row, so there is nothing to go wrong but the bookkeeping,
and that its cache checks at every step: lengths, rollbacks, forks, and that the rows of a tree were
resolved to one path before anything is built on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.models.base import CacheFullError, Segment
from surefoot.models.pages import PageTable
from surefoot.noise import exponentials, token_key
from surefoot.tree import ROOT, depths, parents_of, path_to

LogitsOf = Callable[[tuple[int, ...]], ArrayLike]
"""All tokens up to and including a row's own → its logits, [vocabulary]."""


def random_table(vocab_size: int, order: int = 1, seed: int = 0, spread: float = 2.0) -> LogitsOf:
    """Random logits for every context of the last `order` tokens, the same in every process.

    spread: their standard deviation; 0 makes every token as likely as any other.
    """
    ids = np.arange(vocab_size)
    rows: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits_of(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        context = prefix[-order:] if order else ()
        if context not in rows:
            number = 0
            for token in context:
                number = number * (vocab_size + 1) + token + 1
            first, second = (exponentials(token_key(seed, n, number % 2**64), ids) for n in (0, 1))
            gumbels = np.log(first) - np.log(second)  # logistic: the difference of two Gumbels
            rows[context] = (gumbels * (spread * np.sqrt(3) / np.pi)).astype(np.float32)
        return rows[context]

    return logits_of


def probability_table(table: Mapping[tuple[int, ...], Sequence[float]]) -> LogitsOf:
    """Given probabilities: of the contexts in `table` that a prefix ends with, the longest one's.

    `()` is the context of last resort. Zeros are fine. Raises ValueError for a row that doesn't sum to 1, and
    when asked for a prefix that no context fits.
    """
    rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for context, probs in table.items():
        if abs(sum(probs) - 1) > 1e-6 or min(probs) < 0:
            raise ValueError(f"the probabilities after {context} are not a distribution: {list(probs)}")
        with np.errstate(divide="ignore"):
            rows[context] = np.log(np.asarray(probs, np.float64)).astype(np.float32)
    longest = max(len(context) for context in rows)

    def logits_of(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        for size in range(min(longest, len(prefix)), -1, -1):
            row = rows.get(prefix[len(prefix) - size :])
            if row is not None:
                return row
        raise ValueError(f"the table has no context that {prefix[-longest:]} ends with")

    return logits_of


class _Row(NamedTuple):
    token: int
    parent: int  # index of the row it follows, -1 for the first


class ToyCache:
    """Tokens instead of keys and values, and the contract of `models.base.Cache`, strictly.

    page_rows: small, so that short sequences fill several pages. A row counts as one byte.
    """

    row_bytes = 1

    def __init__(self, page_rows: int = 4) -> None:
        self.page_rows = page_rows
        self._table = PageTable(page_rows, num_pages=64)
        self._rows: dict[int, list[_Row]] = {}

    def __len__(self) -> int:
        """Sequences held."""
        return len(self._rows)

    def limit(self, pages: int | None) -> None:
        self._table.limit(pages)

    def free_pages(self) -> int | None:
        return self._table.free_pages()

    def spare_pages(self) -> int:
        return self._table.spare_pages()

    def used_pages(self) -> int:
        return self._table.used_pages()

    def cost(self, seq: int, rows: int) -> int:
        return self._table.cost(seq, rows)

    def add(self, seq: int) -> None:
        self._table.add(seq)
        self._rows[seq] = []

    def length(self, seq: int) -> int:
        return len(self._rows[seq])

    def truncate(self, seq: int, length: int) -> None:
        self._table.truncate(seq, length)
        del self._rows[seq][length:]

    def keep(self, seq: int, base: int, rows: Sequence[int]) -> None:
        held = self._rows[seq]
        if not 0 <= base <= len(held):
            raise ValueError(f"sequence {seq} holds {len(held)} rows, not the {base} to keep")
        path = held[:base]
        above = base - 1
        for row in (base + r for r in rows):
            if not above < row < len(held):
                raise ValueError(f"rows to keep must ascend within [0, {len(held) - base - 1}]: {list(rows)}")
            if held[row].parent != above:
                raise ValueError(
                    f"row {row - base} of those to keep doesn't follow the one before: {list(rows)}"
                )
            path.append(_Row(held[row].token, len(path) - 1))
            above = row
        if list(rows) != list(range(len(rows))):
            self._table.refuse_shared(seq, base, len(path))
        self._table.truncate(seq, len(path))
        self._rows[seq] = path

    def fork(self, seq: int, source: int, length: int) -> None:
        self._table.fork(seq, source, length)
        self._rows[seq] = self._rows[source][:length]

    def free(self, seq: int) -> None:
        self._table.free(seq)
        del self._rows[seq]

    def check(self) -> None:
        """Raises AssertionError when the books don't balance: see `PageTable.check`."""
        self._table.check()
        assert {seq: self._table.length(seq) for seq in self._rows} == {
            seq: len(rows) for seq, rows in self._rows.items()
        }
        assert len(self._table) == len(self._rows)

    def tokens(self, seq: int) -> tuple[int, ...]:
        """The tokens held for a sequence. Raises ValueError while they are a tree's."""
        rows = self._rows[seq]
        for index, row in enumerate(rows):
            if row.parent != index - 1:
                raise ValueError(f"sequence {seq} still holds the branches of a tree: keep one path first")
        return tuple(row.token for row in rows)

    def append(self, seq: int, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Adds the rows of a pass, their parents relative to its own first row. Raises CacheFullError, and
        changes nothing, when they don't fit."""
        rows = self._rows[seq]
        self._table.append(seq, len(tokens))
        base = len(rows)
        rows.extend(
            _Row(t, base - 1 if p == ROOT else base + p) for t, p in zip(tokens, parents, strict=True)
        )


class ToyModel:
    """A `models.base.Model` over any function of the prefix.

    logits_of: see `LogitsOf`; `random_table` and `probability_table` make some. eos_token_ids: the tokens
    that end a text, for whoever asks; the model itself goes on. page_rows: of its cache.
    """

    def __init__(
        self,
        logits_of: LogitsOf,
        vocab_size: int,
        max_length: int = 4096,
        eos_token_ids: tuple[int, ...] = (),
        page_rows: int = 4,
    ) -> None:
        self.eos_token_ids = eos_token_ids
        self._logits_of = logits_of
        self._vocab_size = vocab_size
        self._max_length = max_length
        self._cache = ToyCache(page_rows)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def cache(self) -> ToyCache:
        return self._cache

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        """As `models.base.Model.forward`; also refuses an empty segment, and a sequence given twice."""
        if len({segment.seq for segment in batch}) != len(batch):
            raise ValueError("a sequence is in the batch twice")
        prefixes = [prefix for segment in batch for prefix in self._prefixes(segment)]
        logits = np.empty((len(prefixes), self._vocab_size), np.float32)
        for row, prefix in enumerate(prefixes):
            logits[row] = self._logits_of(prefix)
        self._append(batch)
        return logits

    def _append(self, batch: Sequence[Segment]) -> None:
        before = {segment.seq: self._cache.length(segment.seq) for segment in batch}
        try:
            for segment in batch:
                parents = parents_of(segment.parents, len(segment.tokens))
                self._cache.append(segment.seq, segment.tokens, parents)
        except CacheFullError:
            for seq, length in before.items():
                self._cache.truncate(seq, length)
            raise

    def _prefixes(self, segment: Segment) -> list[tuple[int, ...]]:
        """What each wanted row sees, itself included."""
        size = len(segment.tokens)
        try:
            held = self._cache.tokens(segment.seq)
        except KeyError:
            raise ValueError(f"sequence {segment.seq} is unknown") from None
        if not size or not 0 <= segment.num_wanted <= size:
            raise ValueError(f"{segment.num_wanted} rows wanted of the {size} of sequence {segment.seq}")
        parents = parents_of(segment.parents, size)
        for token, depth in zip(segment.tokens, depths(parents), strict=True):
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"token {token} is out of range; allowed is [0, {self._vocab_size - 1}]")
            if len(held) + depth > self._max_length:
                raise ValueError(
                    f"position {len(held) + depth - 1} is past the model's {self._max_length} tokens"
                )
        wanted = range(size - segment.num_wanted, size)
        return [(*held, *(segment.tokens[node] for node in path_to(parents, row))) for row in wanted]
