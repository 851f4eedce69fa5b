"""Chat templates: a stranger's Jinja program that lays out a conversation, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from surefoot.models.fields import one_line
from surefoot.types import SurefootError


class ChatTemplate:
    """A model's chat template. bos, eos: the texts of these tokens, empty when there are none. where: the
    file, for messages.

    Raises SurefootError when it is not valid Jinja.
    """

    def __init__(self, source: str, bos: str, eos: str, where: str = "the model") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        self._where = where
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise SurefootError(f"{where}: its chat template is broken: {one_line(error)}") from error

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The text for a conversation. Raises SurefootError when the template refuses it or fails."""
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except Exception as error:  # a template can fail in any way a program can
            why = one_line(error)
            raise SurefootError(f"{self._where}: its chat template refuses this: {why}") from error


class _Generation(Extension):
    """The block {% generation %}, which marks the assistant's words for training: its content, as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration has no ClassVar

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
