"""The house: imports point one way, and the pure rooms stay pure (docs/design.md §3)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "surefoot"

ROOMS = (
    "types",
    "noise",
    "sampling",
    "tree",
    "verify",
    "exact",
    "evidence",
    "oracle",
    "native",
    "models",
    "chat",
    "text",
    "loading",
    "drafters",
    "lookahead",
    "stops",
    "constraints",
    "grammar",
    "request",
    "scheduler",
    "prefixes",
    "memory",
    "trace",
    "results",
    "rounds",
    "batch",
    "loop",
    "events",
    "prompts",
    "pairing",
    "intake",
    "engine",
    "asynchronous",
    "server",
    "testing",
    "audit",
    "commands",
    "cli",
    "demo",
    "__main__",
)
PURE = ("noise", "sampling", "verify", "tree", "exact", "evidence", "lookahead", "scheduler")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at the top or inside a function, in full."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} imports relatively"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_used(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported(path) if name.startswith("surefoot.")]
    return {part[1] for part in parts if part[1] in ROOMS}


def test_every_module_has_a_room() -> None:
    assert {room_of(path) for path in modules()} == set(ROOMS)


def test_the_design_lists_the_rooms_in_this_order() -> None:
    plan = (SOURCE.parents[1] / "docs" / "design.md").read_text().partition("## 3.")[2].split("```")[1]
    listed = re.findall(r"^(\w+)", plan, re.MULTILINE)
    assert listed == [room for room in ROOMS if room != "__main__"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = ROOMS.index(room_of(path))
    assert [room for room in sorted(rooms_used(path)) if ROOMS.index(room) > own] == []


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_import_no_model_and_no_torch(room: str) -> None:
    names = imported(SOURCE / f"{room}.py")
    assert not [name for name in names if name.split(".")[0] in ("torch", "random", "secrets", "time")]
    assert not [name for name in names if name.startswith("surefoot.models")]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_outgrows_one_job(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350
