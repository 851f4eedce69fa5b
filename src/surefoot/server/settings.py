"""Everything a server can be told, from flags and a TOML file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from surefoot.server.logs import LEVELS
from surefoot.types import VERIFY_MODES, Interval, SurefootError, VerifyMode, whole

KEY_VARIABLE = "SUREFOOT_API_KEY"

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{unit}": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for unit, base in (("iB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a server. Raises SurefootError naming the one that can't be.

    served_model_name: the names that requests may give as `model`, the first of which answers bear; without
    any, the model's own. kv_memory: bytes for keys and values; None leaves it to the free memory. max_queue:
    requests that wait, choices counted singly; more are refused. max_prompt_tokens: None for as many as the
    context holds. body_timeout: seconds for a body to arrive. timeout: seconds for an answer, None for any.
    grace: seconds that answers may go on once the server closes. cors_origin: of pages that may use it.
    log_prompts: whether prompts and answers appear in the log.
    """

    model: str
    served_model_name: tuple[str, ...] = ()
    draft: str = "ngram"
    draft_tokens: int | None = None
    share_drafts: bool = False
    verify: VerifyMode = "coupled"
    precision: str = "auto"
    threads: int | None = None
    kv_memory: int | None = None
    max_requests: int = 32
    max_queue: int = 128
    max_rows: int = 512
    prompt_rows: int = 64
    prefix_cache: bool = True
    max_prompt_tokens: int | None = None
    max_body_bytes: int = 4 * 1024**2
    body_timeout: float = 60.0
    timeout: float | None = None
    grace: float = 30.0
    host: str = "127.0.0.1"
    port: int = 8000
    cors_origin: tuple[str, ...] = ()
    api_key: str | None = field(default=None, repr=False)
    log_level: str = "info"
    log_prompts: bool = False
    trace: str | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check(name, value))

    def lines(self) -> list[str]:
        """Each setting as a TOML file would have it, those that are off behind a #. The key isn't shown."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.api_key is not None:
            shown["api_key"] = "(given)"
        return [f"{'# ' if value is None else ''}{name} = {_toml(value)}" for name, value in shown.items()]


def resolve(
    flags: Mapping[str, Any],
    file: str | Path | None,
    defaults: Mapping[str, Any],
    environment: Mapping[str, str],
) -> Settings:
    """The settings that flags, a file and the environment make; flags win over the file, both over the rest.

    The key is api_key, the first line of the file api_key_file, or $SUREFOOT_API_KEY. Raises SurefootError
    for a file that can't be read or isn't TOML, and for a key of it that is unknown or of a wrong type,
    naming both.
    """
    given = _read(Path(file)) if file is not None else {}
    if "api_key" in flags or "api_key_file" in flags:
        given = {name: value for name, value in given.items() if name not in ("api_key", "api_key_file")}
    merged = {**defaults, **given, **flags}
    path = merged.pop("api_key_file", None)
    if path is not None:
        if "api_key" in merged:
            raise SurefootError(f"api_key_file: {path} was given beside api_key; give one of them")
        merged["api_key"] = _key_of(path)
    elif "api_key" not in merged and KEY_VARIABLE in environment:
        merged["api_key"] = environment[KEY_VARIABLE]
    return Settings(**merged)


def size(text: str) -> int:
    """Bytes of a size such as 4GiB, 500MB or 1073741824. Raises ValueError for what is none."""
    found = _SIZE.fullmatch(text.strip())
    unit = {name.lower(): value for name, value in _UNITS.items()}.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as 4GiB, 500MB or 1073741824")
    return int(float(found[1]) * unit)


def _read(path: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SurefootError(f"config: {path} can't be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8, or no TOML
        raise SurefootError(f"config: {path} is not TOML: {error}") from error
    for name, value in given.items():
        check = {**_CHECKS, "api_key_file": _text}.get(name)
        if check is None:
            meant = name.replace("-", "_")
            hint = f"write {meant}" if meant in _CHECKS else "see surefoot serve --help"
            raise SurefootError(f"config: {path}: {name} is no setting; {hint}")
        try:
            given[name] = check(name, value)
        except SurefootError as error:
            raise SurefootError(f"config: {path}: {error}") from error
    return given


def _key_of(path: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SurefootError(f"api_key_file: {path} can't be read: {said}") from error
    return lines[0].strip() if lines else ""


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SurefootError(f"{name}: {value!r} is not a text")
    if not value:
        raise SurefootError(f"{name}: it is empty; at least 1 character is needed")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise SurefootError(f"{name}: {value!r} is not a list of texts")
    return tuple(_text(name, text) for text in value)


def _origins(name: str, value: object) -> tuple[str, ...]:
    origins = _texts(name, value)
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise SurefootError(f"{name}: {origin!r} is no origin such as https://example.org, nor *")
    return origins


def _secret(name: str, value: object) -> str:
    """Without showing it."""
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]+", value):
        raise SurefootError(f"{name}: it is not 1 or more visible ASCII characters without spaces")
    return value


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SurefootError(f"{name}: {value!r} is neither true nor false")
    return value


def _count(low: int, high: float = float("inf")) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool):
            raise SurefootError(f"{name}: {value!r} is not a whole number; allowed is {Interval(low, high)}")
        return whole(name, value, low, high)

    return check


def _bytes(name: str, value: object) -> int:
    if isinstance(value, str):
        try:
            value = size(value)
        except ValueError as error:
            raise SurefootError(f"{name}: {error}") from None
    return _count(1)(name, value)


def _seconds(low: float, *, low_open: bool = False) -> Callable[[str, object], float]:
    allowed = Interval(low, 1e9, low_open)

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or float(value) not in allowed:
            raise SurefootError(f"{name}: {value!r} is out of range; allowed is {allowed} seconds")
        return float(value)

    return check


def _one_of(*choices: str) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if value not in choices:
            raise SurefootError(f"{name}: {value!r} is unknown; choose one of {', '.join(choices)}")
        return str(value)

    return check


_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "model": _text,
    "served_model_name": _texts,
    "draft": _text,
    "draft_tokens": _count(0),
    "share_drafts": _switch,
    "verify": _one_of(*VERIFY_MODES),
    "precision": _text,
    "threads": _count(1),
    "kv_memory": _bytes,
    "max_requests": _count(1),
    "max_queue": _count(0),
    "max_rows": _count(1),
    "prompt_rows": _count(1),
    "prefix_cache": _switch,
    "max_prompt_tokens": _count(1),
    "max_body_bytes": _bytes,
    "body_timeout": _seconds(0, low_open=True),
    "timeout": _seconds(0, low_open=True),
    "grace": _seconds(0),
    "host": _text,
    "port": _count(0, 65535),
    "cors_origin": _origins,
    "api_key": _secret,
    "log_level": _one_of(*LEVELS),
    "log_prompts": _switch,
    "trace": _text,
}


def _toml(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
