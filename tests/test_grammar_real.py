"""A form on a real model and its vocabulary: SmolLM2."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest

from surefoot.engine import Engine
from surefoot.grammar import Grammars
from surefoot.loading import LoadedModel, load_model
from surefoot.types import VERIFY_MODES, Constraint, SamplingParams
from tests.models_fixture import smollm2_path

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
PROMPT = (
    'Two people as JSON: {"name": "Ada Lovelace", "age": 36, "colours": ["red", "green"]} and '
    '{"name": "Alan Turing", "age": 41, "colours": ["blue"]}. Now a third one.'
)


@cache
def smollm2() -> LoadedModel:
    return load_model(smollm2_path())


def params(seed: int) -> SamplingParams:
    form = Constraint("json_schema", json.dumps(SCHEMA))
    return SamplingParams(seed=seed, temperature=1, top_p=1, max_tokens=96, logprobs=1, grammar=form)


def test_ngram_drafts_give_plain_decodings_json() -> None:
    each = [params(seed) for seed in range(2)]
    plain = Engine(smollm2(), None).generate([PROMPT] * 2, each, chat=True)
    speculated = Engine(smollm2(), "ngram").generate([PROMPT] * 2, each, chat=True)
    for one, other in zip(plain, speculated, strict=True):
        assert one.finish_reason == "stop"
        jsonschema.validate(json.loads(one.text), SCHEMA)
        assert (other.token_ids, other.text, other.finish_reason) == (one.token_ids, one.text, "stop")
        assert [entry.chosen for entry in other.logprobs or ()] == [e.chosen for e in one.logprobs or ()]
    assert sum(result.stats.accepted_tokens for result in speculated) > 0
    assert len({result.text for result in plain}) == 2


@pytest.mark.parametrize("verify", VERIFY_MODES[1:])
def test_the_other_modes_give_valid_json(verify: str) -> None:
    engine = Engine(smollm2(), "ngram", verify=verify)  # type: ignore[arg-type]
    for result in engine.generate([PROMPT] * 2, [params(seed) for seed in range(2)], chat=True):
        assert result.finish_reason == "stop"
        jsonschema.validate(json.loads(result.text), SCHEMA)


def test_the_vocabulary_is_understood() -> None:
    """What the tokenizer makes of a text is what the grammar reads; special tokens and padding are none."""
    tokenizer = smollm2().tokenizer
    size = smollm2().model.vocab_size
    anything = Grammars(tokenizer, tokenizer.eos_ids, size + 8).matcher(Constraint("regex", "(?s:.)*"))
    allowed = anything.allowed(())
    assert len(allowed) == size + 8
    assert not allowed[tokenizer.vocab_size :].any()
    special = [token for token in range(tokenizer.vocab_size) if tokenizer.is_special(token)]
    assert {token for token in special if allowed[token]} == set(tokenizer.eos_ids)
    for text in ("Grüße, 世界! 🦀\n\tx = 1", "<|im_start|>", "  two  spaces"):
        drafted = tokenizer.encode(text, add_special=False)
        follows = 0 if any(map(tokenizer.is_special, drafted)) else len(drafted)
        assert anything.legal(drafted) == follows
