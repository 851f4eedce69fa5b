"""Events, the numbers made of them, and the file they go to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.trace import Event, Writer, peak_memory_bytes, read, stats
from surefoot.types import SurefootError

BLANK = Event(
    round=0,
    request=0,
    choice=0,
    arrived=1.0,
    began=1.0,
    ended=1.5,
    prompt_rows=0,
    rows=1,
    draft_tokens=(),
    parents=None,
    source="",
    tested=0,
    path=(),
    next_token=7,
    bonus=True,
    emitted=(7,),
    finish_reason=None,
    draft_ms=10.0,
    verify_ms=100.0,
    other_ms=1.0,
    peak_memory_bytes=1000,
)
PROMPT = replace(BLANK, prompt_rows=5, rows=5)
KEPT = replace(
    BLANK,
    round=1,
    began=1.5,
    ended=2.0,
    rows=5,
    draft_tokens=(1, 2, 3, 4),
    source="ngram",
    tested=3,
    path=(0, 1),
    bonus=False,
    emitted=(1, 2, 9),
)
CUT = replace(
    BLANK,
    round=2,
    began=2.0,
    ended=2.5,
    rows=3,
    draft_tokens=(1, 2),
    tested=2,
    path=(0, 1),
    emitted=(1,),
    finish_reason="stop",
    peak_memory_bytes=2000,
)


def test_the_numbers_of_a_request() -> None:
    numbers = stats([PROMPT, KEPT, CUT])
    assert (numbers.rounds, numbers.draft_tokens, numbers.tested_tokens, numbers.accepted_tokens) == (
        2,
        6,
        5,
        4,
    )
    assert numbers.mean_acceptance_length == 2.0  # 3 + 1 tokens in 2 verifications
    assert numbers.acceptance_rate == pytest.approx(4 / 6)  # what a stop cut off is not rejected
    assert numbers.acceptance_histogram == (0, 0, 2, 0, 0)
    assert numbers.ttft_ms == pytest.approx(500)
    assert numbers.decode_ms == pytest.approx(1000)
    assert numbers.tokens_per_second == pytest.approx(4)
    assert (numbers.draft_ms, numbers.verify_ms, numbers.other_ms) == pytest.approx((20, 200, 2))
    assert numbers.peak_memory_bytes == 2000


def test_plain_decoding_has_a_mean_acceptance_length_of_one() -> None:
    rounds = [replace(BLANK, round=i, ended=1.5 + i) for i in range(1, 4)]
    numbers = stats([PROMPT, *rounds])
    assert (numbers.rounds, numbers.mean_acceptance_length, numbers.acceptance_rate) == (3, 1.0, 0.0)
    assert numbers.acceptance_histogram == (0,)  # a round without a draft accepted none of none


def test_a_round_that_requests_share_is_timed_once_and_counted_for_each() -> None:
    numbers = stats(event for request in (0, 1) for event in (replace(KEPT, request=request),))
    assert (numbers.rounds, numbers.draft_tokens, numbers.verify_ms) == (2, 8, 100.0)


def test_nothing_is_not_divided_by() -> None:
    assert stats([]).tokens_per_second == 0
    assert stats([PROMPT]).mean_acceptance_length == 0


def test_a_trace_reads_back_as_it_was_written(tmp_path: Path) -> None:
    events = [PROMPT, KEPT, replace(CUT, parents=(-1, -1), next_token=None)]
    with Writer(tmp_path / "trace.jsonl") as write:
        for event in events:
            write(event)
    assert read(tmp_path / "trace.jsonl") == events


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with Writer(path) as write:
        write(KEPT)
    path.write_text(path.read_text() + '{"round": 1}\n')
    with pytest.raises(SurefootError, match=r"^trace: line 2 of .*trace\.jsonl is no event"):
        read(path)


def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SurefootError, match=r"^trace: .*can't be written"):
        Writer(tmp_path / "missing" / "trace.jsonl")
    with pytest.raises(SurefootError, match=r"^trace: .*can't be read"):
        read(tmp_path / "missing")


def test_the_peak_is_in_bytes() -> None:
    assert 2**23 < peak_memory_bytes() < 2**40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_names_the_trace_also_when_it_is_closed() -> None:
    with (
        pytest.raises(SurefootError, match=r"trace: /dev/full can't be written"),
        Writer("/dev/full") as write,
    ):
        write(BLANK)
