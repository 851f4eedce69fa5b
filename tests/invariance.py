"""One company a row may keep, and the check that it changes no bit of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.models.base import Model, Segment

CHUNKS = (1, 2, 3, 5, 15, 16, 17, 33, 48, 64, 512)
SUBJECT = 0  # the sequence whose rows are compared; all others are company


def digest(row: NDArray[np.float32]) -> bytes:
    return blake2b(row.tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Company:
    """source: the sequence that `reference` left in the cache. start: rows of the subject that come from
    there (`cached`: forked) or are computed in `warm_up` chunks. chunks: the passes that follow. others:
    (tokens before, rows in each pass) of neighbours. siblings: each chunk is sent as a tree with so many
    wrong branches before its true rows, each `depth` deep. garbage: sequences that were computed and freed
    before, so that pages hold their remains.
    """

    source: int
    start: int
    cached: bool
    warm_up: int
    chunks: tuple[int, ...]
    others: tuple[tuple[int, int], ...]
    siblings: int
    depth: int
    garbage: tuple[int, ...]


def companies(length: int, prompts: int = 1) -> st.SearchStrategy[Company]:
    """Every kind of company for a subject of `length` tokens, one of so many prompts."""
    return st.builds(
        Company,
        source=st.integers(-prompts, -1),
        start=st.sampled_from([0, 1, 15, 16, 31, 32, 33, length // 2, 511, 512, 513, length - 70]).filter(
            lambda start: 0 <= start < length
        )
        | st.integers(0, length - 1),
        cached=st.booleans(),
        warm_up=st.sampled_from(CHUNKS[3:]),
        chunks=st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=4).map(tuple),
        others=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=3).map(tuple),
        siblings=st.sampled_from([0, 0, 1, 3]),
        depth=st.integers(1, 3),
        garbage=st.lists(st.integers(1, 120), max_size=3).map(tuple),
    )


def reference(model: Model, tokens: Sequence[int], seq: int) -> list[bytes]:
    """The digest of every row's logits, from one sequence alone, in chunks of 64."""
    model.cache.add(seq)
    rows: list[bytes] = []
    for first in range(0, len(tokens), 64):
        part = tokens[first : first + 64]
        rows += [digest(row) for row in model.forward([Segment(seq, part, len(part))])]
    return rows  # the sequence stays: `Company.cached` forks it


def differing_rows(
    model: Model, tokens: Sequence[int], expected: Sequence[bytes], company: Company, seed: int
) -> list[int]:
    """The positions whose logits this company changed. Leaves the cache as it was."""
    rng = np.random.default_rng(seed)

    def noise(count: int) -> list[int]:
        return [int(token) for token in rng.integers(0, model.vocab_size, count)]

    for index, count in enumerate(company.garbage, 100):
        model.cache.add(index)
        model.forward([Segment(index, noise(count), 0)])
    _warm_up(model, tokens, company)
    for index, (before, _) in enumerate(company.others, 1):
        model.cache.add(index)
        if before:
            model.forward([Segment(index, noise(before), 0)])
    for index in range(100, 100 + len(company.garbage)):
        model.cache.free(index)
    wrong, position = [], company.start
    for chunk in company.chunks:
        part = tokens[position : position + chunk]
        if not part:
            break
        neighbours = [Segment(i, noise(rows), rows) for i, (_, rows) in enumerate(company.others, 1)]
        subject, own_rows = _subject(part, company, noise)
        batch = [*neighbours[:1], subject, *neighbours[1:]]
        logits = model.forward(batch)
        first = neighbours[0].num_wanted if neighbours else 0
        model.cache.keep(SUBJECT, position, own_rows)
        for row, place in enumerate(own_rows):
            if digest(logits[first + place]) != expected[position + row]:
                wrong.append(position + row)
        position += len(part)
    for index in range(len(company.others) + 1):
        model.cache.free(index)
    return wrong


def _warm_up(model: Model, tokens: Sequence[int], company: Company) -> None:
    if company.cached:
        model.cache.fork(SUBJECT, company.source, company.start)
        return
    model.cache.add(SUBJECT)
    for first in range(0, company.start, company.warm_up):
        model.forward([Segment(SUBJECT, tokens[first : min(first + company.warm_up, company.start)], 0)])


def _subject(part: Sequence[int], company: Company, noise: object) -> tuple[Segment, list[int]]:
    """The subject's segment and the places of its true rows in it."""
    assert callable(noise)
    if not company.siblings:
        return Segment(SUBJECT, part, len(part)), list(range(len(part)))
    tokens: list[int] = []
    parents: list[int] = []
    places: list[int] = []
    for token in part:
        above = places[-1] if places else -1
        if len(tokens) < 40:  # wrong branches beside the first rows are enough
            for _ in range(company.siblings):
                for level in range(company.depth):
                    parents.append(above if level == 0 else len(tokens) - 1)
                    tokens += noise(1)
        places.append(len(tokens))
        parents.append(above)
        tokens.append(token)
    return Segment(SUBJECT, tokens, len(tokens), parents), places
