"""docs/server.md against the code: its tables have every field, setting and metric, with its limits."""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from surefoot.results import Load
from surefoot.server.answers import Speculation
from surefoot.server.app import create_app
from surefoot.server.bodies import ChatBody, CompletionBody
from surefoot.server.fields import LIMITS, Shared
from surefoot.server.metrics import Metrics
from surefoot.server.settings import Settings, resolve
from surefoot.server.tokens import DetokenizeBody, TokenizeBody
from tests.server_tables import CHAT, COMPLETIONS, DOCUMENT, SHARED, Row, named, rows, table

BODIES: dict[str, type[BaseModel]] = {SHARED: Shared, COMPLETIONS: CompletionBody, CHAT: ChatBody}
WORDS = {int: "whole", float: "number", bool: "true or false"}


def fields_of(section: str) -> dict[str, Any]:
    """Of a body, those that a section tells of."""
    own = BODIES[section].model_fields
    return own if section == SHARED else {name: own[name] for name in own if name not in Shared.model_fields}


@pytest.mark.parametrize("section", BODIES)
def test_every_field_has_its_row_and_no_row_lacks_its_field(section: str) -> None:
    assert [row.field for row in rows(section)] == list(fields_of(section))


@pytest.mark.parametrize("row", [row for section in BODIES for row in rows(section)], ids=str)
def test_a_row_has_the_kind_the_limits_and_whether_it_is_needed(row: Row) -> None:
    field = fields_of(row.section)[row.field]
    kinds = [kind for kind in get_args(field.annotation) if kind in WORDS]
    if kinds:
        limits = f", {LIMITS[row.field]}" if row.field in LIMITS and kinds != [bool] else ""
        assert row.allowed == WORDS[kinds[0]] + limits
    [default] = [cells[2] for cells in table(row.section, "field") if cells[0] == f"`{row.field}`"]
    assert (default == "needed") is field.is_required()


def test_the_small_endpoints_have_their_rows() -> None:
    listed = {cells[0].strip("`"): cells[1] for cells in table("### /tokenize and /detokenize", "field")}
    assert {name for name, of in listed.items() if of != "detokenize"} == set(TokenizeBody.model_fields)
    assert {name for name, of in listed.items() if of != "tokenize"} == set(DetokenizeBody.model_fields)


def test_every_setting_has_its_row_with_its_default() -> None:
    listed = {cells[0].strip("`"): named(cells[1]) for cells in table("## Operation", "setting")}
    assert list(listed) == [field.name for field in fields(Settings)]
    for field in fields(Settings):
        if field.default not in (MISSING, None, ()):
            default = field.default if not isinstance(field.default, bool) else str(field.default).lower()
            assert listed[field.name] == [str(default)], field.name


def test_the_file_of_settings_can_be_used(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "server.toml"
    path.write_text(text)
    settings = resolve({}, path, {}, {})
    for name in tomllib.loads(text):
        assert getattr(settings, name) != getattr(Settings("another"), name)


def test_every_metric_has_its_row() -> None:
    metrics = Metrics("toy")
    metrics.watch(
        lambda: Load(running=0, waiting=0, pages_used=0, pages_total=None, pages_cached=0, preemptions=0)
    )
    found = re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.MULTILINE)
    listed = [name for cells in table("## Operation", "metric") for name in named(cells[0])]
    assert sorted(listed) == sorted(name for name in found if not name.endswith("_created"))


def test_every_number_of_speculation_has_its_row() -> None:
    cells = table("## Speculation, request by request", "`metrics.speculative_decoding`")
    assert {name for row in cells for name in named(row[0])} == set(Speculation.__annotations__)


def test_every_endpoint_has_its_row() -> None:
    listed = [name for cells in table("# The server", "endpoint") for name in named(cells[0])]
    app = create_app(None, Settings("toy"), Metrics("toy"))  # type: ignore[arg-type]
    found = [
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    ]
    assert sorted(listed) == sorted(
        [*(name.replace("{name}", "NAME") for name in found), "GET /openapi.json"]
    )


def test_every_status_has_its_row() -> None:
    listed = {int(cells[0]) for cells in table("## What is refused", "status")}
    app = create_app(None, Settings("toy"), Metrics("toy"))  # type: ignore[arg-type]
    found = {
        int(status)
        for methods in app.openapi()["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    assert listed == (found | {405}) - {200, 422}
