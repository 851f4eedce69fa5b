"""Tokenizers rebuilt from GGUF metadata, against the definition of their kind and against transformers."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from surefoot.models.gguf_container import GgufContainer
from surefoot.models.gguf_tokenizer import gguf_eos_ids, gguf_parts
from surefoot.text import Tokenizer, load_tokenizer
from tests.models_fixture import catalogue_path, smollm2_path
from tests.test_text import HARD_TEXTS
from tests.tiny import tiny_tokenizer

Vocabulary = tuple[list[str], list[float], list[int]]

NORMAL, CONTROL, USER, UNUSED, BYTE = 1, 3, 4, 5, 6
TEXT = st.text(alphabet="ab Z9.,'\n\t#é漢🎉\u0301½١ sthe")


def sentencepiece(texts: list[str], scores: list[float], kinds: list[int], text: str) -> list[int]:
    """SentencePiece's BPE as it is defined, slowly: pieces that are special as they stand, between them
    join the leftmost best pair until there is none, letters without a piece by their bytes."""
    ids = {piece: token for token, piece in enumerate(texts)}
    whole = sorted((t for t, kind in zip(texts, kinds, strict=True) if kind in (CONTROL, USER)), key=len)
    result: list[int] = []
    rest, plain = text, ""
    while True:
        special = next((piece for piece in reversed(whole) if rest.startswith(piece)), None)
        if special or not rest:
            symbols = list(plain.replace(" ", "▁"))
            while True:
                pairs = [ids.get(a + b, -1) for a, b in pairwise(symbols)]
                ranks = [scores[pair] if pair >= 0 and kinds[pair] == NORMAL else -np.inf for pair in pairs]
                if not ranks or max(ranks) == -np.inf:
                    break
                best = ranks.index(max(ranks))
                symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]
            for symbol in symbols:
                raw = [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
                result += [ids[symbol]] if symbol in ids else raw
            plain = ""
            if not special:
                return result
            result.append(ids[special])
            rest = rest[len(special) :]
        else:
            plain, rest = plain + rest[0], rest[1:]


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Pieces that can be built letter by letter, in a random order of scores."""
    pieces = {"a", "b", "▁", "é"}
    for _ in range(draw(st.integers(0, 12))):
        left, right = draw(st.sampled_from(sorted(pieces))), draw(st.sampled_from(sorted(pieces)))
        pieces |= {left + right}
    ordered = draw(st.permutations(sorted(pieces)))
    texts = ["<s>", "\n\n", "  ", *(f"<0x{byte:02X}>" for byte in range(256)), *ordered]
    kinds = [CONTROL, USER, USER, *[BYTE] * 256, *[NORMAL] * len(ordered)]
    return texts, [0.0] * 259 + [-float(rank) for rank in range(len(ordered))], kinds


def metadata_of(texts: list[str], scores: list[float], kinds: list[int]) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


@given(vocabulary=vocabularies(), text=st.text(alphabet="ab é\n漢"))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_is_as_defined(vocabulary: Vocabulary, text: str) -> None:
    tokenizer = Tokenizer(gguf_parts(metadata_of(*vocabulary)))
    right = sentencepiece(*vocabulary, text)
    assert tokenizer.encode(text, add_special=False) == right
    assert tokenizer.encode(text, add_special=True) == [0, *right]  # BOS unless the file says otherwise
    assert tokenizer.decode(right) == text


@given(vocabulary=vocabularies(), text=st.text(alphabet="ab é漢", min_size=1))
@settings(deadline=None)
def test_sentencepiece_with_a_space_before_every_text(vocabulary: Vocabulary, text: str) -> None:
    texts, scores, kinds = vocabulary
    kinds = [NORMAL if kind == USER else kind for kind in kinds]
    metadata = metadata_of(texts, scores, kinds)
    del metadata["tokenizer.ggml.add_space_prefix"]  # on by default
    tokenizer = Tokenizer(gguf_parts(metadata))
    ids = tokenizer.encode(text, add_special=False)
    assert ids == sentencepiece(texts, scores, kinds, f" {text}")
    assert tokenizer.decode(ids) == text


def test_flags_decide_what_goes_around_a_text() -> None:
    texts = ["<s>", "</s>", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = metadata_of(texts, [0.0] * 259, [CONTROL, CONTROL, NORMAL, *[BYTE] * 256])
    metadata["tokenizer.ggml.eos_token_id"] = 1
    for bos, eos, right in [(True, True, [0, 2, 1]), (False, True, [2, 1]), (False, False, [2])]:
        flags = {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
        assert Tokenizer(gguf_parts(metadata | flags)).encode("a", add_special=True) == right


def test_end_tokens_are_the_named_ones_and_those_known_by_their_text() -> None:
    texts = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<end>", "x"]
    kinds = [CONTROL, CONTROL, CONTROL, NORMAL, CONTROL, NORMAL]
    metadata = metadata_of(texts, [0.0] * 6, kinds)
    assert gguf_eos_ids(metadata) == (1, 2)
    metadata |= {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 4}
    assert gguf_eos_ids(metadata) == (2, 4, 1)


def byte_metadata(pre: str) -> dict[str, object]:
    """Single bytes and the tiny tokenizer's merges, split the way `pre` names."""
    vocabulary = tiny_tokenizer().get_vocab()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(vocabulary, key=lambda text: vocabulary[text]),
        "tokenizer.ggml.token_type": np.array([CONTROL] * 3 + [NORMAL] * 260, np.int32),
        "tokenizer.ggml.merges": ["h e", "l l", "he ll", "Ġ t"],
    }


def byte_level(pre: str, **more: object) -> Tokenizer:
    return Tokenizer(gguf_parts(byte_metadata(pre) | more))


SPLITS = {
    # how "it's 12345 Wörld!!\n\n  x" is split, a bar between the pieces
    "gpt-2": "it|'s| 12345| Wörld|!!|\n\n | x",
    "smollm": "it|'s| |1|2|3|4|5| Wörld|!!|\n\n | x",
    "qwen2": "it|'s| |1|2|3|4|5| Wörld|!!\n\n| | x",
    "llama-bpe": "it|'s| |123|45| Wörld|!!\n\n| | x",
    "tekken": "it|'s| |1|2|3|4|5| Wörld|!!\n\n| | x",
    "default": "it|'|s| |123|45| Wörld|!!|\n\n | x",
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_as_the_vocabulary_was_trained(pre: str) -> None:
    text = "it's 12345 Wörld!!\n\n  x"
    split: Any = gguf_parts(byte_metadata(pre)).backend.pre_tokenizer
    assert "|".join(text[start:end] for _, (start, end) in split.pre_tokenize_str(text)) == SPLITS[pre]


@pytest.mark.parametrize("pre", SPLITS)
@given(text=st.text())
@settings(deadline=None)
def test_every_split_keeps_the_whole_text(pre: str, text: str) -> None:
    if pre == "qwen2":
        text = unicodedata.normalize("NFC", text)
    tokenizer = byte_level(pre)
    assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == text


def test_qwen_composes_characters_first() -> None:
    tokenizer = byte_level("qwen2")
    assert tokenizer.encode("e\u0301", add_special=False) == tokenizer.encode("é", add_special=False)


def test_a_word_of_the_vocabulary_needs_no_merges() -> None:
    vocabulary = tiny_tokenizer().get_vocab()
    texts = [*sorted(vocabulary, key=lambda text: vocabulary[text]), "word"]
    more = {
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array([CONTROL] * 3 + [NORMAL] * 261, np.int32),
    }
    assert byte_level("llama-bpe", **more).encode("word", add_special=False) == [263]
    assert len(byte_level("gpt-2", **more).encode("word", add_special=False)) == 4


def plain_backend(metadata: dict[str, Any]) -> Backend:
    """SmolLM2's tokenizer put together as its authors did: digits alone, then GPT-2's own splitting."""
    texts, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Backend(BPE({text: token for token, text in enumerate(texts)}, merges))
    digits, by_bytes = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes])
    special = [text for text, kind in zip(texts, kinds, strict=True) if kind == CONTROL]
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    return backend


def test_smollm2_as_its_authors_made_it() -> None:
    tokenizer = load_tokenizer(smollm2_path())
    theirs = plain_backend(dict(GgufContainer(smollm2_path()).metadata))
    assert tokenizer.encode("Hello world", add_special=True) == [19556, 905]
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (49152, (2, 0))

    @given(TEXT)
    @settings(deadline=None)
    def same(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special=False) == text

    same()
    for text in (*HARD_TEXTS, Path(__file__).read_text("utf-8")):
        assert tokenizer.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.models
def test_qwen_as_transformers_makes_it() -> None:
    from transformers import Qwen2Tokenizer

    path = catalogue_path("qwen2.5-coder-0.5b-instruct")
    metadata: dict[str, Any] = dict(GgufContainer(path).metadata)
    texts, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = Qwen2Tokenizer(vocab={text: token for token, text in enumerate(texts)}, merges=merges)
    for text, kind in zip(texts, kinds, strict=True):
        if kind in (CONTROL, USER):
            theirs.add_tokens([AddedToken(text, normalized=False, special=kind == CONTROL)])
    tokenizer = load_tokenizer(path)
    for text in (*HARD_TEXTS, Path(__file__).read_text("utf-8")):
        assert tokenizer.encode(text, add_special=True) == theirs.encode(text)
    assert tokenizer.eos_ids == (151645, 151643)


@pytest.mark.models
def test_gemma_as_sentencepiece_defines_it() -> None:
    path = catalogue_path("gemma-3-270m")
    metadata: dict[str, Any] = dict(GgufContainer(path).metadata)
    texts, scores, kinds = (
        list(metadata[f"tokenizer.ggml.{key}"]) for key in ("tokens", "scores", "token_type")
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("Hello world", add_special=True) == [2, 9259, 1902]
    for text in (*HARD_TEXTS, *Path(__file__).read_text("utf-8").splitlines()[:40]):
        ids = tokenizer.encode(text, add_special=False)
        assert ids == sentencepiece(texts, scores, kinds, text)
        assert tokenizer.decode(ids, skip_special=False) == text.replace("▁", " ")
