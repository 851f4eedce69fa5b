"""What the tests of constraints share: a tokenizer of characters and scraps of JSON, random constraints with
a way to tell whether an output keeps to them, and drafters that don't."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np
import tokenizers
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from surefoot.grammar import Grammars
from surefoot.models.tokenizer_parts import TokenizerParts
from surefoot.models.toy import LogitsOf, ToyModel, random_table
from surefoot.text import Tokenizer
from surefoot.types import Constraint

SCRAPS = [
    '{"',
    '":',
    '": ',
    '",',
    '", "',
    '"}',
    "}}",
    "[]",
    "  ",
    "\n  ",
    "true",
    "null",
    "12",
    "ab",
    "abc",
    " a",
]
WORDS = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n", "\t", "\r", *SCRAPS]
SPECIALS = ["<bos>", "<end>", "<stop>"]
BOS, END, STOP = range(len(WORDS), len(WORDS) + 3)
VOCAB = len(WORDS) + 3 + 5  # the last ids are padding


def wordy() -> Tokenizer:
    """Characters of ASCII, longer scraps, and three special tokens, of which <end> and <stop> end a text."""
    spell = {"\n": "Ċ", "\t": "ĉ", "\r": "č", " ": "Ġ"}
    texts = ["".join(spell.get(letter, letter) for letter in word) for word in WORDS]
    backend = Backend(models.BPE({text: token for token, text in enumerate(texts)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    return Tokenizer(TokenizerParts(backend, "bytes", eos_ids=(END, STOP)))


TOKENIZER = wordy()
GRAMMARS = Grammars(TOKENIZER, (END, STOP), VOCAB)


def spelled(text: str) -> list[int]:
    """The tokens of a text, one per character."""
    return [WORDS.index(letter) for letter in text]


def table(seed: int = 1, favour: str = '"}],', spread: float = 2.0) -> LogitsOf:
    """Random logits over that vocabulary; what `favour` spells is likelier, so that outputs end."""
    plain = random_table(VOCAB, 1, seed, spread)
    liked = [*spelled(favour), END]

    def logits_of(prefix: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        row = np.array(plain(prefix), np.float32)
        row[liked] += 3
        return row

    return logits_of


def toy(seed: int = 1) -> ToyModel:
    return ToyModel(table(seed), VOCAB)


@dataclass(frozen=True)
class Form:
    """A constraint, and whether a text is what it says."""

    constraint: Constraint
    fits: Callable[[str], bool]

    def __repr__(self) -> str:
        return f"{self.constraint.kind}: {self.constraint.source}"


def schema_form(schema: Any) -> Form:
    def fits(text: str) -> bool:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
        return True

    return Form(Constraint("json_schema", json.dumps(schema)), fits)


def regex_form(expression: str) -> Form:
    return Form(Constraint("regex", expression), lambda text: bool(re.fullmatch(expression, text)))


def choice_form(texts: Sequence[str]) -> Form:
    return Form(Constraint("choice", json.dumps(list(texts))), lambda text: text in texts)


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


OBJECT = Form(Constraint("json_object"), is_object)

_letters = st.text("abc", min_size=1, max_size=3)
_plain = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number", "exclusiveMinimum": 0.5},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
        {"type": "string", "minLength": 1, "maxLength": 2},
        {"type": ["string", "null"], "maxLength": 3},
        {"enum": ["a", 1, None, {"b": [1]}]},
        {"const": "abc"},
    ]
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(_letters, inner, min_size=1, max_size=3)

    def closed(properties: dict[str, Any], wanted: int) -> dict[str, Any]:
        required = list(properties)[:wanted]
        found = {"type": "object", "properties": properties, "required": required}
        return {**found, "additionalProperties": False}

    def listed(items: Any, most: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "maxItems": most}

    return st.one_of(
        st.builds(closed, properties, st.integers(0, 3)),
        st.builds(listed, inner, st.integers(1, 3)),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
    )


schemas = st.recursive(_plain, _nested, max_leaves=5)

_atoms = st.sampled_from(["a", "b", "ab", "[abc]", "[^ab]", r"\d", r"\w", ".", "(?:a|b)", r"\."])
_times = st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])
regexes = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.builds(lambda part, times: f"(?:{part}){times}", inner, _times),
    ),
    max_leaves=6,
)
choices = st.lists(st.text("abc {", max_size=5), min_size=1, max_size=4)

forms = st.one_of(
    schemas.map(schema_form), regexes.map(regex_form), choices.map(choice_form), st.just(OBJECT)
)
