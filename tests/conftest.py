"""What the tests share: drawn seeds that repeat, and the table of mutants caught, printed at the end."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from surefoot.models.catalog import home

settings.register_profile("untimed", deadline=None)  # no test depends on how busy the machine is
settings.load_profile("untimed")

Caught = Callable[[str, str, str], None]
"""`caught(mutant, seen by, how far off)`: called by a test once its check has failed the mutant."""

CAUGHT = "caught"


@pytest.fixture
def caught(request: pytest.FixtureRequest) -> Caught:
    """Keeps a row of the table with the test's report, which comes back from whichever process ran it."""
    return lambda *row: request.node.user_properties.append((CAUGHT, row))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed")
    table = sorted(row for report in reports for name, row in report.user_properties if name == CAUGHT)
    if not table:
        return
    terminalreporter.section(f"{len(table)} mutants caught")
    names, seers = (max(len(row[column]) for row in table) for column in (0, 1))
    for mutant, seen_by, off in table:
        terminalreporter.line(f"{mutant:{names}}  {seen_by:{seers}}  {off}")


@pytest.fixture(scope="module", autouse=True)
def seeds() -> Iterator[None]:
    """The seeds that requests draw for themselves are the same in every run of a file, whichever ran before
    it: a failure can be repeated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", random.Random(0).getrandbits)
        yield


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home with nothing in it but the kernels that the user's has: compiling them takes many seconds."""
    kernels, own = home() / "native", tmp_path / "home"
    kernels.mkdir(parents=True, exist_ok=True)
    own.mkdir()
    (own / "native").symlink_to(kernels)
    monkeypatch.setenv("SUREFOOT_HOME", str(own))
