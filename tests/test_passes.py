"""What a pass refuses, and that rows which aren't there cost nothing, whoever computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from surefoot.models.base import Segment
from surefoot.models.build import build
from surefoot.models.decoder import Decoder
from tests.native import libraries
from tests.random_checkpoint import RandomCheckpoint, small_config

MAKERS: dict[str, Callable[[Path], Decoder]] = {
    "pytorch": lambda folder: build(RandomCheckpoint(small_config()), "fp32", folder).decoder,
    **{
        library.isa.name: lambda folder, library=library: (
            build(  # type: ignore[misc]
                RandomCheckpoint(small_config()), "int8", folder, library
            ).decoder
        )
        for library in libraries()
    },
}


@pytest.fixture(params=MAKERS)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    """With a sequence 1 of three tokens, and an empty one, 2."""
    made = MAKERS[request.param](tmp_path)
    made.cache.add(1)
    made.cache.add(2)
    made.forward([Segment(1, [5, 6, 7], 0)])
    return made


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [Segment(1, [], 0)],
        [Segment(2, [], 0)],
        [Segment(2, [], 0, parents=[]), Segment(1, [], 0)],
    ],
)
def test_a_pass_of_no_rows_has_no_logits(decoder: Decoder, batch: Sequence[Segment]) -> None:
    assert decoder.forward(batch).shape == (0, decoder.vocab_size)
    assert (decoder.cache.length(1), decoder.cache.length(2)) == (3, 0)


@pytest.mark.parametrize("beside", [Segment(2, [], 0), Segment(2, [8, 9], 0), Segment(2, [], 0, parents=[])])
def test_a_neighbour_of_whom_nothing_is_wanted_changes_nothing(decoder: Decoder, beside: Segment) -> None:
    expected = decoder.forward([Segment(1, [11, 12], 2)])
    for batch in ([beside, Segment(1, [11, 12], 2)], [Segment(1, [11, 12], 2), beside]):
        decoder.cache.truncate(1, 3)
        decoder.cache.truncate(2, 0)
        assert np.array_equal(decoder.forward(batch), expected)


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment(1, [5, 6], 3), "sequence 1: 3 of 2 rows are wanted"),
        (Segment(1, [5, 6], -1), "sequence 1: -1 of 2 rows are wanted"),
        (Segment(1, [5, 6], 1, parents=[-1]), "2 tokens has 1 parents"),
        (Segment(1, [5, 6], 1, parents=[1, -1]), "parent of node 0 is 1"),
        (Segment(3, [5], 1), "sequence 3 is unknown"),
        (Segment(1, [97], 1), "token 97 is not in the vocabulary of 97"),
        (Segment(1, [-1], 1), "token -1 is not in the vocabulary of 97"),
        (Segment(1, [5] * 2598, 1), r"sequence 1: 3 \+ 2598 rows exceed 2600"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_the_cache_as_it_was(
    decoder: Decoder, segment: Segment, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decoder.forward([Segment(2, [5, 6, 7, 8], 1), segment])
    assert (decoder.cache.length(1), decoder.cache.length(2)) == (3, 0)
