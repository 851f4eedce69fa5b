"""What a server says when it starts: what runs, and what its memory holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from surefoot.engine import Engine
from surefoot.loading import LoadedModel, load_model
from surefoot.server.settings import Settings
from surefoot.server.starting import Start, announce, start_of
from tests.tiny import tiny_gguf

START = Start("m", "file", "avx2", 8192, "ngram", 15, 3 * 2**29, 1000)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return load_model(tiny_gguf("llama", Path(path), max_position_embeddings=4000), threads=1)


@pytest.mark.parametrize(
    ("draft", "draft_tokens", "longest"),
    [("ngram", None, 15), ("ngram", 4, 4), ("none", None, 0), ("ngram", 0, 0)],
)
def test_it_tells_what_runs(target: LoadedModel, draft: str, draft_tokens: int | None, longest: int) -> None:
    memory = 1000 * target.model.cache.row_bytes
    settings = Settings("tiny", draft=draft, draft_tokens=draft_tokens, kv_memory=memory)
    with Engine(target, draft, draft_tokens=draft_tokens, kv_memory=memory) as engine:
        start = start_of(settings, target, engine)
        assert start.max_model_len == engine.max_length == start.kv_tokens
    assert (start.model, start.precision, start.kernels) == ("tiny", target.precision, target.kernels)
    assert (start.draft, start.draft_tokens, start.kv_memory) == (draft, longest, memory)
    assert 0 <= 1000 - start.kv_tokens < target.model.cache.page_rows  # whole pages


def test_people_get_a_line_and_the_log_the_fields(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    announce(Settings("m", served_model_name=("m",)), START, "http://a:1")
    printed = capsys.readouterr().err.splitlines()
    assert printed[-2] == (
        "surefoot: m, precision file by avx2; context 8192 tokens; drafts by ngram, 15 tokens at most; "
        "1.5 GiB for keys and values, 1000 tokens"
    )
    assert printed[-1] == "surefoot: serving m on http://a:1"
    [record] = caplog.records
    assert record.msg == "started"
    assert asdict(START).items() <= record.__dict__["fields"].items()
    assert record.__dict__["fields"]["url"] == "http://a:1"


@pytest.mark.parametrize(
    ("count", "said"), [(5, "5 bytes"), (2**20, "1 MiB"), (1234 * 2**20, "1.21 GiB"), (2**42, "4 TiB")]
)
def test_sizes_are_short(count: int, said: str) -> None:
    start = Start("m", "file", "avx2", 8192, "none", 0, count, 1)
    assert str(start).endswith(f"; no drafts; {said} for keys and values, 1 tokens")
