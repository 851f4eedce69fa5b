"""Conversations and tools in a body, and how a chat template wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from surefoot.server.fields import either, optional
from surefoot.server.strict import Strict
from surefoot.types import SurefootError

MOST_TOOLS: Final = 128  # OpenAI's
MOST_SCHEMAS: Final = 64 * 1024
"""Characters of the schemas of all tools, as JSON."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


class TextPart(Strict):
    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("<parts>")],
    either("is neither a string nor a list of text parts", text=str, parts=list),
]


class Turn(Strict):
    @property
    def size(self) -> int:
        """Characters of its text."""
        return len(text_of(getattr(self, "content", None)) or "")


class CalledFunction(Strict):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it.")


class ToolCall(Strict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class SystemMessage(Turn):
    role: Literal["system", "developer"] = Field(description="Chat templates see both as system.")
    content: Content
    name: str | None = None


class UserMessage(Turn):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Turn):
    """An answer may be put back into the conversation as it came, other services' empty fields included."""

    role: Literal["assistant"]
    content: Content | None = optional("May be missing beside tool_calls.")
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolMessage(Turn):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


def _role(message: object) -> str | None:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    if role == "developer":
        return "<system>"
    return f"<{role}>" if role in _ROLES else None


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    Discriminator(
        _role,
        custom_error_type="shape",
        custom_error_message=f"has no role that is known; allowed is {', '.join(_ROLES)}",
    ),
]


class Function(Strict):
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = optional("A JSON schema of the arguments.")
    strict: bool | None = optional(
        "Whether the arguments follow the schema with tool_choice auto too; of required calls they always do."
    )


class Tool(Strict):
    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS)]


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<mode>")] | Annotated[NamedTool, Tag("<named>")],
    either("is neither none, auto, required nor a named function", mode=str, named=dict),
]


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As `Tokenizer.apply_chat` takes them, parts of text joined. Raises SurefootError for an assistant's
    message that says nothing."""
    return [_for_template(place, message) for place, message in enumerate(messages)]


def _for_template(place: int, message: Message) -> dict[str, Any]:
    found = message.model_dump(exclude_none=True, include={"role", "name", "tool_calls", "tool_call_id"})
    if found["role"] == "developer":
        found["role"] = "system"
    if not found.get("tool_calls"):
        found.pop("tool_calls", None)
    if message.content is None and "tool_calls" not in found:
        raise SurefootError(
            f"messages[{place}].content: it is missing; an assistant may leave it out beside tool_calls alone"
        )
    return {**found, "content": text_of(message.content)}


def text_of(content: str | list[TextPart] | None) -> str | None:
    """A content's parts joined."""
    return content if isinstance(content, str | None) else "".join(part.text for part in content)


def check_tools(tools: Sequence[Tool] | None, choice: str | NamedTool | None) -> None:
    """Raises SurefootError for tools that are too large, and for a choice that doesn't go with them."""
    names = [tool.function.name for tool in tools or ()]
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            raise SurefootError(f"tools[{place}].function.name: {name!r} is there twice")
        seen.add(name)
    size = sum(len(json.dumps(tool.function.parameters)) for tool in tools or ())
    if size > MOST_SCHEMAS:
        raise SurefootError(
            f"tools: their schemas have {size} characters of JSON together; allowed are {MOST_SCHEMAS}"
        )
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        known = ", ".join(names) if names else "none, as there are no tools"
        raise SurefootError(f"tool_choice: {choice.function.name!r} is no tool; allowed is {known}")
    if choice == "required" and not names:
        raise SurefootError("tool_choice: 'required' was given without tools; allowed is none or auto")
