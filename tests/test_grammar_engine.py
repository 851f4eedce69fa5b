"""Outputs keep to their constraint, and speculation changes none of them, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.drafters.base import Drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.engine import Engine
from surefoot.models.toy import ToyModel, probability_table
from surefoot.noise import race, token_key
from surefoot.results import Choice, Result
from surefoot.sampling import History, target_probs
from surefoot.types import VERIFY_MODES, Constraint, Draft, SamplingParams, SurefootError, VerifyMode
from tests.grammars import (
    BOS,
    END,
    GRAMMARS,
    OBJECT,
    STOP,
    TOKENIZER,
    VOCAB,
    WORDS,
    Form,
    choice_form,
    forms,
    regex_form,
    schema_form,
    spelled,
    table,
    toy,
)
from tests.harness import Scripted, bushy, knowing

PROMPT = spelled("say it:")
ENDS = (END, STOP)
DRAFTERS = ("perfect", "half right", "illegal", "ngram", "model", "same model", "tree")


def engine(drafter: Drafter | None, k: int = 4, verify: VerifyMode = "coupled") -> Engine:
    return Engine(toy(), drafter, tokenizer=TOKENIZER, draft_tokens=k, verify=verify)


def drafter_for(kind: str, answer: Sequence[int], noise: int) -> Drafter:
    """answer: what plain decoding says, prompt included."""
    if kind == "ngram":
        return NgramDrafter()
    if kind == "model":
        return ModelDrafter(toy(seed=2))
    if kind == "same model":
        return ModelDrafter(toy())
    if kind == "illegal":
        return Scripted(lambda tokens, budget: Draft(((len(tokens) * 31 + noise) % VOCAB, BOS, END)[:budget]))
    script = knowing([answer], lambda length: 99 if kind == "perfect" else (length * 7 + noise) % 5)
    return Scripted(bushy(script, VOCAB) if kind == "tree" else script)


@st.composite
def sampling(draw: st.DrawFn, form: Form) -> SamplingParams:
    max_tokens = draw(st.sampled_from((3, 12, 60)))
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=draw(st.sampled_from((0.0, 0.7, 1.0, 2.0))),
        top_p=draw(st.sampled_from((0.6, 1.0))),
        top_k=draw(st.sampled_from((0, 0, 3))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.3))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, 0.5))),
        min_tokens=draw(st.sampled_from((0, 0, 2))),
        ignore_eos=draw(st.booleans()),
        stop=draw(st.sampled_from(((), (), ("b",), ('":',)))),
        seed=draw(st.integers(0, 2**64 - 1)),
        grammar=form.constraint,
    )


def assert_fits(choice: Choice, form: Form, params: SamplingParams) -> None:
    """An output that ended by itself is what the constraint says; one that was cut off was on the way."""
    if choice.finish_reason == "stop" and not params.stop:
        assert form.fits(choice.text), choice.text
    elif not params.stop:
        assert GRAMMARS.matcher(form.constraint).legal(choice.token_ids) == len(choice.token_ids)
        assert len(choice.token_ids) == params.max_tokens


def one_by_one(params: SamplingParams, model_seed: int = 1) -> tuple[int, ...]:
    """Plain decoding by the rules as they are written down, with a new matcher for every token."""
    assert params.grammar
    assert not params.stop
    rows = table(model_seed)
    output: list[int] = []
    while len(output) < params.max_tokens:
        matcher = GRAMMARS.matcher(params.grammar)
        for token in output:
            matcher.advance(token)
        allowed = matcher.allowed(())
        if output and not any(allowed[t] for t in range(VOCAB) if t not in ENDS):
            break
        if any(allowed[t] for t in range(VOCAB) if t not in ENDS) and (
            params.ignore_eos or len(output) < params.min_tokens
        ):
            allowed[list(ENDS)] = False
        row = np.where(allowed, np.asarray(rows((*PROMPT, *output)), np.float32), np.float32(-np.inf))
        history = History(PROMPT, list(output), vocab_limit=TOKENIZER.vocab_size)
        candidates = target_probs(row, replace(params, min_tokens=0), history)
        key = token_key(params.seed or 0, 0, len(PROMPT) + len(output))
        output.append(race(key, candidates.ids, candidates.probs))
        if output[-1] in ENDS:
            break
    return tuple(output)


@settings(max_examples=150, deadline=None)
@given(form=forms, kind=st.sampled_from(DRAFTERS), k=st.integers(1, 8), data=st.data())
def test_coupled_outputs_are_plain_decodings_and_keep_to_the_form(
    form: Form, kind: str, k: int, data: st.DataObject
) -> None:
    params = data.draw(sampling(form))
    plain = engine(None).generate(PROMPT, params)[0]
    assert_fits(plain.choices[0], form, params)
    if not params.stop:
        assert plain.token_ids == one_by_one(params)
    drafter = drafter_for(kind, [*PROMPT, *plain.token_ids], data.draw(st.integers(0, 4)))
    speculated = engine(drafter, k).generate(PROMPT, params)[0]
    assert_same(speculated, plain)


def assert_same(one: Result, other: Result) -> None:
    assert [(c.token_ids, c.text, c.finish_reason) for c in one.choices] == [
        (c.token_ids, c.text, c.finish_reason) for c in other.choices
    ]


@settings(max_examples=100, deadline=None)
@given(
    form=forms,
    kind=st.sampled_from(DRAFTERS),
    verify=st.sampled_from(("rejection", "block")),
    k=st.integers(1, 8),
    data=st.data(),
)
def test_the_other_modes_keep_to_the_form_too(
    form: Form, kind: str, verify: VerifyMode, k: int, data: st.DataObject
) -> None:
    params = data.draw(sampling(form))
    answer = [*PROMPT, *engine(None).generate(PROMPT, params)[0].token_ids]
    result = engine(drafter_for(kind, answer, data.draw(st.integers(0, 4))), k, verify).generate(
        PROMPT, params
    )
    assert_fits(result[0].choices[0], form, params)


SCHEMA = schema_form(
    {
        "type": "object",
        "properties": {"ab": {"type": "string", "maxLength": 4}, "n": {"enum": [12, 345]}},
        "required": ["ab", "n"],
        "additionalProperties": False,
    }
)
LONG = SamplingParams(seed=5, temperature=1, top_p=1, max_tokens=80, grammar=SCHEMA.constraint)


@pytest.mark.parametrize("verify", VERIFY_MODES)
def test_j1_a_rejection_at_each_index_of_json(verify: VerifyMode) -> None:
    plain = engine(None).generate(PROMPT, LONG)[0]
    answer = [*PROMPT, *plain.token_ids]
    assert plain.finish_reason == "stop"
    for index in range(len(plain.token_ids)):
        # Everything is drafted at once, with one token wrong.
        wrong = [*answer]
        wrong[len(PROMPT) + index] = (wrong[len(PROMPT) + index] + 1) % len(WORDS)
        drafter = Scripted(lambda tokens, budget, w=wrong: Draft(tuple(w[len(tokens) :][:budget])))  # type: ignore[misc]
        result = engine(drafter, len(answer), verify).generate(PROMPT, LONG)[0]
        assert SCHEMA.fits(result.text)
        if verify == "coupled":
            assert_same(result, plain)


@pytest.mark.parametrize("verify", VERIFY_MODES)
@pytest.mark.parametrize(
    "drafted", [(BOS,), (END,), (VOCAB - 1,), tuple(spelled("zzz")), (*spelled("}"), END)]
)
def test_j2_nothing_but_illegal_drafts(verify: VerifyMode, drafted: tuple[int, ...]) -> None:
    params = replace(LONG, max_tokens=30)
    plain = engine(None).generate(PROMPT, params)[0]
    result = engine(Scripted(lambda tokens, budget: Draft(drafted[:budget])), 4, verify).generate(
        PROMPT, params
    )[0]
    assert_fits(result.choices[0], SCHEMA, params)
    if verify == "coupled":
        assert_same(result, plain)


def test_choices_are_each_held_to_it() -> None:
    params = replace(LONG, n=4)
    plain = engine(None).generate(PROMPT, params)[0]
    assert all(SCHEMA.fits(choice.text) for choice in plain.choices)
    assert len({choice.text for choice in plain.choices}) > 1
    assert_same(engine(ModelDrafter(toy(seed=2))).generate(PROMPT, params)[0], plain)


def test_requests_with_and_without_a_form_share_a_batch() -> None:
    each = [LONG, replace(LONG, grammar=None), replace(LONG, grammar=OBJECT.constraint), LONG]
    alone = [engine(None).generate(PROMPT, params)[0] for params in each]
    together = engine(ModelDrafter(toy(seed=2))).generate([PROMPT] * len(each), each)
    for one, other in zip(together, alone, strict=True):
        assert_same(one, other)


def said(source: Form, **changes: object) -> tuple[str, str, int]:
    params = replace(LONG, **{"grammar": source.constraint, **changes})  # type: ignore[arg-type]
    results = [
        engine(d).generate(PROMPT, params)[0] for d in (None, ModelDrafter(toy()), ModelDrafter(toy(2)))
    ]
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
    return results[0].text, results[0].finish_reason, len(results[0].token_ids)


def test_an_output_ends_where_nothing_more_may_follow() -> None:
    """Without waiting for an end of sequence, and whatever would hold one back."""
    for changes in ({}, {"min_tokens": 50}, {"ignore_eos": True}):
        text, reason, count = said(regex_form("a b c d"), **changes)
        assert (text, reason) == ("a b c d", "stop")
        assert count <= len(text)
    assert said(choice_form([""]), min_tokens=3) == ("", "stop", 1)
    assert said(choice_form([""]), ignore_eos=True) == ("", "stop", 1)


def test_where_more_may_follow_ends_are_held_back_as_ever() -> None:
    letters = regex_form("z*")
    text, reason, count = said(letters)
    assert (reason, count) == ("stop", len(text) + 1)
    text, reason, count = said(letters, min_tokens=count + 3)
    assert (reason, set(text)) == ("stop", {"z"})
    assert said(letters, ignore_eos=True, max_tokens=20) == ("z" * 20, "length", 20)


def test_limits_and_stop_strings_cut_json_short() -> None:
    assert said(SCHEMA, max_tokens=3)[1:] == ("length", 3)
    text, reason, _ = said(SCHEMA, stop=('":',))
    assert text.lstrip("{ \n\t") == '"ab'
    assert reason == "stop"
    text, reason, _ = said(SCHEMA, stop_token_ids=tuple(spelled(":")))
    assert reason == "stop"


def test_every_allowed_token_banned_names_the_grammar() -> None:
    params = replace(LONG, grammar=Constraint("regex", "xy"), bad_words=("x",))
    message = r"^position 7: every token that the grammar allows is banned, so none can be chosen$"
    for drafter in (None, ModelDrafter(toy())):
        with pytest.raises(SurefootError, match=message):
            engine(drafter).generate(PROMPT, params)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Constraint("regex", "xyzé"), "no token of this model can go on where it would have to go on"),
        (Constraint("lark", "start: /a/ /b/ " + "x? " * 2500 + '\nx: "a"'), "row has .* items"),
    ],
)
def test_a_parser_that_gives_up_ends_its_own_request(grammar: Constraint, message: str) -> None:
    letters = toy()
    running = Engine(letters, ModelDrafter(toy()), tokenizer=TOKENIZER, draft_tokens=4, prefix_cache=False)
    doomed = running.add(PROMPT, replace(LONG, grammar=grammar))
    other = running.add(PROMPT, LONG)
    chunks = []
    while running.has_work:
        chunks += running.step()
    errors = [chunk.error for chunk in chunks if chunk.request == doomed and chunk.error]
    assert len(errors) == 1
    with pytest.raises(SurefootError, match=rf"^grammar: .*{message}"):
        raise errors[0]
    [result] = [chunk.result for chunk in chunks if chunk.request == other and chunk.result]
    assert_same(result, engine(None).generate(PROMPT, LONG)[0])
    assert not len(letters.cache)


def test_a_form_needs_a_tokenizer() -> None:
    bare = Engine(ToyModel(probability_table({(): [0.5, 0.5]}), 2, eos_token_ids=(0,)))
    with pytest.raises(SurefootError, match=r"^grammar: there is no tokenizer"):
        bare.add([1], SamplingParams(grammar=OBJECT.constraint))


def test_a_form_is_checked_when_a_request_is_added() -> None:
    running = engine(None)
    with pytest.raises(SurefootError, match=r"^grammar: .*unclosed group"):
        running.add(PROMPT, SamplingParams(grammar=Constraint("regex", "(")))
    assert not running.has_work
