"""Tokenizers of folders: tokenizer.json with what tokenizer_config.json says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from surefoot.models.tokenizer_parts import SPACE
from surefoot.text import load_tokenizer
from surefoot.types import SurefootError
from tests.test_text import HARD_TEXTS
from tests.tiny import ENDOFTEXT, IM_END, tiny_tokenizer

BOS, EOS = "<|endoftext|>", "<|im_end|>"


def llama2(scheme: str) -> tokenizers.Tokenizer:
    """Llama 2's arrangement: spaces put in by normalizers (legacy), or by Metaspace, which adds none to a
    text that begins with one."""
    words = ["a", "b", "c", SPACE, f"{SPACE}a", "bc"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    ids = {text: token for token, text in enumerate(texts)}
    merges = [(SPACE, "a"), ("b", "c")]
    backend = tokenizers.Tokenizer(BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in texts[:3]])
    if scheme == "legacy":
        prepend, replace = normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)
        backend.normalizer = normalizers.Sequence([prepend, replace])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=False)
    strip = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *strip])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def saved(folder: Path, backend: tokenizers.Tokenizer, **settings: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("scheme", ["legacy", "always", "first", "never"])
@pytest.mark.parametrize("text", ["abc", "a abc  b", " a", "bc\nc", "c 漢🎉"])
def test_sentencepiece_folders_work_as_in_the_library(scheme: str, text: str, tmp_path: Path) -> None:
    backend = llama2(scheme)
    tokenizer = load_tokenizer(saved(tmp_path, backend))
    ids = tokenizer.encode(text, add_special=True)
    assert ids == backend.encode(text).ids
    assert ids[0] == 1
    assert tokenizer.decode(ids) == backend.decode(ids)
    if scheme in ("legacy", "never") or text != " a":
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_byte_level_folders_work_as_in_transformers(text: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    backend = tiny_tokenizer()
    template = f"{BOS} $A {EOS}"
    ends = [(BOS, ENDOFTEXT), (EOS, IM_END)]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    tokenizer = load_tokenizer(saved(tmp_path, backend))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special=True)
    assert ids == theirs.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == theirs.decode(ids)


@pytest.mark.parametrize(
    ("settings", "begins", "ends"),
    [
        ({}, False, False),
        ({"add_bos_token": True, "bos_token": BOS}, True, False),
        ({"add_bos_token": True, "bos_token": {"content": BOS}}, True, False),
        ({"add_bos_token": True, "bos_token": None}, False, False),
        ({"add_bos_token": True, "bos_token": "<unheard of>"}, False, False),
        ({"add_bos_token": False, "bos_token": BOS}, False, False),
        ({"add_eos_token": True, "eos_token": EOS}, False, True),
    ],
)
def test_flags_decide_what_goes_around_a_text(
    settings: dict[str, Any], begins: bool, ends: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(saved(tmp_path, tiny_tokenizer(), **settings))
    plain = tokenizer.encode("hello", add_special=False)
    expected = [ENDOFTEXT] * begins + plain + [IM_END] * ends
    assert tokenizer.encode("hello", add_special=True) == expected


def test_a_flag_can_take_bos_away(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(saved(tmp_path, llama2("legacy"), add_bos_token=False, bos_token="<s>"))
    assert tokenizer.encode("a", add_special=True) == tokenizer.encode("a", add_special=False)


def test_nothing_is_cut_off_or_filled_up(tmp_path: Path) -> None:
    backend = tiny_tokenizer()
    backend.enable_truncation(5)
    backend.enable_padding(length=64)
    tokenizer = load_tokenizer(saved(tmp_path, backend))
    assert len(tokenizer.encode("x" * 10, add_special=False)) == 10


def test_another_kind_of_tokenizer_is_refused(tmp_path: Path) -> None:
    backend = tiny_tokenizer()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(SurefootError, match=r"decoder is .*WordPiece.* which is not supported"):
        load_tokenizer(saved(tmp_path, backend))
