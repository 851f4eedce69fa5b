"""J4: what is no grammar, can't be enforced or costs too much is refused in one line, with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from surefoot.constraints import MAX_SOURCE
from surefoot.grammar import Grammars
from surefoot.types import Constraint, ConstraintKind, SurefootError
from tests.grammars import GRAMMARS, TOKENIZER, VOCAB, spelled

WRONG: list[tuple[ConstraintKind, str, str]] = [
    ("json_object", "{}", "json_object takes no source"),
    ("json_schema", "", "json_schema takes a source"),
    ("json_schema", "{", "the source is not JSON: Expecting property name"),
    ("json_schema", "[]", r"the schema is \[\], not a JSON schema"),
    ("json_schema", "false", "the schema is false, which nothing satisfies"),
    ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
    ("json_schema", '{"enum": []}', "Unsatisfiable schema"),
    ("json_schema", '{"const": 1, "type": "string"}', "Unsatisfiable schema"),
    ("json_schema", '{"type": "integer", "minimum": "x"}', "Expected f64 for 'minimum'"),
    ("json_schema", '{"type": "integer", "minimum": NaN}', "failed to parse"),
    ("json_schema", '{"$ref": "https://example.com/x"}', "not present in a registry"),
    ("json_schema", '{"$ref": "#/$defs/a"}', "[Pp]ointer"),
    ("json_schema", '{"oneOf": [{"type": "number"}, {"type": "integer"}]}', "oneOf constraints"),
    ("json_schema", '{"not": {}}', "the schema has the keyword 'not', which is not supported"),
    ("json_schema", '{"uniqueItems": true}', "the keyword 'uniqueItems'"),
    ("json_schema", '{"contains": {}}', "the keyword 'contains'"),
    ("json_schema", '{"type": "string", "format": "foo"}', "Unknown format: foo"),
    ("json_schema", '{"requird": ["a"]}', "the schema has the keyword 'requird'"),
    ("json_schema", '{"type": "string", "nullable": true}', "the keyword 'nullable'"),
    ("json_schema", '{"x-guidance": {"lenient": true}, "type": "array"}', "the keyword 'x-guidance'"),
    (
        "json_schema",
        '{"properties": {"a": {"items": {"if": {}}}}}',
        "properties.a.items has the keyword 'if'",
    ),
    ("json_schema", '{"anyOf": [{}, {"not": {}}]}', r"anyOf\[1\] has the keyword 'not'"),
    ("json_schema", '{"$defs": {"a": {"not": {}}}}', r"\$defs.a has the keyword 'not'"),
    ("json_schema", '{"prefixItems": [7]}', r"prefixItems\[0\] is 7, not a JSON schema"),
    ("json_schema", '{"items": ' * 900 + "{}" + "}" * 900, "recursion limit|nested too deeply"),
    ("json_schema", "[" * 60_000, "nested too deeply|not JSON"),
    ("regex", "(", "unclosed group"),
    ("regex", "[", "unclosed character class"),
    ("regex", "(?=a)b", "look-ahead and look-behind, is not supported"),
    ("regex", r"(.)\1", "backreferences are not supported"),
    ("regex", r"\bfoo", "lookarounds not supported"),
    ("regex", "\ud800", "half a character"),
    ("regex", "(" * 30_000, "unclosed group"),
    ("regex", "(a|b)?" * 8000, "fuel"),
    ("regex", "é", "no token of this model can go on"),
    ("regex", "a" * (MAX_SOURCE + 1), f"{MAX_SOURCE + 1} bytes; at most {MAX_SOURCE} are taken"),
    ("lark", "start: a", r"at 1\(8\): unknown name: \"a\""),
    ("lark", "foo: /a/", "no start rule found"),
    ("lark", "start: (", "1"),
    ("lark", "start: <nope>", "unknown special token"),
    ("lark", "start: a\na: a", "no token of this model can go on"),
    ("lark", "start[max_tokens=5]: /a*/", "rollback not supported with max_tokens"),
    ("lark", 'start: gen\ngen[stop="b"]: /.*/', "rollback not supported"),
    ("lark", 'start: %json {"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented keys"),
    ("lark", "start: " + "x? " * 10_000 + '\nx: "a"', "."),
    ("choice", "abc", "the source is not JSON"),
    ("choice", "[]", "a choice is a JSON list of strings, at least one"),
    ("choice", '["a", 1]', "a choice is a JSON list of strings"),
    ("choice", '"abc"', "a choice is a JSON list of strings"),
    ("choice", '["\\ud800"]', "."),
]


@pytest.mark.parametrize(("kind", "source", "message"), WRONG, ids=[f"{k} {s[:30]!a}" for k, s, _ in WRONG])
def test_j4_it_is_refused_in_one_line(kind: ConstraintKind, source: str, message: str) -> None:
    with pytest.raises(SurefootError, match=rf"^grammar: .*(?:{message})") as refused:
        GRAMMARS.matcher(Constraint(kind, source))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SurefootError, match=r"^grammar: kind 'yaml' is unknown; choose one of json_object, "):
        GRAMMARS.matcher(Constraint("yaml", "a"))  # type: ignore[arg-type]


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(SurefootError, match=r"^grammar: the model has no end-of-sequence token"):
        Grammars(TOKENIZER, (), VOCAB).matcher(Constraint("json_object"))


SAYING_NOTHING = {
    "$schema": "http://json-schema.org/draft-04/schema#",
    "$id": "https://example.com/a",
    "$comment": "b",
    "title": "c",
    "description": "d",
    "default": {"not": 1},
    "examples": [{"not": 1}],
    "deprecated": True,
    "readOnly": False,
    "x-order": 3,
    "type": "array",
    "prefixItems": [{"type": "integer"}],
    "items": False,
}


def test_words_about_a_schema_are_taken_and_all_else_is_enforced() -> None:
    """Whichever draft a schema names: under the older ones llguidance would ignore `prefixItems`."""
    matcher = GRAMMARS.matcher(Constraint("json_schema", json.dumps(SAYING_NOTHING)))
    assert matcher.legal(spelled("[1]")) == 3
    assert matcher.legal(spelled("[t")) == 1
    assert matcher.legal(spelled("[1,")) == 2


def test_a_name_may_be_any_keyword() -> None:
    schema = {"type": "object", "properties": {"not": {"type": "integer"}}, "required": ["not"]}
    matcher = GRAMMARS.matcher(Constraint("json_schema", json.dumps(schema)))
    assert matcher.legal(spelled('{"not":1}')) == 9


def test_any_json_is_what_the_empty_schema_and_true_ask_for() -> None:
    for source in ("{}", "true"):
        assert GRAMMARS.matcher(Constraint("json_schema", source)).legal(spelled("[1,{}]")) == 6


CHAINS: dict[str, Callable[[int], str]] = {
    "rules": lambda n: "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(n)) + f'r{n}: "a"\n',
    "repeats": lambda n: (
        "start: r0\n" + "".join(f'r{i}: (r{i + 1} "q")*\n' for i in range(n)) + f'r{n}: "a"\n'
    ),
    "brackets": lambda n: "start: " + "(" * n + '"a"' + ")" * n,
}


@pytest.mark.parametrize(("chain", "length"), [("rules", 5000), ("repeats", 2500), ("brackets", 30_000)])
def test_no_chain_of_rules_ends_the_process(chain: str, length: int) -> None:
    """The compiler recurses, and these overflow an ordinary stack. In a process of its own, which may die."""
    source = CHAINS[chain](length)
    assert len(source) <= MAX_SOURCE
    program = (
        "import sys\n"
        "from surefoot.types import Constraint, SurefootError\n"
        "from tests.grammars import GRAMMARS\n"
        "try:\n"
        "    GRAMMARS.matcher(Constraint('lark', sys.stdin.read())).allowed(())\n"
        "except SurefootError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=source, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-500:]
