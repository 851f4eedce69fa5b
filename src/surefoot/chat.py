"""Chat templates: a stranger's Jinja program that lays out a conversation, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from surefoot.models.fields import one_line
from surefoot.types import SurefootError


class ChatTemplate:
    """A model's chat template. bos, eos: the texts of these tokens, empty when there are none. where: the
    file, for messages. knows_tools: whether it can tell the model of tools at all.

    Raises SurefootError when it is not valid Jinja.
    """

    def __init__(self, source: str, bos: str, eos: str, where: str = "the model") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
            self.knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise SurefootError(f"{where}: its chat template is broken: {one_line(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text for a conversation, whose messages and tools are as OpenAI's API has them.

        Raises SurefootError when the template refuses it or fails, and when it would leave out tools, calls
        of tools or what these gave.
        """
        if not self.knows_tools:
            self._refuse_tools(messages, tools)
        try:
            return self._template.render(
                messages=[_as_templates_expect(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=tools or None,
                documents=None,
                **self._tokens,
            )
        except Exception as error:  # a template can fail in any way a program can
            why = one_line(error)
            raise SurefootError(f"messages: the chat template refuses them: {why}") from error

    def _refuse_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> None:
        why = "the model's chat template knows no tools; use a model that was trained with them"
        if tools:
            raise SurefootError(f"tools: {len(tools)} given, but {why}")
        for place, message in enumerate(messages):
            if message.get("tool_calls"):
                raise SurefootError(f"messages[{place}].tool_calls: given, but {why}")
            if message.get("role") == "tool":
                raise SurefootError(f"messages[{place}].role: 'tool' given, but {why}")


class _Generation(Extension):
    """The block {% generation %}, which marks the assistant's words for training: its content, as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration has no ClassVar

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _as_templates_expect(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with arguments as objects, which the API has as JSON in a string, and text where it has null:
    templates join contents to other text."""
    changed = dict(message)
    if changed.get("content", "") is None:
        changed["content"] = ""
    if changed.get("tool_calls"):
        changed["tool_calls"] = [_with_object(call) for call in changed["tool_calls"]]
    return changed


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError, RecursionError):  # no JSON, an object already, or too deep
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
