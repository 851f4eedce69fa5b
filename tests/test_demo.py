"""The demonstration: what it shows, and that it says so when speculation loses, or breaks its promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot import demo
from surefoot.results import Choice, Result
from surefoot.trace import Stats, stats
from surefoot.types import SurefootError, Usage
from tests.models_fixture import smollm2_path
from tests.threads import one_thread


def result(decode_ms: float, tokens: tuple[int, ...] = (1, 2, 3)) -> Result:
    numbers: Stats = replace(stats([]), decode_ms=decode_ms, tokens_per_second=2000 / decode_ms)
    choice = Choice(0, "text", tokens, "stop")
    return Result(None, (0,), (choice,), 7, Usage(1, len(tokens)), numbers)


def comparison(plain_ms: float, speculated_ms: float) -> demo.Comparison:
    return demo.Comparison("a story", result(plain_ms), result(speculated_ms))


def test_a_gain_is_told() -> None:
    said = demo.conclusion([comparison(300, 100), comparison(100, 100)])
    assert "overall 2.00×" in said
    assert "3.00×" in said
    assert "lost" not in said


def test_a_loss_is_told_too() -> None:
    said = demo.conclusion([comparison(100, 200), comparison(100, 50)])
    assert "overall 0.80×" in said
    assert "lost time on 1 of 2" in said


def test_other_tokens_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    smollm2_path()
    different = demo.Comparison("a story", result(100), result(50, tokens=(1, 2, 4)))
    assert str(different).startswith("DIFFERENT")
    monkeypatch.setattr(demo, "_compare", lambda *arguments: different)
    with one_thread(), pytest.raises(SurefootError, match="a story"):
        demo.main(["--max-tokens", "4"])


def test_it_shows_three_prompts_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    smollm2_path()
    with one_thread():
        demo.main(["--max-tokens", "8", "--seed", "5"])
    said = capsys.readouterr().out
    assert "seed 5" in said
    assert [said.count(kind.upper()) for kind in demo.PROMPTS] == [1, 1, 1]
    assert said.count("the same 8 tokens") == 3
    assert "Speculated against plain" in said.splitlines()[-1]
    plain, _, speculated = said.partition("A STORY\n")[2].partition("\nspeculated\n")
    answer = plain.partition("\nplain\n")[2].strip()
    assert answer
    assert speculated.startswith(answer)
