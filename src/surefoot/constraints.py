"""What a constraint says, as the one grammar language that is compiled: llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llguidance import regex_to_lark

from surefoot.types import Constraint, ConstraintKind, SurefootError

MAX_SOURCE = 64 * 1024
"""Bytes of UTF-8. What compiling costs grows with it, and so does what a hostile source can make it cost."""

WHITESPACE = r" |\n[ \t]{0,20}"
"""Between two parts of JSON at most a space, or a new line and its indentation: both of the ways in which
models write JSON, and no way to write spaces for ever, which models that may often do."""

_UNFORCED = '\n%llguidance {"no_forcing": true}\n'
"""Every token whose bytes may follow is allowed, not only the tokenizer's own choice of a text that has to
come: what is allowed is then a matter of the grammar alone."""

_KEYWORDS = """
    type enum const anyOf oneOf allOf $ref properties patternProperties additionalProperties required
    minProperties maxProperties items prefixItems additionalItems minItems maxItems minLength maxLength
    pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf

    $schema $id $anchor $comment $defs definitions title description default examples deprecated readOnly
    writeOnly contentEncoding contentMediaType discriminator
"""
"""Those that are enforced, and those that demand nothing."""

_KNOWN = frozenset(_KEYWORDS.split())
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")  # by name
_WITH_SCHEMAS = ("additionalProperties", "items", "additionalItems", "prefixItems", "anyOf", "oneOf", "allOf")


def grammar_of(constraint: Constraint) -> str:
    """A constraint as Lark.

    Raises SurefootError for a source that is missing, too long or not what its kind needs, and for a JSON
    schema with a keyword that would not be enforced. What is wrong with the grammar itself shows when it is
    compiled.
    """
    kind, source = constraint.kind, constraint.source
    if kind not in _WRITERS:
        raise SurefootError(f"grammar: kind {kind!r} is unknown; choose one of {', '.join(_WRITERS)}")
    if bool(source) == (kind == "json_object"):
        raise SurefootError(f"grammar: {kind} takes {'no' if source else 'a'} source")
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        raise SurefootError(f"grammar: character {error.start} of the source is half a character") from None
    if size > MAX_SOURCE:
        raise SurefootError(f"grammar: the source has {size} bytes; at most {MAX_SOURCE} are taken")
    return _WRITERS[kind](source) + _UNFORCED


def _json_schema(source: str) -> str:
    schema = _parsed(source)
    if isinstance(schema, bool):
        if not schema:
            raise SurefootError("grammar: the schema is false, which nothing satisfies")
        schema = {}
    check_schema(schema)
    return _json(schema)


def _json(schema: Mapping[str, Any]) -> str:
    # $schema would only make newer keywords be ignored: all are read as the latest draft's.
    said = {key: value for key, value in schema.items() if key != "$schema"}
    return f"start: %json {json.dumps({**said, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"


def _choice(source: str) -> str:
    texts = _parsed(source)
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise SurefootError("grammar: a choice is a JSON list of strings, at least one")
    return f"start: {' | '.join(json.dumps(text) for text in texts)}"


_WRITERS: Mapping[ConstraintKind, Callable[[str], str]] = {
    "json_object": lambda source: _json({"type": "object"}),
    "json_schema": _json_schema,
    "regex": lambda source: f"start: /{regex_to_lark(source, use_ascii='')}/",
    "lark": lambda source: source,
    "choice": _choice,
}


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except ValueError as error:
        raise SurefootError(f"grammar: the source is not JSON: {error}") from None
    except RecursionError:
        raise SurefootError("grammar: the source is nested too deeply") from None


def check_schema(schema: object, where: str = "the schema") -> None:
    """Raises SurefootError for a JSON schema nested too deeply, or with a keyword that llguidance would
    pass over in silence; it names those that it knows and can't enforce by itself."""
    try:
        _check_schema(schema, where)
    except RecursionError:
        raise SurefootError(f"grammar: {where} is nested too deeply") from None


def _check_schema(schema: object, where: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise SurefootError(f"grammar: {where} is {json.dumps(schema)[:40]}, not a JSON schema")
    for keyword in schema:
        if keyword == "x-guidance" or not (keyword in _KNOWN or keyword.startswith("x-")):
            raise SurefootError(f"grammar: {where} has the keyword {keyword!r}, which is not supported")
    for place, part in _parts(schema):
        _check_schema(part, f"{where}.{place}" if where != "the schema" else place)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The schemas right inside a schema, and where each stands."""
    for keyword in _OF_SCHEMAS:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from ((f"{keyword}.{name}", part) for name, part in named.items())
    for keyword in _WITH_SCHEMAS:
        inside = schema.get(keyword)
        if isinstance(inside, list):
            yield from ((f"{keyword}[{index}]", part) for index, part in enumerate(inside))
        elif inside is not None:
            yield keyword, inside
