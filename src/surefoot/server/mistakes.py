"""What is wrong with a body, in one line: the field, the value and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from surefoot.server.errors import ApiError
from surefoot.server.fields import IDLE, LIMITS

_LONGEST = 60  # characters of a value, or of a field's name, that are shown
_KEY = "[key]"  # stands behind a key that is itself at fault

Mistake = Mapping[str, Any]
"""One error as pydantic has it: type, loc, msg, input and ctx."""


def body_error(mistakes: Sequence[Mistake]) -> ApiError:
    """The first mistake of a body, as 400. mistakes: those of FastAPI's RequestValidationError."""
    first = mistakes[0]
    field = "" if first["type"] == "json_invalid" else _field(first["loc"])
    return ApiError(400, "invalid_request_error", f"{field or 'body'}: {_what(first)}", param=field or None)


def _field(place: Sequence[str | int]) -> str:
    """messages[0].content for the place of it. Which member of a union was tried, in angle brackets, is no
    part of it, nor are query and body themselves."""
    parts = [_cut(part) if isinstance(part, str) else part for part in place[1:]]
    parts = [part for part in parts if not str(part).startswith("<")]
    if parts and parts[-1] == _KEY:
        parts = parts[:-2]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _what(mistake: Mistake) -> str:
    kind, place = str(mistake["type"]), mistake["loc"]
    if kind == "missing":
        return "it is missing" if len(place) > 1 else "it is missing; send a JSON object"
    if kind == "extra_forbidden":
        return _unknown(_field(place), mistake.get("input"))
    if kind == "json_invalid":
        return f"it is not valid JSON: {mistake['ctx']['error']} at character {place[-1]}"
    if len(place) == 1 and isinstance(mistake.get("input"), bytes):
        return "its Content-Type isn't that of JSON; send the header Content-Type: application/json"
    if kind in _SAYINGS:
        said = _SAYINGS[kind](mistake.get("ctx") or {})
    elif kind == "shape":
        said = str(mistake["msg"])
    else:
        return " ".join(str(mistake["msg"]).split())
    return f"{_shown(mistake.get('input'))} {said}{_allowed(kind, place)}"


def _unknown(field: str, value: object) -> str:
    if field not in IDLE:
        return "this field is unknown"
    allowed = " or ".join(json.dumps(idle) for idle in IDLE[field])
    return f"{_shown(value)} asks for what is not done here; allowed is {allowed}"


def _ranged(context: Mapping[str, Any]) -> str:
    return "is out of range"


def _least(context: Mapping[str, Any]) -> str:
    least = context["min_length"]
    return f"is too short; allowed is {least} {'item' if least == 1 else 'items'} or more"


_SAYINGS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "greater_than": _ranged,
    "greater_than_equal": _ranged,
    "less_than": _ranged,
    "less_than_equal": _ranged,
    "finite_number": lambda context: "is not a finite number",
    "int_type": lambda context: "is not a whole number",
    "int_from_float": lambda context: "is not a whole number",
    "float_type": lambda context: "is not a number",
    "string_type": lambda context: "is not a string",
    "bool_type": lambda context: "is not true or false",
    "list_type": lambda context: "is not a list",
    "dict_type": lambda context: "is not an object",
    "model_type": lambda context: "is not an object",
    "model_attributes_type": lambda context: "is not an object; send JSON, as application/json",
    "none_required": lambda context: "is not allowed; only null is",
    "literal_error": lambda context: f"is unknown; allowed is {context['expected']}",
    "string_pattern_mismatch": lambda context: f"is not of the form {context['pattern']}",
    "string_unicode": lambda context: "holds half a character, which is no text",
    "string_too_short": lambda context: "is an empty string; it needs at least 1 character",
    "string_too_long": lambda context: f"is too long; allowed is {context['max_length']} characters or fewer",
    "too_short": _least,
    "too_long": lambda context: f"is too long; allowed is {context['max_length']} items or fewer",
}
_NUMBERS = {kind for kind in _SAYINGS if "than" in kind} | {"finite_number", "int_type", "int_from_float"}
_NUMBERS |= {"float_type"}


def _allowed(kind: str, place: Sequence[str | int]) -> str:
    """What the numbers of a field may be, where it is known."""
    names = [part for part in place if part in LIMITS]
    if kind in _NUMBERS and names:
        return f"; allowed is {LIMITS[str(names[-1])]}"
    return "; allowed is 0 or more" if kind == "greater_than_equal" else ""


def _shown(value: object) -> str:
    """As JSON, so in ASCII and in one line; its beginning when it is long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = ascii(value)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
