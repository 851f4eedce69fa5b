"""A report as the terminal, JSON and the page show it: whole, and never taken for markup."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.audit import words
from surefoot.audit.as_json import as_json
from surefoot.audit.html import page
from surefoot.audit.plots import DRAWN, HOVERED, Plot, plot
from surefoot.audit.report import EXIT_CODES, GRAVITY, Check, Curve, Report, Table, Verdict
from surefoot.audit.terminal import BEYOND, render

HOSTILE = "<script>alert('x')</script> & \"quoted\" \x1b[31m\u202e[bold]{{ 7 * 7 }}"
BARS = Table(
    "what would have been seen",
    ("place", "tokens", "bias"),
    (("draft position 1", 123456789, 0.0123456), ("bonus", 3, math.inf), ("nowhere", 0, math.nan)),
    bar="bias",
)
CURVE = Curve("evidence", ((0, 0.0), (100, -0.5), (250, 1.25), (400, 0.5)), 2.0)


def check(verdict: Verdict = "pass", **changes: Any) -> Check:
    fields: dict[str, Any] = {"name": "a question", "summary": "An answer.", "tokens": 1200} | changes
    return Check(verdict=verdict, **fields)


def report(*checks: Check, subject: str = "a pair") -> Report:
    return Report(subject, {"temperature": "0.8", "verify": "block"}, checks, 61.25)


FULL = report(
    check(details=("first line", "second line"), tables=(BARS,), curves=(CURVE,)), check("loss", name="other")
)


def printed(capsys: pytest.CaptureFixture[str], shown: Report) -> str:
    render(shown)
    return capsys.readouterr().out


# --- the terminal


@pytest.mark.parametrize("verdict", GRAVITY)
def test_a_verdict_is_said_at_its_check_and_in_the_last_line(
    verdict: Verdict, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, report(check(verdict))).splitlines()
    assert f"{words.NAMES[verdict]}  a question" in lines[3]
    assert words.MEANINGS[verdict] in lines[-1]
    assert f"exit code {EXIT_CODES[verdict]}" in lines[-1]


def test_everything_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, FULL)
    for part in (
        "a pair", "temperature 0.8", "a question", "An answer.", "first line", "second line", "other",
        "draft position 1", "123,456,789", "0.01235", "∞", BEYOND, "17.8, after 250 tokens", "2,400 tokens",
        "61.2 s",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("width", [1, 20, 80, 300])
def test_nothing_is_cut_whatever_the_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(capsys, FULL)
    assert "…" not in text
    for number in ("123,456,789", "0.01235", BEYOND, "61.2 s", "draft position 1"):
        assert number in text
    assert max(map(len, text.splitlines())) <= max(width, 120)


def test_what_is_no_terminal_gets_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in printed(capsys, FULL)


def test_a_prompt_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    hostile = check(name=HOSTILE, summary=HOSTILE, details=(HOSTILE,), tables=(table,))
    text = printed(capsys, report(hostile, subject=HOSTILE))
    assert not {"\x1b", "\u202e"} & set(text)
    assert text.count("\\x1b[31m\\u202e[bold]") >= 4


def test_a_report_without_checks_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    assert "undecided" in printed(capsys, report()).splitlines()[-1]


# --- JSON


def test_the_object_has_the_fields_of_the_report() -> None:
    found = json.loads(as_json(FULL))
    assert list(found) == ["verdict", "exit_code", "subject", "settings", "checks", "seconds", "conclusion"]
    assert (found["verdict"], found["exit_code"]) == ("loss", 1)
    first = found["checks"][0]
    assert list(first) == ["name", "verdict", "summary", "tokens", "details", "tables", "curves", "facts"]
    assert first["details"] == ["first line", "second line"]
    assert first["curves"] == [
        {"title": "evidence", "points": [[0, 0.0], [100, -0.5], [250, 1.25], [400, 0.5]], "limit": 2.0}
    ]
    [table] = first["tables"]
    assert list(table) == ["title", "columns", "rows", "bar"]
    assert table["rows"] == [
        ["draft position 1", 123456789, 0.0123456],
        ["bonus", 3, None],
        ["nowhere", 0, None],
    ]


def test_a_conclusion_of_its_own_takes_the_usual_ones_place(capsys: pytest.CaptureFixture[str]) -> None:
    own = Report("the audit itself", {}, (check("loss"),), 1.0, conclusion="a fault escaped")
    assert json.loads(as_json(own))["conclusion"] == "a fault escaped"
    assert json.loads(as_json(FULL))["conclusion"] == words.MEANINGS["loss"]
    for text in (printed(capsys, own), page(own)):
        assert "a fault escaped (exit code 1)" in text
        assert words.MEANINGS["loss"] not in text


def test_facts_keep_their_names_and_become_plain_values() -> None:
    facts = {"n": np.int64(3), "x": np.float32(0.5), "inf": -math.inf, "yes": True, "in": {1: (None, "a")}}
    found = json.loads(as_json(report(check(facts=facts))))["checks"][0]["facts"]
    assert found == {"n": 3, "x": 0.5, "inf": None, "yes": True, "in": {"1": [None, "a"]}}
    assert found["yes"] is True


def test_a_fact_that_is_no_plain_value_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="object"):
        as_json(report(check(facts={"what": object()})))


# --- the page


class Reader(HTMLParser):
    """What a browser would see: tags that are open, text, and whatever points elsewhere."""

    VOID = ("meta", "link", "img", "br", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def read(shown: Report) -> Reader:
    reader = Reader()
    reader.feed(page(shown))
    reader.close()
    assert reader.open == []
    return reader


def test_everything_is_on_the_page() -> None:
    text = " ".join(read(FULL).text)
    for part in (
        "LOSS", "exit code 1", "a pair", "temperature", "0.8", "a question", "An answer.", "first line",
        "second line", "draft position 1", "123,456,789", "∞", "17.8, after 250 tokens",
        "after 400 tokens: 3.16", "100: a loss is shown", "2,400 tokens",
    ):  # fmt: skip
        assert part in text


def test_the_page_asks_for_nothing() -> None:
    text = page(FULL)
    assert not re.search(r"https?:|//|url\(|@import", text)
    reader = read(FULL)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(reader.tags)
    assert not {"src", "href", "action"} & {name for name, _ in reader.attributes}


def test_the_page_is_made_for_dark_rooms_and_for_paper() -> None:
    assert "prefers-color-scheme: dark" in page(FULL)
    assert "@media print" in page(FULL)


def test_a_prompt_is_no_markup() -> None:
    table = Table(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    curve = Curve(HOSTILE, CURVE.points, 2.0)
    hostile = check(name=HOSTILE, summary=HOSTILE, details=(HOSTILE,), tables=(table,), curves=(curve,))
    shown = Report(HOSTILE, {HOSTILE: HOSTILE}, (hostile,), 1.0)
    reader = read(shown)
    assert "script" not in reader.tags
    assert not any(name.startswith("on") for name, _ in reader.attributes)
    assert "".join(reader.text).count("<script>alert('x')</script> & \"quoted\" \\x1b[31m\\u202e") >= 10
    assert "{{ 7 * 7 }}" in page(shown)


@given(st.text())
def test_no_text_is_markup(text: str) -> None:
    assert set(read(report(check(summary=text), subject=text)).tags) == set(read(report(check())).tags)


def test_the_longest_bar_is_full_and_what_is_infinite_is_marked() -> None:
    rows: tuple[tuple[str | float, ...], ...] = (
        ("a", 0.5),
        ("b", 1.0),
        ("c", math.inf),
        ("d", math.nan),
        ("e", 0),
    )
    table = Table("bars", ("place", "bias"), rows, bar="bias")
    assert words.shares(table) == [0.5, 1.0, math.inf, None, 0.0]
    text = page(report(check(tables=(table,))))
    assert re.findall(r'style="width:([\d.]+)%"', text) == ["50.0", "100.0", "0.0"]
    assert text.count('class="beyond"') == 1


def test_a_word_among_numbers_leaves_them_numbers() -> None:
    table = Table("mixed", ("bias", "place"), ((0.5, "a"), ("none", "b")), bar="bias")
    assert (words.is_numeric(table, 0), words.is_numeric(table, 1)) == (True, False)
    assert words.shares(table) == [1.0, None]


def test_bars_of_nothing_are_empty() -> None:
    assert words.shares(Table("bars", ("bias",), ((0.0,), (0,)), bar="bias")) == [0.0, 0.0]
    assert words.shares(Table("none", ("bias",), ((1.0,),))) == []


# --- curves


def coordinates(drawn: Plot) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, _, y in (pair.partition(",") for pair in drawn.line.split())]


def drawing(curve: Curve) -> Plot:
    drawn = plot(curve)
    assert drawn is not None
    return drawn


values = st.floats(-400, 400)


@given(st.lists(values, min_size=2, max_size=2000), st.floats(0.1, 5), st.integers(1, 1000))
def test_a_curve_stays_in_its_box(heights: list[float], limit: float, step: int) -> None:
    drawn = drawing(Curve("c", tuple((step * n, height) for n, height in enumerate(heights)), limit))
    inside = [*coordinates(drawn), *((spot.x, spot.y) for spot in drawn.spots)]
    assert all(drawn.left - 0.1 <= x <= drawn.right + 0.1 for x, _ in inside)
    assert all(drawn.top - 0.1 <= y <= drawn.bottom + 0.1 for _, y in inside)
    assert drawn.top <= drawn.limit.at <= drawn.bottom
    assert len(coordinates(drawn)) <= DRAWN + 3
    assert len(drawn.spots) <= HOVERED
    assert all(spot.width >= 0 for spot in drawn.spots)


@given(st.lists(values, min_size=2, max_size=3000))
def test_a_thinned_curve_keeps_its_peak_and_its_end(heights: list[float]) -> None:
    drawn = drawing(Curve("c", tuple(enumerate(heights)), 2.0))
    whole = drawing(Curve("c", ((0, max(heights)), (1, min(heights)), (2, heights[-1])), 2.0))
    drawn_y, whole_y = ([y for _, y in coordinates(one)] for one in (drawn, whole))
    assert (min(drawn_y), max(drawn_y), drawn_y[-1]) == (min(whole_y), max(whole_y), whole_y[-1])


def test_higher_evidence_is_drawn_higher_and_ticks_name_powers_of_ten() -> None:
    drawn = drawing(CURVE)
    first, second, third, _ = coordinates(drawn)
    assert third[1] < first[1] < second[1]
    assert drawn.limit.at < third[1]
    assert [tick.label for tick in drawn.y_ticks] == ["0", "1", "2"]
    assert [tick.label for tick in drawn.x_ticks] == ["0", "100", "200", "300", "400"]


@pytest.mark.parametrize("points", [(), ((0, 0.0),)])
def test_a_curve_without_a_line_is_told_in_words(points: tuple[tuple[int, float], ...]) -> None:
    shown = report(check(curves=(Curve("nothing yet", points, 2.0),)))
    reader = read(shown)
    assert "svg" not in reader.tags
    assert "nothing yet" in " ".join(reader.text)


# --- words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\tb", "a\\tb"),
        (1234567, "1,234,567"),
        (0.123456, "0.1235"),
        (-0.0, "0"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "–"),
    ],
)
def test_a_cell(value: str | float, text: str) -> None:
    assert words.cell(value) == text


@pytest.mark.parametrize(
    ("exponent", "text"),
    [(0, "1"), (0.5, "3.16"), (2, "100"), (4.5, "31,623"), (-2, "0.01"), (300.25, "10^300.2")],
)
def test_an_e_value(exponent: float, text: str) -> None:
    assert words.power_of_ten(exponent) == text


@given(st.text())
def test_visible_text_is_visible(text: str) -> None:
    shown = words.visible(text)
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    if text.isprintable():
        assert shown == text
