"""The scripts, on a machine whose Python is a stand-in that writes down what it is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTEST = "-m pytest -n 2 --dist loadfile --no-loadscope-reorder"

INTERPRETER = """#!/bin/bash
echo "$*" >>"$(dirname "$0")/../../calls"
case "$*" in
*"pip install"*) [ ! -e "$(dirname "$0")/../../no-network" ] ;;
*"is_available"*) exit 1 ;;
esac
"""

SYSTEM_PYTHON = """#!/bin/bash
case "$*" in
*"-m venv"*)
    rm -rf .venv && mkdir -p .venv/bin && cp "$(dirname "$0")/interpreter" .venv/bin/python
    for tool in ruff mypy; do ln -s python ".venv/bin/$tool"; done
    echo "$*" >>calls
    ;;
esac
"""


class Machine:
    """A fresh clone, and a PATH that holds bash's needs and, when asked, a Python."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "a clone"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.clone.mkdir()
        for name in ("scripts", ".ci"):
            shutil.copytree(ROOT / name, self.clone / name)
        shutil.copy(ROOT / "pyproject.toml", self.clone)
        for tool in ("bash", "env", "cat", "cmp", "dirname", "rm", "mkdir", "cp", "ln", "pwd"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def install(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install_python(self) -> None:
        self.install("interpreter", INTERPRETER)
        self.install("python3.11", SYSTEM_PYTHON)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a script from elsewhere, as `env -i` would but for PATH."""
        return subprocess.run(
            [str(self.clone / command[0]), *command[1:]],
            env={"PATH": str(self.bin)},
            cwd=self.bin,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """What the interpreters were asked since the last look."""
        log = self.clone / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def installs(calls: list[str]) -> list[str]:
    return [call.split()[-1] for call in calls if "pip install" in call]


def test_a_machine_without_python_gets_one_line(machine: Machine) -> None:
    result = machine.run("scripts/demo")
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "no Python 3.11 or newer" in result.stderr


def test_a_python_that_is_too_old_is_passed_over(machine: Machine) -> None:
    machine.install("python3.11", "#!/bin/bash\nexit 1\n")
    assert machine.run("scripts/demo").returncode == 1
    machine.install("interpreter", INTERPRETER)
    machine.install("python3", SYSTEM_PYTHON)
    assert machine.run("scripts/demo").returncode == 0


def test_the_demo_installs_once_and_without_the_tools_of_development(machine: Machine) -> None:
    machine.install_python()
    first = machine.run("scripts/demo", "--seed", "1")
    assert first.returncode == 0, first.stderr
    calls = machine.calls()
    assert installs(calls) == ["."]
    assert calls[-1] == "-m surefoot.demo --seed 1"
    machine.run("scripts/demo")
    assert machine.calls() == ["-m surefoot.demo"]


def test_an_install_for_development_serves_the_demo_too(machine: Machine) -> None:
    machine.install_python()
    machine.run("scripts/test")
    assert installs(machine.calls()) == [".[dev]"]
    machine.run("scripts/demo")
    assert machine.calls() == ["-m surefoot.demo"]


def test_an_install_that_broke_off_is_taken_up_again(machine: Machine) -> None:
    machine.install_python()
    (machine.clone / "no-network").touch()
    assert machine.run("scripts/demo").returncode != 0
    assert "-m surefoot.demo" not in machine.calls()
    (machine.clone / "no-network").unlink()
    assert machine.run("scripts/demo").returncode == 0
    assert installs(machine.calls()) == ["."]


def test_an_environment_that_was_never_finished_is_made_anew(machine: Machine) -> None:
    machine.install_python()
    (machine.clone / ".venv" / "bin").mkdir(parents=True)
    (machine.clone / ".venv" / "bin" / "python").symlink_to("nowhere")
    assert machine.run("scripts/demo").returncode == 0
    assert machine.calls()[0] == "-m venv --clear .venv"


@pytest.mark.parametrize("change", ["pyproject", "folder"])
def test_an_install_for_something_else_is_not_taken_for_this_one(machine: Machine, change: str) -> None:
    machine.install_python()
    machine.run("scripts/demo")
    machine.calls()
    if change == "pyproject":
        with (machine.clone / "pyproject.toml").open("a") as file:
            file.write("# another dependency\n")
    else:
        machine.clone = machine.clone.rename(machine.clone.with_name("moved"))
    machine.run("scripts/demo")
    assert installs(machine.calls()) == ["."]


@pytest.mark.parametrize("script", ["scripts/test", ".ci/run"])
def test_every_check_runs(machine: Machine, script: str) -> None:
    machine.install_python()
    result = machine.run(script)
    assert result.returncode == 0, result.stderr
    calls = machine.calls()[-4:]
    assert calls == [
        "check",
        "format --check",
        "--strict",
        f"{PYTEST} -m not models and not soak and not gpu",
    ]


def test_the_tests_of_larger_models_are_asked_for_and_the_rest_goes_to_pytest(machine: Machine) -> None:
    machine.install_python()
    machine.run("scripts/test", "--models", "-k", "a4")
    assert machine.calls()[-1] == f"{PYTEST} -m not gpu -k a4"


def test_a_check_that_fails_fails_the_script(machine: Machine) -> None:
    machine.install_python()
    machine.run("scripts/test")
    mypy = machine.clone / ".venv" / "bin" / "mypy"
    mypy.unlink()
    mypy.write_text("#!/bin/bash\nexit 3\n")
    mypy.chmod(0o755)
    assert machine.run("scripts/test").returncode == 3


def test_the_scripts_can_be_run() -> None:
    for name in ("scripts/demo", "scripts/test", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
