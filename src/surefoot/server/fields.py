"""The fields that both generating endpoints take, and what becomes of them.

Their ranges come from `types.RANGES`, the engine's own table, and so stand in the OpenAPI schema.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Discriminator, Field, Tag

from surefoot.server.service import Service
from surefoot.server.strict import Strict
from surefoot.types import RANGES, Constraint, Interval, SamplingParams, SurefootError

LIMITS: Final[Mapping[str, Interval]] = {
    **RANGES,
    "max_completion_tokens": RANGES["max_tokens"],
    "best_of": RANGES["n"],
    "top_logprobs": RANGES["logprobs"],
    "top_k": Interval(-1),  # vLLM's clients write -1 for off
    "draft_tokens": Interval(0),
    "timeout": Interval(0, low_open=True),
}
"""What the numbers of a body may be, by field."""

_SEED_BITS = 53  # of one that is drawn: whole in a JavaScript number too
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "bad_words",
    "stop_token_ids",
    "ignore_eos",
)
"""Fields that are named in a body as in `SamplingParams`."""


def number(name: str, description: str) -> Any:
    """A field that need not be given, within its limits."""
    limits = LIMITS[name]
    return Field(
        default=None,
        description=description,
        gt=limits.low if limits.low_open else None,
        ge=None if limits.low_open else limits.low,
        le=None if limits.high == math.inf else limits.high,
    )


def optional(description: str, **more: Any) -> Any:
    """Another field that need not be given."""
    return Field(default=None, description=description, **more)


def either(shape: str, **kinds: type) -> Discriminator:
    """Which member of a union a value is meant to be, by its Python type; the members bear these names as
    tags, in angle brackets. shape: what is told of a value that is none of them."""
    return Discriminator(
        lambda value: next((f"<{name}>" for name, kind in kinds.items() if isinstance(value, kind)), None),
        custom_error_type="shape",
        custom_error_message=shape,
    )


MOST_WORDS: Final = 1000  # in a list that every token of an answer is held against, and characters of each
Text = Annotated[str, Field(min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=MOST_WORDS)]
Words = Annotated[list[Word], Field(max_length=MOST_WORDS)]
TokenId = Annotated[int, Field(ge=0)]


def _or_first_mistake(biases: object) -> object:
    """As they are, or the first that is wrong alone: of objects pydantic looks for every mistake."""
    if isinstance(biases, dict):
        for token, bias in biases.items():
            fits = type(bias) in (int, float) and bias in RANGES["logit_bias"]
            if not (fits and re.fullmatch("[0-9]{1,12}", token)):
                return {token: bias}
    return biases


Biases = Annotated[
    dict[
        Annotated[str, Field(pattern="^[0-9]{1,12}$")],
        Annotated[float, Field(ge=RANGES["logit_bias"].low, le=RANGES["logit_bias"].high)],
    ],
    BeforeValidator(_or_first_mistake),
    Field(max_length=MOST_WORDS),
]
Stop = Annotated[
    Annotated[Word, Tag("<text>")] | Annotated[Words, Tag("<texts>")],
    either("is neither a string nor a list of strings", text=str, texts=list),
]
Schema = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[dict[str, Any], Tag("<object>")],
    either("is neither a schema nor one as text", text=str, object=dict),
]


class StructuredOutputs(Strict):
    """What the output must be, to its last token: exactly one of these."""

    json_: Schema | None = Field(None, alias="json", description="JSON after this schema, an object or text.")
    regex: str | None = optional("A text that this regular expression matches as a whole.")
    grammar: str | None = optional("A text of this Lark grammar.")
    choice: Annotated[list[Text], Field(min_length=1, fail_fast=True)] | None = optional(
        "One of these texts."
    )


class StreamOptions(Strict):
    idle: ClassVar = {"include_obfuscation": (False,), "continuous_usage_stats": (False,)}

    include_usage: bool | None = optional("Whether a chunk with the token counts comes last. Default false.")


class Shared(Strict):
    idle: ClassVar = {
        # OpenAI's
        "store": (False,),
        "metadata": ({},),
        "service_tier": ("auto", "default"),
        "modalities": (["text"],),
        "verbosity": ("medium",),
        "functions": ([],),
        "function_call": ("auto", "none"),
        "suffix": ("",),
        # vLLM's
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "early_stopping": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "include_stop_str_in_output": (False,),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "include_reasoning": (True,),
        "chat_template_kwargs": ({},),
        "priority": (0,),
    }

    model: str | None = optional("A name that `/v1/models` lists. Default: the first of them.")
    n: int | None = number("n", "Answers to each prompt. Default 1.")
    temperature: float | None = number("temperature", "0 takes the likeliest token every time. Default 1.")
    top_p: float | None = number(
        "top_p", "Of the likeliest tokens only as many as hold this probability. Default 1: all."
    )
    top_k: int | None = number("top_k", "Only the so many likeliest tokens. Default 0, and -1: all.")
    min_p: float | None = number(
        "min_p", "Only tokens at least this many times as likely as the likeliest. Default 0: all."
    )
    repetition_penalty: float | None = number(
        "repetition_penalty", "Makes tokens of prompt and output less likely, above 1. Default 1: off."
    )
    presence_penalty: float | None = number(
        "presence_penalty", "Taken from the logits of tokens that the output has. Default 0."
    )
    frequency_penalty: float | None = number(
        "frequency_penalty", "The same, once for each time the output has them. Default 0."
    )
    logit_bias: Biases | None = optional("Token ids, and what is added to their logits, -100 to 100 each.")
    seed: int | None = number(
        "seed",
        "The same seed gives the same tokens, speculated or not, whatever else the server does. "
        "Without one it is drawn; each choice says in `seed` which it was.",
    )
    stop: Stop | None = optional("A string, or several, before which the answer ends.")
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_WORDS)] | None = optional(
        "Token ids that end the answer."
    )
    min_tokens: int | None = number(
        "min_tokens", "No end before so many tokens; max_tokens at most. Default 0."
    )
    ignore_eos: bool | None = optional("Whether to go on where the model would end. Default false.")
    bad_words: Words | None = optional("Texts that the answer may not hold.")
    prompt_logprobs: int | None = number(
        "prompt_logprobs",
        "How many of the likeliest tokens to list at each place of the prompt.",
    )
    structured_outputs: StructuredOutputs | None = optional("What the output must be.")
    draft_tokens: int | None = number(
        "draft_tokens",
        "The most tokens to draft in a round, up to the server's prompt_rows; 0 decodes without speculation. "
        "Default: as the server is set.",
    )
    timeout: float | None = number(
        "timeout", "Seconds after which the request ends with an error; no more than the server allows."
    )
    stream: bool | None = optional("Whether the answer comes piece by piece, as server-sent events.")
    stream_options: StreamOptions | None = optional("Only with `stream`.")
    include_metrics: bool | None = optional("Whether to report how the speculation went, in `metrics`.")
    return_token_ids: bool | None = optional("Whether to give the ids of prompt and answer.")
    cache_salt: Text | None = optional(
        "Only requests with the same one share what they computed of prompts. Default: those without one."
    )
    user: str | None = optional("Taken for compatibility; it has no effect.")
    safety_identifier: str | None = optional("As `user`, whose place it takes in OpenAI's API.")
    prompt_cache_key: str | None = optional("As `user`; all prompts share one cache, but for `cache_salt`.")

    @property
    def form(self) -> str:
        """The field that says what the answer must be, if one does."""
        return "structured_outputs"


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of the engine for one prompt. deadline: seconds."""

    prompt: tuple[int, ...]
    params: SamplingParams
    draft_tokens: int | None
    cache_salt: str
    deadline: float | None


def ask(
    body: Shared,
    served: Service,
    prompt: tuple[int, ...],
    *,
    max_tokens: int,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    grammar: Constraint | None,
) -> Ask:
    """Raises SurefootError for what a body asks that its schema can't rule out."""
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = max(0, body.top_k)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    params = SamplingParams(
        **{"temperature": 1.0, "top_p": 1.0, **given},
        max_tokens=max_tokens,
        n=n,
        stop=tuple(stop),
        logit_bias=_biases(body.logit_bias or {}),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        grammar=grammar,
    )
    return Ask(prompt, params, _draft_tokens(body, served), body.cache_salt or "", _deadline(body, served))


def check_shared(body: Shared) -> None:
    """Raises SurefootError for fields that don't go together."""
    if body.stream_options is not None and body.stream_options.include_usage and not body.stream:
        raise SurefootError("stream_options: given without stream; they are for streams alone")


def constraint(outputs: StructuredOutputs | None) -> Constraint | None:
    """Raises SurefootError unless exactly one is given."""
    if outputs is None:
        return None
    schema = outputs.json_ if isinstance(outputs.json_, str | None) else json.dumps(outputs.json_)
    choice = None if outputs.choice is None else json.dumps(outputs.choice)
    ways = {
        "json": None if schema is None else Constraint("json_schema", schema),
        "regex": None if outputs.regex is None else Constraint("regex", outputs.regex),
        "grammar": None if outputs.grammar is None else Constraint("lark", outputs.grammar),
        "choice": None if choice is None else Constraint("choice", choice),
    }
    given = [way for way, found in ways.items() if found is not None]
    if len(given) != 1:
        told = " and ".join(given) or "nothing"
        raise SurefootError(f"structured_outputs: {told} given; allowed is exactly one of {', '.join(ways)}")
    return ways[given[0]]


def _biases(biases: Mapping[str, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, bias in biases.items():
        if int(name) in found:
            raise SurefootError(f"logit_bias: token {int(name)} is given twice")
        found[int(name)] = bias
    return found


def _draft_tokens(body: Shared, served: Service) -> int | None:
    allowed = Interval(0, served.max_draft_tokens)
    if body.draft_tokens is not None and body.draft_tokens not in allowed:
        raise SurefootError(f"draft_tokens: {body.draft_tokens} is out of range; allowed is {allowed}")
    return body.draft_tokens


def _deadline(body: Shared, served: Service) -> float | None:
    if served.timeout is None or body.timeout is None:
        return served.timeout if body.timeout is None else body.timeout
    allowed = Interval(0, served.timeout, low_open=True)
    if body.timeout not in allowed:
        raise SurefootError(f"timeout: {body.timeout:g} is out of range; allowed is {allowed}")
    return body.timeout


IDLE: Final[Mapping[str, tuple[object, ...]]] = Shared.idle | {
    f"stream_options.{name}": values for name, values in StreamOptions.idle.items()
}
"""By field of a body, the values that are taken where it has no meaning here."""
