"""Bodies as they are taken: to the letter, but for what asks for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


def _told_of_nulls(schema: dict[str, Any], model: type[BaseModel]) -> None:
    assert issubclass(model, Strict)
    schema["additionalProperties"] = {"type": "null"}
    for name, values in model.idle.items():
        schema["properties"][name] = {"enum": [*values, None], "description": "Asks for nothing."}


class Strict(BaseModel):
    """JSON as it is: no number out of a string, no field that is unknown, no NaN.

    A field that is null counts as left out, whatever its name: clients write null for all that they know of
    and don't use, and it asks for nothing. So does an unknown one with a value that is `idle`. Of the other
    unknown ones the first is told: a body has room for many, and each mistake costs microseconds on the event
    loop.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=_told_of_nulls
    )

    idle: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Of fields that have no meaning here, the values that ask for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = (
            name for name, value in given.items() if name not in known and not cls._is_idle(name, value)
        )
        first = next(unknown, None)
        return {name: value for name, value in given.items() if name in known or name == first}

    @classmethod
    def _is_idle(cls, name: str, value: object) -> bool:
        as_bool = isinstance(value, bool)  # which Python takes for a number
        return value is None or any(
            value == idle and as_bool == isinstance(idle, bool) for idle in cls.idle.get(name, ())
        )
