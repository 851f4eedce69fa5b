"""The bodies of the two generating endpoints."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from surefoot.server.fields import Schema, Shared, TokenId, check_shared, constraint, number, optional
from surefoot.server.messages import Message, Tool, ToolChoice, Tools, check_tools
from surefoot.server.strict import Strict
from surefoot.types import Constraint, SurefootError

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list):
        return None
    first = value[0] if value else None
    return "<texts>" if isinstance(first, str) else "<lists>" if isinstance(first, list) else "<ids>"


# Of a long list the first mistake is told, and the others are not looked for: each costs microseconds, on the
# event loop, and a body has room for millions.
Ids = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Field(fail_fast=True), Tag("<texts>")]
    | Annotated[Ids, Tag("<ids>")]
    | Annotated[list[Ids], Field(fail_fast=True), Tag("<lists>")],
    Discriminator(
        _prompt_kind,
        custom_error_type="shape",
        custom_error_message="is neither text nor token ids, nor a list of either",
    ),
]


class CompletionBody(Shared):
    prompt: Prompt = Field(description="Text or token ids, or a list of either for several prompts.")
    max_tokens: int | None = number("max_tokens", f"Default {_DEFAULT_MAX_TOKENS}.")
    best_of: int | None = number(
        "best_of",
        "Answers that are generated, of which the n with the highest log-probability per token are given, "
        "the best first. More than n is not for streams. Default n.",
    )
    echo: bool | None = optional("Whether the prompt stands before each answer. Default false.")
    logprobs: int | None = number(
        "logprobs",
        "How many of the likeliest tokens to list at each place, with the log-probabilities that the model "
        "gave them before any other field took effect; with `echo` of the prompt too.",
    )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each by itself."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def generated(self) -> int:
        """Answers to each prompt, those that are not given included."""
        return self.best_of or self.answers

    @property
    def limit(self) -> int:
        return self.max_tokens or _DEFAULT_MAX_TOKENS

    def check(self) -> None:
        """Raises SurefootError for fields that don't go together."""
        check_shared(self)
        if self.generated < self.answers:
            raise SurefootError(f"best_of: {self.best_of} is out of range; allowed is n, {self.n}, or more")
        if self.stream and self.generated > self.answers:
            raise SurefootError(
                f"best_of: {self.best_of} of {self.answers} can't be streamed; leave out stream, or best_of"
            )

    @property
    def constraint(self) -> Constraint | None:
        return constraint(self.structured_outputs)

    @property
    def kept_logprobs(self) -> int | None:
        """As `SamplingParams.logprobs`: the best are found by them."""
        return 0 if self.logprobs is None and self.generated > self.answers else self.logprobs

    @property
    def prompt_lists(self) -> int | None:
        """As `SamplingParams.prompt_logprobs`: asked for by that name, or by echo."""
        by_echo = self.logprobs if self.echo else None
        asked = [count for count in (by_echo, self.prompt_logprobs) if count is not None]
        return max(asked, default=None)


class JsonSchema(Strict):
    name: str = Field(description="No effect.")
    description: str | None = optional("No effect.")
    schema_: Schema | None = Field(None, alias="schema", description="Without one, any JSON object.")
    strict: bool | None = optional("No effect: the answer always follows the schema.")


class TextFormat(Strict):
    type: Literal["text"]


class ObjectFormat(Strict):
    type: Literal["json_object"]


class SchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


_FORMATS = ("text", "json_object", "json_schema")


def _format(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in _FORMATS else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[ObjectFormat, Tag("<json_object>")]
    | Annotated[SchemaFormat, Tag("<json_schema>")],
    Discriminator(
        _format,
        custom_error_type="shape",
        custom_error_message=f"has no type that is known; allowed is {', '.join(_FORMATS)}",
    ),
]


class ChatBody(Shared):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] = Field(
        description="The conversation so far."
    )
    max_tokens: int | None = number("max_tokens", "Default: as many as the context has room for.")
    max_completion_tokens: int | None = number("max_completion_tokens", "Another name of `max_tokens`.")
    logprobs: bool | None = optional(
        "Whether to give the log-probability of each token, as the model had it before any other field took "
        "effect."
    )
    top_logprobs: int | None = number(
        "top_logprobs", "How many of the likeliest tokens to list at each place; only with `logprobs`."
    )
    response_format: ResponseFormat | None = optional("What the answer must be. Default: any text.")
    tools: Tools | None = optional("Functions that the model may call. Default, and with []: none.")
    tool_choice: ToolChoice | None = optional(
        "none: no calls, and the model is told of no tools; auto: as it likes; required: at least one call; "
        "or the function that must be called. Default auto with tools."
    )
    parallel_tool_calls: bool | None = optional(
        "false: only the first call of an answer is given, and no text behind it. Default true."
    )

    @property
    def answers(self) -> int:
        return self.n or 1

    @property
    def limit(self) -> int | None:
        """None for as many tokens as there is room for."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def listed(self) -> int | None:
        """As `SamplingParams.logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def usable_tools(self) -> list[Tool]:
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def form(self) -> str:
        if self.structured_outputs is not None:
            return super().form
        return "tools" if self.usable_tools else "response_format"

    def check(self) -> None:
        """Raises SurefootError for fields that don't go together."""
        check_shared(self)
        check_tools(self.tools, self.tool_choice)
        if self.max_completion_tokens not in (None, self.limit):
            raise SurefootError(
                f"max_completion_tokens: {self.max_completion_tokens} was given with max_tokens "
                f"{self.max_tokens}; give one of them"
            )
        if self.top_logprobs and not self.logprobs:
            raise SurefootError("top_logprobs: given without logprobs; set that to true")

    def constraints(self, of_tools: Constraint | None) -> Constraint | None:
        """The one thing that the answer must be. of_tools: what the tools make of it. Raises SurefootError
        when it must be several."""
        ways = {
            "response_format": _of_format(self.response_format),
            "structured_outputs": constraint(self.structured_outputs),
            "tools": of_tools,
        }
        given = [name for name, found in ways.items() if found is not None]
        if self.usable_tools and "tools" not in given:  # it may call them, which is no text of a form
            given.append("tools")
        if len(given) > 1:
            raise SurefootError(f"{given[0]}: given with {given[1]}; an answer can't be both")
        return ways[given[0]] if given else None


def _of_format(wanted: TextFormat | ObjectFormat | SchemaFormat | None) -> Constraint | None:
    if wanted is None or isinstance(wanted, TextFormat):
        return None
    schema: Any = None if isinstance(wanted, ObjectFormat) else wanted.json_schema.schema_
    if schema is None:
        return Constraint("json_object")
    return Constraint("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
