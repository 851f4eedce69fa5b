"""The parts that the audit of our own engine is made of, one by one."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.audit.budget import Budget
from surefoot.audit.difference import apart
from surefoot.audit.prompts import PROMPTS, encode, read_prompts
from surefoot.audit.recorder import Recorder
from surefoot.audit.replay import request_of, rows
from surefoot.audit.suspicions import ALONE, BEHIND, FARTHER, FIRST, Guess, Standing, standings
from surefoot.audit.trial import Asked
from surefoot.audit.trial import settings as combinations
from surefoot.audit.watch import Watch
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.base import Segment
from surefoot.models.toy import ToyModel, random_table
from surefoot.trace import Event
from surefoot.tree import depths, parents_of
from surefoot.types import Draft, SamplingParams, SurefootError, VerifyMode
from tests.audited import DRAFTERS, VOCAB_SIZE, draft_model, plan, subject, target
from tests.harness import Scripted, letters

# Budget


def test_a_part_of_a_budget_is_spent_of_the_whole() -> None:
    whole = Budget(tokens=100)
    whole.spend(20)
    part = whole.part(0.25)
    part.spend(10)
    assert part.left
    assert whole.used == pytest.approx(0.3)
    part.spend(10)
    assert not part.left
    assert whole.left


def test_a_part_of_a_budget_of_seconds_ends_before_the_whole() -> None:
    now = [0.0]
    whole = Budget(seconds=10, clock=lambda: now[0])
    now[0] = 2.0
    part = whole.part(0.5)
    now[0] = 5.9
    assert part.left
    now[0] = 6.1
    assert not part.left
    assert whole.left
    assert whole.part(0.5).used == 0


def test_a_part_of_nothing_is_nothing() -> None:
    whole = Budget(seconds=1, tokens=10)
    whole.spend(10)
    assert not whole.part(0.5).left


# Combinations


def test_every_combination_comes_before_any_comes_again() -> None:
    every = list(islice(combinations(plan(), np.random.default_rng(0)), 96))
    assert len(set(every[:48])) == len(set(every[48:])) == 48
    assert every[:48] != every[48:]
    again = list(islice(combinations(plan(), np.random.default_rng(0)), 96))
    assert every == again


def test_drafts_that_fit_no_pass_are_left_out() -> None:
    few = plan(draft_tokens=(1, 4, 8), companions=(0,), chunks=(4, 8))
    found = {
        (each.draft_tokens, each.max_rows) for each in islice(combinations(few, np.random.default_rng(0)), 9)
    }
    assert found == {(1, 4), (1, 8), (4, 8)}


# Recorder


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=30), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(5, 40),
    st.sampled_from(("coupled", "rejection")),
)
def test_the_recorder_knows_requests_by_the_order_they_were_added(
    prompts: list[list[int]], max_requests: int, max_rows: int, mode: VerifyMode
) -> None:
    """However few are in flight at once and however small the chunks; each draft where it was made."""
    recorder = Recorder(ModelDrafter(draft_model()))
    events: list[Event] = []
    engine = Engine(
        target(),
        recorder,
        draft_tokens=4,
        verify=mode,
        max_requests=max_requests,
        max_rows=max_rows,
        trace=events.append,
    )
    params = [SamplingParams(seed=seed, max_tokens=9) for seed in range(len(prompts))]
    results = engine.generate(prompts, params)
    for number, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        made = recorder.rounds(number, prompt)
        length, told = len(prompt), {}
        for event in (event for event in events if event.request == number):
            if event.draft_tokens:
                told[length] = event.draft_tokens
            length += len(event.emitted)
        assert {at: draft.tokens for at, draft in made.items() if draft.tokens} == told
        assert length == len(prompt) + len(result.token_ids)


def test_the_recorder_refuses_another_requests_prompt() -> None:
    recorder = Recorder(ModelDrafter(draft_model()))
    Engine(target(), recorder).generate([[1, 2]], SamplingParams(max_tokens=4, seed=0))
    with pytest.raises(ValueError, match="request 0 didn't start in its turn"):
        recorder.rounds(0, (1, 3))


def test_the_recorder_leaves_a_broken_drafter_to_the_engine() -> None:
    recorder = Recorder(Scripted(lambda tokens, budget: Draft((1,) * (budget + 1))))
    engine = Engine(target(), recorder, draft_tokens=2)
    with pytest.raises(SurefootError, match="3 tokens drafted, 2 allowed"):
        engine.generate([[1, 2]], SamplingParams(max_tokens=8, seed=0, ignore_eos=True))


# Standings


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_tokens_stand_where_the_trace_says(mode: VerifyMode, drafter: str) -> None:
    for seed in range(20):
        recorder, events = Recorder(DRAFTERS[drafter]()), list[Event]()
        engine = Engine(target(), recorder, draft_tokens=5, verify=mode, trace=events.append)
        params = SamplingParams(seed=seed, max_tokens=20, temperature=1)
        prompt = (1, 2, 1)
        result = engine.generate([prompt], params)[0]
        wanted: list[str] = []
        for event in events:
            parents = parents_of(event.parents, len(event.draft_tokens))
            for offset in range(len(event.emitted)):
                above = -1 if offset == 0 else event.path[offset - 1]
                other = FIRST if not wanted else BEHIND if parents else ALONE
                wanted.append(f"draft {offset + 1}" if above in parents else other)
        where = standings(len(prompt), result.token_ids, recorder.rounds(0, prompt))
        assert [standing.place for standing in where] == wanted


def test_of_siblings_the_eldest_speaks() -> None:
    probs = np.arange(20, dtype=np.float64).reshape(4, 5)
    draft = Draft((1, 2, 3, 4), parents=(-1, -1, 1, 1), probs=probs)
    first, second, *rest = standings(2, (2, 4, 0, 0), {2: draft})
    assert (first.place, second.place) == ("draft 1", "draft 2")
    assert rest == [Standing(BEHIND), Standing(ALONE)]
    assert first.guess is not None
    assert second.guess is not None
    assert first.guess.token == 1
    assert second.guess.token == 3
    assert np.array_equal(first.guess.probs, probs[0])  # type: ignore[arg-type]
    assert np.array_equal(second.guess.probs, probs[2])  # type: ignore[arg-type]


def test_a_new_draft_takes_over_and_an_old_one_ends_where_a_token_left_it() -> None:
    rounds = {3: Draft((1, 2)), 5: Draft((4,))}
    places = [standing.place for standing in standings(2, (9, 1, 3, 4, 0), rounds)]
    assert places == [FIRST, "draft 1", "draft 2", "draft 1", BEHIND]
    assert standings(1, (5, 6), {1: Draft((4, 6))})[1] == Standing(ALONE)


def test_far_places_are_one() -> None:
    where = standings(1, tuple(range(12)), {1: Draft(tuple(range(11)))})
    assert [standing.place for standing in where[7:]] == ["draft 8", FARTHER, FARTHER, FARTHER, BEHIND]
    assert where[8].guess == Guess(8, None)


# Replay and watch


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("output", [1, 5, 140])
def test_replayed_rows_are_those_of_each_prefix(length: int, output: int) -> None:
    generator = np.random.default_rng(length)
    tokens = [int(token) for token in generator.integers(0, VOCAB_SIZE, length + output)]
    model, table = target(), random_table(VOCAB_SIZE, seed=1, spread=1.5)
    found = list(rows(model, tokens[:length], tokens[length:]))
    assert len(found) == output
    for index, row in enumerate(found):
        assert np.array_equal(row, np.asarray(table(tuple(tokens[: length + index]))))
    assert len(model.cache) == 0


def test_a_replay_that_is_given_up_leaves_nothing_behind() -> None:
    model = target()
    replayed = rows(model, (1, 2), (3, 4, 5))
    next(replayed)
    del replayed
    assert len(model.cache) == 0


def test_a_replayed_request_ends_as_the_engines_does() -> None:
    asked = Asked(0, (1, 2), SamplingParams(max_tokens=3, stop_token_ids=(5,), seed=0))
    for tokens, taken, reason in (((1, 5, 1), 2, "stop"), ((0, 1), 1, "stop"), ((1, 1, 1, 1), 3, "length")):
        request = request_of(subject("block"), asked)
        assert len(request.extend(tokens)) == taken
        assert request.finish_reason == reason
    assert request_of(subject("block"), asked).history.end_ids == (0, 5)


@settings(deadline=None)
@given(st.data())
def test_the_watch_sees_the_row_it_was_told_to(data: st.DataObject) -> None:
    """Random passes over random sequences, chains and trees: the row of a prefix, wherever it stands."""
    table = random_table(VOCAB_SIZE, order=3, seed=5)
    prefix = tuple(data.draw(st.lists(st.integers(0, 7), min_size=2, max_size=6)))
    watched = data.draw(st.integers(0, 2))
    watch = Watch(ToyModel(table, VOCAB_SIZE), watched, prefix)
    for seq in (30, 10, 20):
        watch.cache.add(seq)
    held = data.draw(st.integers(0, len(prefix) - 1))
    if held:
        watch.forward([Segment((30, 10, 20)[watched], prefix[:held], num_wanted=0)])
    size = data.draw(st.integers(1, 6))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
    tokens = [data.draw(st.integers(0, 7)) for _ in range(size)]
    mine = data.draw(st.integers(0, size - 1))
    node, wanted = mine, len(prefix) - held
    reached = depths(parents)[mine] == wanted
    while node >= 0 and reached:
        wanted -= 1
        tokens[node] = prefix[held + wanted]
        node = parents[node]
    other = Segment((10, 20, 30)[watched], (1, 2), num_wanted=1)
    batch = [other, Segment((30, 10, 20)[watched], tokens, num_wanted=size, parents=parents)]
    logits = watch.forward(batch)
    assert logits.shape == (1 + size, VOCAB_SIZE)
    if reached:
        assert watch.seen is not None
        assert np.array_equal(watch.seen.logits, np.asarray(table(prefix)))
        assert (watch.seen.rows, watch.seen.sequences, watch.seen.draft_tokens) == (2 + size, 2, size - 1)
        assert 2 <= watch.seen.place < 2 + size
        assert depths(parents)[watch.seen.place - 2] == len(prefix) - held


def test_texts_are_shown_where_they_part() -> None:
    assert apart("stop", "length") == ("'stop'", "'length'")
    assert apart("x" * 100 + "a" * 50, "x" * 100 + "b") == (repr("x" * 20 + "a" * 20), repr("x" * 20 + "b"))
    assert apart(Draft((1,)), None)[1] == "None"


# Prompts


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_prompts_are_lines_of_text_or_of_json(tmp_path: Path) -> None:
    assert read_prompts(written(tmp_path, "a.txt", "one\r\n\n two \nthree")) == ("one", " two ", "three")
    lines = '{"prompt": "one", "id": 3}\n"two"\n\n{"turns": ["three", "more"]}\n"fo\\nur\u2028"\n'
    assert read_prompts(written(tmp_path, "a.jsonl", lines)) == ("one", "two", "three", "fo\nur\u2028")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x", "is neither a .txt nor a .jsonl file"),
        ("a.txt", "\n \n", "has none; an audit needs at least 1"),
        ("a.txt", b"\xff\xfe", "is not UTF-8 at byte 0"),
        ("a.jsonl", '"a"\n{', r"line 2 of .*a.jsonl is not JSON"),
        ("a.jsonl", '\n{"text": "x"}', r"line 2 of .* has no prompt"),
        ("a.jsonl", '{"prompt": ""}', r"line 1 of .* has no prompt"),
        ("a.jsonl", '{"turns": []}', r"line 1 of .* has no prompt"),
        ("a.jsonl", "[1, 2]", r"line 1 of .* has no prompt"),
    ],
)
def test_a_file_of_prompts_that_is_none_is_named(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    with pytest.raises(SurefootError, match=message):
        read_prompts(written(tmp_path, name, text))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SurefootError, match=r"prompts: .*none.txt can't be read: No such file"):
        read_prompts(tmp_path / "none.txt")


def test_our_own_prompts_are_short_and_all_different() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) >= 12
    assert all(0 < len(prompt) < 400 for prompt in PROMPTS)


def test_prompts_are_put_into_the_template_where_there_is_one() -> None:
    assert encode(("ab", "c"), letters(), chat=False) == ((0, 1), (2,))
    assert encode(("ab",), letters(), chat=True) == ((0, 1, letters().encode(".", add_special=False)[0]),)


@pytest.mark.parametrize(("name", "line"), [("a.txt", "Hello"), ("a.jsonl", '{"prompt": "Hello"}')])
def test_a_mark_before_the_first_line_is_no_part_of_it(tmp_path: Path, name: str, line: str) -> None:
    """Editors on Windows write one."""
    path = tmp_path / name
    path.write_text(line, encoding="utf-8-sig")
    assert read_prompts(path) == ("Hello",)
