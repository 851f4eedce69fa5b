"""A matcher's state is that of the committed tokens, whatever is drafted, asked and rejected in between."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.grammar import GrammarMatcher
from surefoot.types import Constraint, SurefootError
from tests.grammars import (
    BOS,
    END,
    GRAMMARS,
    STOP,
    VOCAB,
    WORDS,
    Form,
    choice_form,
    choices,
    forms,
    spelled,
)

ENDS = [END, STOP]


def mask(tokens: Sequence[int]) -> list[bool]:
    return [token in tokens for token in range(VOCAB)]


def after(form: Form, tokens: Sequence[int]) -> GrammarMatcher:
    """A new matcher that was only ever told of these tokens."""
    matcher = GRAMMARS.matcher(form.constraint)
    for token in tokens:
        matcher.advance(token)
    return matcher


@given(texts=choices, data=st.data())
def test_a_token_is_allowed_exactly_when_some_choice_goes_on_with_it(
    texts: list[str], data: st.DataObject
) -> None:
    matcher = GRAMMARS.matcher(choice_form(texts).constraint)
    text = ""
    while True:
        wanted = [t for t, word in enumerate(WORDS) if any(c.startswith(text + word) for c in texts)]
        assert matcher.allowed(()).tolist() == mask([*wanted, *(ENDS if text in texts else [])])
        assert matcher.done == (not wanted)
        if not wanted:
            break
        token = data.draw(st.sampled_from(wanted))
        matcher.advance(token)
        text += WORDS[token]


def legal_walk(form: Form, tokens: list[int], data: st.DataObject, most: int = 4) -> list[int]:
    """Some tokens that may follow, an end perhaps among them as the last."""
    walk: list[int] = []
    for _ in range(data.draw(st.integers(0, most))):
        open_to = np.flatnonzero(after(form, [*tokens, *walk]).allowed(()))
        walk.append(int(data.draw(st.sampled_from(open_to.tolist()))))
        if walk[-1] in ENDS:
            break
    return walk


tokens_of_any_kind = st.lists(st.integers(-2, VOCAB + 2), max_size=3)


@given(form=forms, data=st.data())
def test_j1_the_state_is_that_of_the_committed_tokens(form: Form, data: st.DataObject) -> None:
    """Random drafts, right ones that go wrong at some index, questions along them and beside them."""
    matcher = GRAMMARS.matcher(form.constraint)
    committed: list[int] = []
    for _ in range(data.draw(st.integers(1, 5))):
        right = legal_walk(form, committed, data)
        draft = [*right, *data.draw(tokens_of_any_kind)]
        lengths = data.draw(st.lists(st.integers(0, len(draft)), max_size=6))
        for length in lengths:
            asked = draft[:length] if data.draw(st.booleans()) else draft[:length][::-1]
            assert matcher.allowed(asked).tolist() == asked_anew(form, committed, asked).tolist()
            assert matcher.legal(asked) == legal_anew(form, committed, asked)
        kept = [token for token in right[: data.draw(st.integers(0, len(right)))] if token not in ENDS]
        for token in kept:
            matcher.advance(token)
        committed += kept
        anew = after(form, committed)
        assert matcher.done == anew.done
        assert matcher.allowed(()).tolist() == anew.allowed(()).tolist()


def asked_anew(form: Form, committed: list[int], drafted: Sequence[int]) -> NDArray[np.bool_]:
    """What may follow, by a matcher that commits what another one drafts."""
    matcher = after(form, committed)
    for token in drafted:
        if not 0 <= token < VOCAB or token in ENDS or not matcher.allowed(())[token]:
            return np.array(mask(ENDS))
        matcher.advance(token)
    return matcher.allowed(())


def legal_anew(form: Form, committed: list[int], drafted: Sequence[int]) -> int:
    matcher = after(form, committed)
    for count, token in enumerate(drafted):
        if not 0 <= token < VOCAB or not matcher.allowed(())[token]:
            return count
        matcher.advance(token)
        if token in ENDS:
            return count + 1
    return len(drafted)


OBJECT = Constraint("json_object")
SENTENCE = '{"ab": [12, true], "c": {"a": null}}'


@pytest.mark.parametrize("index", range(len(SENTENCE) + 1))
def test_j1_a_draft_rejected_at_any_index_of_json(index: int) -> None:
    tokens = spelled(SENTENCE)
    matcher = GRAMMARS.matcher(OBJECT)
    for length in range(len(tokens) + 1):
        matcher.allowed(tokens[:length])
    for token in tokens[:index]:
        matcher.advance(token)
    anew = GRAMMARS.matcher(OBJECT)
    for token in tokens[:index]:
        anew.advance(token)
    assert matcher.allowed(()).tolist() == anew.allowed(()).tolist()
    assert matcher.done == anew.done == (index == len(tokens))
    assert matcher.legal(tokens[index:]) == len(tokens) - index


ILLEGAL = [[BOS], [-1], [2**40], [VOCAB], [VOCAB - 1], [END], [END, END]]
ILLEGAL += [spelled(text) for text in ("x", '{"a" x', "{}x")]


@pytest.mark.parametrize("drafted", ILLEGAL)
def test_j2_drafts_that_may_not_follow_change_nothing(drafted: list[int]) -> None:
    matcher = GRAMMARS.matcher(OBJECT)
    before = matcher.allowed(()).tolist()
    assert matcher.legal(drafted) < len(drafted)
    assert matcher.allowed(drafted).tolist() == mask(ENDS)
    assert matcher.allowed(()).tolist() == before
    matcher.advance(spelled("{")[0])
    assert matcher.legal(spelled("}")) == 1


def test_a_draft_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification asks for every prefix of a draft; commits what it accepts; asks again behind it."""
    read: list[int] = []
    masks: list[int] = []
    matcher = GRAMMARS.matcher(OBJECT)

    class Counting:
        def __init__(self, parser: object) -> None:
            self.parser = parser

        def __getattr__(self, name: str) -> object:
            return getattr(self.parser, name)

        def try_consume_tokens(self, tokens: list[int]) -> int:
            read.extend(tokens)
            return int(self.parser.try_consume_tokens(tokens))  # type: ignore[attr-defined]

        def compute_bitmask(self) -> bytes:
            masks.append(len(read))
            return bytes(self.parser.compute_bitmask())  # type: ignore[attr-defined]

    monkeypatch.setattr(matcher, "_parser", Counting(matcher._parser))
    tokens = spelled(SENTENCE)
    for length in range(len(tokens)):
        matcher.allowed(tokens[:length])
    for token in tokens[:20]:
        matcher.advance(token)
        assert not matcher.done
    matcher.allowed(())
    for length in range(5):
        matcher.allowed(tokens[20 : 20 + length])
    assert len(read) == len(tokens) - 1 + 4  # the four behind the first question were given up for it
    assert len(masks) == len(tokens) + 4


def test_an_end_ends_and_nothing_follows_it() -> None:
    matcher = GRAMMARS.matcher(Constraint("regex", "a*"))
    assert not matcher.done
    assert matcher.legal([*spelled("aa"), STOP, *spelled("a")]) == 3
    matcher.advance(END)
    assert matcher.done
    assert matcher.allowed(spelled("a")).tolist() == mask(ENDS)
    assert matcher.legal(spelled("a")) == 0
    with pytest.raises(ValueError, match=r"follows the end"):
        matcher.advance(spelled("a")[0])


def test_committing_what_may_not_follow_is_an_error_that_leaves_the_state() -> None:
    matcher = GRAMMARS.matcher(Constraint("regex", "ab"))
    with pytest.raises(ValueError, match=r"may not follow"):
        matcher.advance(spelled("b")[0])
    assert matcher.legal(spelled("ab")) == 2


def test_a_parser_that_gives_up_on_a_draft_goes_on_from_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = GRAMMARS.matcher(OBJECT)
    for token in spelled('{"a'):
        matcher.advance(token)
    before = matcher.allowed(()).tolist()
    matcher.allowed(spelled('":'))
    monkeypatch.setattr(type(matcher), "_check", gives_up_once(type(matcher)._check))
    assert matcher.legal(spelled('": 1')) == 0
    assert matcher.allowed(()).tolist() == before
    monkeypatch.setattr(type(matcher), "_check", gives_up_once(type(matcher)._check))
    with pytest.raises(SurefootError, match=r"^grammar: token id 99999 out of range$"):
        matcher.allowed(spelled('": 1'))
    assert matcher.allowed(()).tolist() == before
    assert matcher.legal(spelled('": 1}')) == 5


def gives_up_once(check: object) -> object:
    """As if what was just read had been too much."""
    left = [1]

    def checking(self: GrammarMatcher) -> None:
        if left:
            left.pop()
            self._parser.try_consume_tokens([99_999])
        check(self)  # type: ignore[operator]

    return checking


def test_json_has_room_for_a_models_style_and_no_room_for_endless_spaces() -> None:
    value = {"ab": [1, {"c": None}]}
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=2)):
        tokens = spelled(text)
        assert GRAMMARS.matcher(OBJECT).legal([*tokens, END]) == len(tokens) + 1, text
    for text in ("{  ", "{\n\n", "{ \n", '{"a":  ', " ", '{"a": 1\n' + 21 * " "):
        assert GRAMMARS.matcher(OBJECT).legal(spelled(text)) == len(text) - 1, text
    assert GRAMMARS.matcher(OBJECT).legal(spelled("{} ")) == 2


def test_special_tokens_may_only_follow_where_a_grammar_names_them() -> None:
    anything = GRAMMARS.matcher(Constraint("regex", "(?s:.)*"))
    assert not anything.allowed(())[[BOS, *range(VOCAB - 5, VOCAB)]].any()
    named = GRAMMARS.matcher(Constraint("lark", 'start: "a" <bos> "b"'))
    assert named.legal([*spelled("a"), BOS, *spelled("b"), END]) == 4


def test_every_way_to_cut_a_text_into_tokens_is_allowed() -> None:
    """Also where only one text can follow: the tokenizer would have it in one way only."""
    for draft in (spelled("abc"), [WORDS.index("ab"), *spelled("c")], [WORDS.index("abc")]):
        assert GRAMMARS.matcher(Constraint("choice", '["abc"]')).legal(draft) == len(draft)


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = GRAMMARS.matcher(Constraint("regex", "ab+"))
    monkeypatch.setattr("surefoot.grammar.LLMatcher", None)
    first.advance(spelled("a")[0])
    assert GRAMMARS.matcher(Constraint("regex", "ab+")).legal(spelled("ab")) == 2
