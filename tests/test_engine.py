"""The engine's public face: what it takes, streams, returns, refuses and cleans up."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, probability_table, random_table
from surefoot.prompts import Prompt
from surefoot.trace import Event, read, stats
from surefoot.types import Draft, SamplingParams, SurefootError, Usage
from tests.harness import VOCAB_SIZE, Scripted, assert_same, expected, ids, joined, letters

TABLE = random_table(VOCAB_SIZE, 2, seed=1)
PARAMS = SamplingParams(seed=1, max_tokens=12)


def toy(seed: int = 1) -> ToyModel:
    return ToyModel(random_table(VOCAB_SIZE, 2, seed), VOCAB_SIZE)


def text_engine() -> Engine:
    return Engine(toy(), tokenizer=letters("!"))


def test_text_goes_in_and_comes_out() -> None:
    result = text_engine().generate("tell me", PARAMS)[0]
    assert result.prompt == "tell me"
    assert result.prompt_token_ids == tuple(ids("tell me"))
    wanted = expected(TABLE, ids("tell me"), PARAMS, tokenizer=letters("!"), end_ids=(31,))
    assert_same(result.choices[0], wanted)
    assert result.usage == Usage(7, len(wanted.token_ids))
    assert result.seed == 1


def test_chat_puts_a_prompt_into_the_template() -> None:
    engine = text_engine()
    talk = [{"role": "user", "content": "tell me"}]
    results = [engine.generate("tell me", PARAMS, chat=True)[0], engine.generate(talk, PARAMS)[0]]
    assert [result.prompt_token_ids for result in results] == [tuple(ids("tell me."))] * 2
    assert results[0].token_ids == results[1].token_ids


def test_prompts_of_all_kinds_in_one_call_each_with_its_own_parameters() -> None:
    lengths = [SamplingParams(seed=1, max_tokens=n) for n in (3, 5, 7)]
    prompts: list[Prompt] = ["ab", ids("cd"), [{"role": "user", "content": "e"}]]
    results = text_engine().generate(prompts, lengths)
    assert [len(result.token_ids) for result in results] == [3, 5, 7]
    assert [result.prompt_token_ids for result in results] == [tuple(ids(t)) for t in ("ab", "cd", "e.")]


def test_a_stream_adds_up_to_the_result() -> None:
    params = SamplingParams(seed=2, max_tokens=30, n=2, logprobs=1, stop=("qq",))
    chunks = list(text_engine().stream("tell me", params))
    result = chunks[-1].result
    assert result
    assert [chunk.result for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    for choice in result.choices:
        own = [chunk for chunk in chunks if chunk.choice == choice.index]
        assert joined(own) == (choice.text, choice.token_ids)
        assert [chunk.finish_reason for chunk in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert sum(len(chunk.logprobs or ()) for chunk in own) == len(choice.token_ids)


def test_choices_that_finish_in_the_same_round_are_all_streamed() -> None:
    chunks = list(Engine(toy()).stream([1, 2], SamplingParams(seed=1, max_tokens=1, n=3)))
    assert [(chunk.choice, len(chunk.token_ids), bool(chunk.result)) for chunk in chunks] == [
        (0, 1, False),
        (1, 1, False),
        (2, 1, True),
    ]


def test_closing_a_stream_frees_its_request() -> None:
    model, draft_model = toy(), toy(2)
    engine = Engine(model, ModelDrafter(draft_model))
    stream = engine.stream([1, 2], SamplingParams(max_tokens=100))
    next(stream)
    assert len(model.cache)
    stream.close()
    assert not len(model.cache)
    assert not len(draft_model.cache)
    assert not engine.has_work


def test_a_stream_that_is_dropped_unread_frees_its_request() -> None:
    model = toy()
    engine = Engine(model)
    next(engine.stream([1, 2], SamplingParams(max_tokens=100)))
    gc.collect()
    assert not len(model.cache)
    assert not engine.has_work


def test_streams_can_be_read_in_turns() -> None:
    engine = Engine(toy())
    streams = [engine.stream([1, 2], SamplingParams(seed=s, max_tokens=20)) for s in (1, 2)]
    read_in_turns: list[list[int]] = [[], []]
    while True:
        chunks = [next(stream, None) for stream in streams]
        if not any(chunks):
            break
        for tokens, chunk in zip(read_in_turns, chunks, strict=True):
            tokens += chunk.token_ids if chunk else ()
    for tokens, seed in zip(read_in_turns, (1, 2), strict=True):
        assert tuple(tokens) == expected(TABLE, [1, 2], SamplingParams(seed=seed, max_tokens=20)).token_ids


def test_a_generate_inside_a_stream_disturbs_neither() -> None:
    engine = Engine(toy())
    stream = engine.stream([1, 2], PARAMS)
    tokens = [*next(stream).token_ids]
    assert_same(engine.generate([3], PARAMS)[0].choices[0], expected(TABLE, [3], PARAMS))
    tokens += [token for chunk in stream for token in chunk.token_ids]
    assert tuple(tokens) == expected(TABLE, [1, 2], PARAMS).token_ids


def test_a_generate_between_steps_loses_none_of_their_chunks() -> None:
    engine = Engine(toy())
    number = engine.add([1, 2], PARAMS)
    engine.generate([3], SamplingParams(max_tokens=30))
    tokens = [token for chunk in engine.step() if chunk.request == number for token in chunk.token_ids]
    assert tuple(tokens) == expected(TABLE, [1, 2], PARAMS).token_ids
    assert not engine.has_work


def test_ctrl_c_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model, drafter = toy(), Scripted(lambda tokens, budget: Draft((1,) * budget))
    engine = Engine(model, drafter, draft_tokens=3)
    stream = engine.stream([1, 2], PARAMS)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(drafter, "observe", lambda seq, verdict: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert not len(model.cache)
    assert not drafter.open
    assert not engine.has_work
    assert_same(engine.generate([1, 2], PARAMS)[0].choices[0], expected(TABLE, [1, 2], PARAMS))


def test_a_stream_whose_request_was_dropped_says_so() -> None:
    engine = Engine(toy())
    stream = engine.stream([1, 2], PARAMS)
    next(stream)
    engine.close()
    with pytest.raises(SurefootError, match="request 0: it was dropped"):
        next(stream)


def test_an_error_of_one_request_spares_the_others() -> None:
    """After token 0 the table has nothing to say that isn't banned."""
    model = ToyModel(probability_table({(0,): [1, 0, 0], (): [0, 0.5, 0.5]}), 3)
    engine = Engine(model, "ngram")
    bad = engine.add([1, 0], SamplingParams(stop_token_ids=(0,), min_tokens=2, max_tokens=9, n=2))
    good = engine.add([1, 2], SamplingParams(max_tokens=9))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    errors = [chunk for chunk in chunks if chunk.request == bad]
    assert [str(chunk.error) for chunk in errors] == [
        "position 2: every token is banned, so none can be chosen"
    ]
    assert [chunk.request for chunk in chunks if chunk.result] == [good]
    with pytest.raises(SurefootError, match="every token is banned"):
        engine.generate([1, 0], SamplingParams(stop_token_ids=(0,), min_tokens=2, max_tokens=9))
    engine.close()
    assert not len(model.cache)


def test_n_choices_may_outnumber_the_requests_in_flight() -> None:
    engine = Engine(toy(), max_requests=2)
    result = engine.generate([1, 2], SamplingParams(seed=1, max_tokens=5, n=7))[0]
    assert len({choice.token_ids for choice in result.choices}) > 3


def test_no_draft_is_plain_decoding() -> None:
    for draft in (None, "none"):
        numbers = Engine(toy(), draft).generate([1, 2], PARAMS)[0].stats
        assert (numbers.rounds, numbers.draft_tokens, numbers.mean_acceptance_length) == (11, 0, 1.0)


def test_ngram_is_the_default_drafter() -> None:
    events: list[Event] = []
    Engine(toy(), trace=events.append).generate([1, 2, 1, 2], SamplingParams(max_tokens=40))
    assert {event.source for event in events if event.draft_tokens} == {"ngram"}
    assert max(len(event.draft_tokens) for event in events) <= 10


def test_suffix_drafts_are_as_long_as_the_ngram_drafters() -> None:
    """A target that says one token over and over; what was said twenty times is guessed far ahead."""
    events: list[Event] = []
    target = ToyModel(probability_table({(): [0, 1, 0]}), 3)
    engine = Engine(target, "suffix", trace=events.append)
    engine.generate([1] * 40, SamplingParams(max_tokens=60))
    assert {event.source for event in events if event.draft_tokens} == {"suffix"}
    assert max(len(event.draft_tokens) for event in events) == 15


@pytest.mark.parametrize("shared", [False, True])
def test_e1_drafts_come_from_other_requests_only_where_they_are_shared(shared: bool) -> None:
    """A target that counts up: nothing repeats within a request."""

    def target(prefix: tuple[int, ...]) -> NDArray[np.float32]:
        row = np.zeros(40, np.float32)
        row[(prefix[-1] + 1) % 40] = 9
        return row

    engine = Engine(ToyModel(target, 40), "suffix", share_drafts=shared)
    params = SamplingParams(temperature=0, max_tokens=20)
    first, second = (engine.generate([3], params)[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.stats.draft_tokens == 0
    assert (second.stats.accepted_tokens > 10) is shared


@pytest.mark.parametrize(
    ("draft", "named"), [("ngram", "ngram"), (None, "NoneType"), (Scripted(lambda *_: Draft()), "Scripted")]
)
def test_other_drafts_can_not_be_shared(draft: Drafter | str | None, named: str) -> None:
    with pytest.raises(SurefootError, match=f"share_drafts: it was given with draft {named}; only suffix"):
        Engine(toy(), draft, share_drafts=True)


def test_the_trace_holds_every_number_of_the_result(tmp_path: Path) -> None:
    with Engine(toy(), ModelDrafter(toy(2)), trace=tmp_path / "trace.jsonl") as engine:
        results = engine.generate([[1, 2], [3]], SamplingParams(max_tokens=20, n=2))
    events = read(tmp_path / "trace.jsonl")
    for number, result in enumerate(results):
        own = [event for event in events if event.request == number]
        assert stats(own) == result.stats
        for choice in result.choices:
            emitted = [t for event in own if event.choice == choice.index for t in event.emitted]
            assert tuple(emitted) == choice.token_ids
        assert [event.finish_reason for event in own if event.finish_reason] == ["length"] * 2
    assert all(event.began <= event.ended and event.arrived <= event.began for event in events)
    assert [event.round for event in events] == sorted(event.round for event in events)


def test_engines_may_share_a_model() -> None:
    model = toy()
    plain, drafting = Engine(model, None), Engine(model, "ngram")
    first, second = plain.stream([1, 2], PARAMS), drafting.stream([1, 2], PARAMS)
    next(first)
    assert joined([*second])[1] == expected(TABLE, [1, 2], PARAMS).token_ids
    assert len(joined([*first])[1]) == 11


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draft_tokens": -1}, r"draft_tokens: -1 is out of range; allowed is 0 or more"),
        (
            {"draft_tokens": 16, "max_rows": 16},
            "draft_tokens: 16 is out of range; 16 rows allow 15",
        ),
        ({"draft_tokens": 2.5}, "draft_tokens: 2.5 is not a whole number; allowed is 0 or more"),
        ({"max_requests": 0}, "max_requests: 0 is out of range"),
        ({"max_rows": "many"}, "max_rows: 'many' is not a whole number"),
        ({"draft": 5}, "draft: int given; it is None, ngram"),
        ({"threads": 2}, "threads: 2 was given with a loaded model"),
        ({"precision": "bf16", "draft": None}, "precision: bf16 was given with a loaded model"),
        ({"verify": "typical"}, "verify: 'typical' is unknown; choose one of coupled, rejection, block"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SurefootError, match=f"^{message}"):
        Engine(toy(), **settings)  # type: ignore[arg-type]


def test_parameters_must_be_one_or_as_many_as_prompts() -> None:
    engine = Engine(toy())
    with pytest.raises(SurefootError, match=r"^params: 2 were given for 3 prompts"):
        engine.generate([[1], [2], [3]], [PARAMS, PARAMS])
    assert not engine.has_work


def test_parameters_of_another_type_are_named() -> None:
    with pytest.raises(SurefootError, match=r"^params: dict given"):
        Engine(toy()).generate([1], {"seed": 1})  # type: ignore[arg-type]


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(SurefootError, match=r"^model: int given; it is a name"):
        Engine(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompts", [None, 3, {1, 2}, {"role": "user"}, [None], [2.5]])
def test_what_is_no_prompt_is_named(prompts: object) -> None:
    with pytest.raises(SurefootError, match=r"^prompt: \w+ given; it is text"):
        Engine(toy()).generate(prompts)  # type: ignore[arg-type]


def test_no_prompts_have_no_results() -> None:
    assert Engine(toy()).generate([]) == []


def test_a_closed_engine_takes_no_requests() -> None:
    with Engine(toy()) as engine:
        pass
    for asked in (lambda: engine.generate([]), lambda: next(engine.stream([1])), lambda: engine.add([1])):
        with pytest.raises(SurefootError, match=r"^engine: it is closed$"):
            asked()


def test_a_bad_prompt_among_good_ones_drops_them_all() -> None:
    engine = Engine(toy())
    with pytest.raises(SurefootError, match=r"^prompt: token 99 is out of range"):
        engine.generate([[1], [99]], PARAMS)
    assert not engine.has_work


def test_numpy_tokens_of_a_drafter_come_out_as_plain_numbers(tmp_path: Path) -> None:
    drafter = Scripted(lambda tokens, budget: Draft(tuple(np.full(budget, tokens[-1]))))
    with Engine(toy(), drafter, draft_tokens=3, trace=tmp_path / "trace") as engine:
        result = engine.generate([1, 2], SamplingParams(seed=1, max_tokens=60))[0]
    assert result.stats.accepted_tokens > 0
    assert {type(token) for token in result.token_ids} == {int}
    assert stats(read(tmp_path / "trace")) == result.stats


def test_draft_and_target_must_share_a_tokenizer() -> None:
    class Other:
        name, model, tokenizer = "other", toy(), letters(vocabulary="bacdefghijklmnopqrstuvwxyzXYZ .!")

    with pytest.raises(SurefootError, match="the tokenizers of target and draft differ: token 0"):
        Engine(toy(), Other(), tokenizer=letters())


def test_a_tokenizer_smaller_than_the_model_bounds_the_prompt() -> None:
    engine = Engine(ToyModel(random_table(40, 1), 40), tokenizer=letters())
    with pytest.raises(SurefootError, match=r"prompt: token 35 is out of range; allowed is \[0, 31\]"):
        engine.generate([35], PARAMS)
