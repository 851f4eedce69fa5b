"""Settings: where they come from, who wins, and what is said of those that can't be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from surefoot.cli import parser
from surefoot.commands.serve import given_settings
from surefoot.server.machine import free_memory, kv_memory
from surefoot.server.settings import Settings, resolve, size
from surefoot.types import SurefootError

DEFAULTS = {"model": "some-model"}


def resolved(
    flags: dict[str, Any] | None = None, file: Path | None = None, key: str | None = None
) -> Settings:
    """key: in the environment."""
    return resolve(flags or {}, file, DEFAULTS, {} if key is None else {"SUREFOOT_API_KEY": key})


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "serve.toml"
        path.write_text(text)
        return path

    return write


def test_nothing_given_is_the_defaults() -> None:
    assert resolved() == Settings(model="some-model")


def test_flags_win_over_the_file_and_the_file_over_defaults(toml: Any) -> None:
    path = toml('model = "filed"\nmax_requests = 3\nmax_queue = 4\nserved_model_name = ["a", "b"]\ngrace = 2')
    found = resolved({"max_requests": 5}, path)
    assert (found.model, found.max_requests, found.max_queue) == ("filed", 5, 4)
    assert (found.served_model_name, found.grace) == (("a", "b"), 2.0)
    assert resolved(file=toml('served_model_name = "one"')).served_model_name == ("one",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_request = 3", "max_request is no setting; see surefoot serve --help"),
        ("max-requests = 3", "max-requests is no setting; write max_requests"),
        ("max_requests = '3'", "max_requests: '3' is not a whole number; allowed is 1 or more"),
        ("max_requests = true", "max_requests: True is not a whole number; allowed is 1 or more"),
        ("max_requests = 0", "max_requests: 0 is out of range; allowed is 1 or more"),
        ("port = 65536", "port: 65536 is out of range; allowed is [0, 65535]"),
        ("timeout = 0", "timeout: 0 is out of range; allowed is (0, 1000000000.0] seconds"),
        ("timeout = nan", "timeout: nan is out of range; allowed is (0, 1000000000.0] seconds"),
        ("grace = -1", "grace: -1 is out of range; allowed is [0, 1000000000.0] seconds"),
        ("host = 1", "host: 1 is not a text"),
        ("host = ''", "host: it is empty; at least 1 character is needed"),
        ("prefix_cache = 1", "prefix_cache: 1 is neither true nor false"),
        ("served_model_name = [1]", "served_model_name: 1 is not a text"),
        ("served_model_name = 1", "served_model_name: 1 is not a list of texts"),
        ("verify = 'none'", "verify: 'none' is unknown; choose one of coupled, rejection, block"),
        ("log_level = 'loud'", "log_level: 'loud' is unknown; choose one of debug, info, warning, error"),
        ("kv_memory = '4 apples'", "kv_memory: '4 apples' is not a size such as 4GiB, 500MB or 1073741824"),
        ("kv_memory = '0GiB'", "kv_memory: 0 is out of range; allowed is 1 or more"),
        ("api_key = 'a b'", "api_key: it is not 1 or more visible ASCII characters without spaces"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_key(toml: Any, line: str, message: str) -> None:
    path = toml(line)
    with pytest.raises(SurefootError) as caught:
        resolved(file=path)
    assert str(caught.value) == f"config: {path}: {message}"


def test_what_is_no_file_or_no_toml_is_said_in_one_line(toml: Any, tmp_path: Path) -> None:
    with pytest.raises(SurefootError, match="none can't be read: No such file"):
        resolved(file=tmp_path / "none")
    for text in ("model", "a = 1\na = 2"):
        with pytest.raises(SurefootError, match="is not TOML: ") as caught:
            resolved(file=toml(text))
        assert "\n" not in str(caught.value)
    toml("").write_bytes(b"\xff")
    with pytest.raises(SurefootError, match="is not TOML: "):
        resolved(file=tmp_path / "serve.toml")


def test_the_key_comes_from_a_flag_a_file_or_the_environment(toml: Any, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("from-file\n")
    assert resolved().api_key is None
    assert resolved(key="from-environment").api_key == "from-environment"
    assert resolved({"api_key": "flag"}, key="from-environment").api_key == "flag"
    assert resolved({"api_key_file": str(secret)}, key="from-environment").api_key == "from-file"
    filed = toml(f"api_key_file = '{secret}'")
    assert resolved(file=filed).api_key == "from-file"
    assert resolved({"api_key": "flag"}, filed).api_key == "flag"
    with pytest.raises(SurefootError, match=r"api_key_file: .* was given beside api_key; give one of them"):
        resolved({"api_key": "a", "api_key_file": str(secret)})
    with pytest.raises(SurefootError, match=r"api_key_file: .*none can't be read: No such file"):
        resolved({"api_key_file": str(tmp_path / "none")})
    for text in ("", "\nkey", "two words"):
        secret.write_text(text)
        with pytest.raises(SurefootError, match="api_key: it is not 1 or more visible"):
            resolved({"api_key_file": str(secret)})
    with pytest.raises(SurefootError, match="api_key: it is not 1 or more visible"):
        resolved(key="")  # an empty one must not open the door


def test_the_key_is_never_shown() -> None:
    settings = resolved({"api_key": "hush-hush"})
    assert "hush-hush" not in repr(settings)
    assert "hush-hush" not in "\n".join(settings.lines())
    assert 'api_key = "(given)"' in settings.lines()
    with pytest.raises(SurefootError) as caught:
        resolved({"api_key": "hush hush"})
    assert "hush" not in str(caught.value)


def test_what_is_printed_is_what_a_file_says() -> None:
    settings = resolved({"served_model_name": ("a", 'b"\\'), "kv_memory": 5, "trace": "t", "timeout": 0.5})
    read = tomllib.loads("\n".join(settings.lines()))
    assert Settings(**read) == settings
    assert "# api_key = none" in settings.lines()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4GiB", 2**32),
        ("4 gib", 2**32),
        ("1.5KiB", 1536),
        ("2kB", 2000),
        ("7", 7),
        ("7B", 7),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "4 GiB more", "4XB", "1.GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        size(text)


def test_every_setting_has_a_flag(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    line = (
        "serve --model m --served-model-name a --served-model-name b --draft none --draft-tokens 3 "
        "--share-drafts "
        "--verify block --precision fp32 --threads 2 --kv-memory 1GiB --max-requests 5 --max-queue 6 "
        "--max-rows 70 --prompt-rows 8 --no-prefix-cache --max-prompt-tokens 9 --max-body-bytes 1KiB "
        "--body-timeout 7 --cors-origin http://a --cors-origin http://b "
        f"--timeout 1.5 --grace 2 --host ::1 --port 1 --api-key-file {key} --log-level debug --log-prompts "
        "--trace t"
    )
    assert given_settings(parser().parse_args(line.split()), {}) == Settings(
        model="m",
        served_model_name=("a", "b"),
        draft="none",
        draft_tokens=3,
        share_drafts=True,
        verify="block",
        precision="fp32",
        threads=2,
        kv_memory=2**30,
        max_requests=5,
        max_queue=6,
        max_rows=70,
        prompt_rows=8,
        prefix_cache=False,
        max_prompt_tokens=9,
        max_body_bytes=1024,
        body_timeout=7.0,
        timeout=1.5,
        grace=2.0,
        host="::1",
        port=1,
        cors_origin=("http://a", "http://b"),
        api_key="secret",
        log_level="debug",
        log_prompts=True,
        trace="t",
    )
    assert given_settings(parser().parse_args(["serve"]), {}).model == "smollm2-135m-instruct"


@pytest.mark.parametrize(
    "line", ["serve some/model", "serve some/model --port 1", "serve --port 1 some/model"]
)
def test_the_model_may_stand_alone(line: str, toml: Any) -> None:
    assert given_settings(parser().parse_args(line.split()), {}).model == "some/model"
    filed = ["--config", str(toml('model = "another"'))]
    assert given_settings(parser().parse_args([*line.split(), *filed]), {}).model == "some/model"


def test_but_not_beside_its_flag() -> None:
    with pytest.raises(SurefootError, match=r"^model: a was given beside --model; give one of them$"):
        given_settings(parser().parse_args(["serve", "a", "--model", "b"]), {})


def test_free_memory_is_what_the_kernel_and_the_control_group_leave(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    assert free_memory(meminfo, tmp_path) == 500 * 1024
    for name, text in (("max", "100000"), ("current", "90000"), ("stat", "anon 1\ninactive_file 5000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(meminfo, tmp_path) == 15_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(meminfo, tmp_path) == 500 * 1024
    assert free_memory(tmp_path / "none", tmp_path) > 0


def test_keys_and_values_get_half_of_what_is_free_but_no_more_than_needed() -> None:
    assert kv_memory(free=1000, needed=9999) == 500
    assert kv_memory(free=1000, needed=300) == 300
    assert kv_memory(free=0, needed=300) == 1
