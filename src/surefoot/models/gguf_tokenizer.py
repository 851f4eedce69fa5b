"""The tokenizer inside a GGUF file, rebuilt for the tokenizers library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from surefoot.models.fields import shown
from surefoot.models.tokenizer_parts import SPACE, TokenizerParts
from surefoot.types import SurefootError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

# How each kind of byte-level vocabulary was trained to split text. Several patterns split one after the
# other, each within the pieces of the one before.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS % "{1,3}", _WORDS % ""
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>^~|`]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "llama-bpe": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "tekken": (_TEKKEN,),
}
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama-v3", "llama3", "tekken")  # a word in the vocabulary needs no merges
_NORMALIZED = ("qwen2", "deepseek-r1-qwen")  # trained on composed characters (NFC)

# Control tokens that end a turn or a document, whatever the file names as its one end token.
_END_TEXTS = frozenset(("</s>", "<eos>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>"))
_END_TEXTS |= {"<|eot_id|>", "<|eom_id|>", "<end_of_turn>"}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """What a GGUF file says of its tokenizer. texts: per id. kinds: per id, GGUF's token types.
    where: the file, for messages."""

    where: str
    texts: Sequence[str]
    kinds: Sequence[int]
    metadata: Mapping[str, object]


def gguf_vocabulary(metadata: Mapping[str, object]) -> GgufVocabulary:
    """Raises SurefootError when the file has no tokenizer, or lists that don't fit each other."""
    where, texts = str(metadata.get("file", "GGUF")), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SurefootError(f"{where}: has no tokenizer (tokenizer.ggml.tokens)")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return GgufVocabulary(where, texts, [_NORMAL] * len(texts), metadata)
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(texts):
        raise SurefootError(f"{where}: tokenizer.ggml.token_type doesn't fit its {len(texts)} tokens")
    return GgufVocabulary(where, texts, kinds.tolist(), metadata)


def gguf_eos_ids(metadata: Mapping[str, object]) -> tuple[int, ...]:
    """Ids after which a text or a turn is over, the file's own first."""
    named = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    ids = [token for token in named if isinstance(token, int)]
    if "tokenizer.ggml.tokens" in metadata:
        vocabulary = gguf_vocabulary(metadata)
        pairs = zip(vocabulary.texts, vocabulary.kinds, strict=True)
        ids += [i for i, (text, kind) in enumerate(pairs) if kind == _CONTROL and text in _END_TEXTS]
    return tuple(dict.fromkeys(ids))


def gguf_parts(metadata: Mapping[str, object]) -> TokenizerParts:
    """The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

    Raises SurefootError for another kind of tokenizer, for lists that don't fit each other, and for an
    unknown way of splitting text, which would give other tokens silently.
    """
    vocabulary = gguf_vocabulary(metadata)
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in ("gpt2", "llama"):
        raise SurefootError(
            f"{vocabulary.where}: tokenizer.ggml.model {shown(kind)} is not supported; gpt2 and llama are"
        )
    byte_level = kind == "gpt2"
    bos, eos = _special(vocabulary, "bos"), _special(vocabulary, "eos")
    template = metadata.get("tokenizer.chat_template")
    return TokenizerParts(
        _byte_level(vocabulary) if byte_level else _sentencepiece(vocabulary),
        "bytes" if byte_level else "spaces",
        strip_first_space=not byte_level and _flag(vocabulary, "add_space_prefix", True),
        prefix=bos if _flag(vocabulary, "add_bos_token", not byte_level) else (),
        suffix=eos if _flag(vocabulary, "add_eos_token", False) else (),
        eos_ids=gguf_eos_ids(metadata),
        template=template if isinstance(template, str) else None,
        bos_text="".join(vocabulary.texts[token] for token in bos),
        eos_text="".join(vocabulary.texts[token] for token in eos),
        where=vocabulary.where,
    )


def _special(vocabulary: GgufVocabulary, kind: str) -> tuple[int, ...]:
    """The id of a special token, if there is one."""
    token = vocabulary.metadata.get(f"tokenizer.ggml.{kind}_token_id")
    if token is None:
        return ()
    if not isinstance(token, int) or not 0 <= token < len(vocabulary.texts):
        size = len(vocabulary.texts)
        raise SurefootError(
            f"{vocabulary.where}: tokenizer.ggml.{kind}_token_id is {shown(token)}, outside its {size} tokens"
        )
    return (token,)


def _flag(vocabulary: GgufVocabulary, key: str, default: bool) -> bool:
    value = vocabulary.metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise SurefootError(f"{vocabulary.where}: tokenizer.ggml.{key} is {shown(value)}, not true or false")
    return value


def _byte_level(vocabulary: GgufVocabulary) -> Tokenizer:
    pre = vocabulary.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise SurefootError(
            f"{vocabulary.where}: tokenizer.ggml.pre {shown(pre)} is not supported; {known} are"
        )
    merges = vocabulary.metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise SurefootError(f"{vocabulary.where}: tokenizer.ggml.merges is missing")
    ids = _ids(vocabulary, vocabulary.texts)
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = str(merge).partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise SurefootError(f"{vocabulary.where}: merge {shown(merge)} joins or makes what is no token")
        pairs.append((left, right))
    tokenizer = Tokenizer(BPE(ids, pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in _NORMALIZED:
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    _add_specials(tokenizer, vocabulary.texts, vocabulary.kinds)
    return tokenizer


def _sentencepiece(vocabulary: GgufVocabulary) -> Tokenizer:
    scores = vocabulary.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.texts):
        raise SurefootError(f"{vocabulary.where}: tokenizer.ggml.scores is missing or doesn't fit its tokens")
    # A user-defined piece is looked for in the text itself, where a space is a space.
    texts = [
        text.replace(SPACE, " ") if kind == _USER_DEFINED else text
        for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
    ]
    ids = _ids(vocabulary, texts)
    unknown = _special(vocabulary, "unknown")
    tokenizer = Tokenizer(
        BPE(
            ids,
            _merges(texts, vocabulary.kinds, scores.tolist()),
            unk_token=texts[unknown[0]] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = [normalizers.Replace(" ", SPACE)]
    prefix = _flag(vocabulary, "add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), *spaces] if prefix else spaces)
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    _add_specials(tokenizer, texts, vocabulary.kinds)
    return tokenizer


def _ids(vocabulary: GgufVocabulary, texts: Sequence[str]) -> dict[str, int]:
    """Id by text, of all but the ids that only pad the vocabulary."""
    used = [token for token, kind in enumerate(vocabulary.kinds) if kind != _UNUSED]
    ids = {texts[token]: token for token in used}
    if len(ids) != len(used):
        twice = next(texts[token] for token in used if ids[texts[token]] != token)
        raise SurefootError(f"{vocabulary.where}: token {shown(twice)} occurs twice")
    return ids


def _merges(texts: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two, best score first.

    SentencePiece joins the neighbours that make the piece with the best score, which are so many merge
    rules of that rank (Kudo and Richardson, SentencePiece, section 3.1).
    """
    normal = [token for token, kind in enumerate(kinds) if kind == _NORMAL and len(texts[token]) > 1]
    pieces = {text for text, kind in zip(texts, kinds, strict=True) if kind == _NORMAL}
    normal.sort(key=lambda token: -scores[token])
    merges: list[tuple[str, str]] = []
    for token in normal:
        text = texts[token]
        for cut in range(1, len(text)):
            if text[:cut] in pieces and text[cut:] in pieces:
                merges.append((text[:cut], text[cut:]))
    return merges


def _add_specials(tokenizer: Tokenizer, texts: Sequence[str], kinds: Sequence[int]) -> None:
    for special in (True, False):
        wanted = (_CONTROL, _UNKNOWN) if special else (_USER_DEFINED,)
        chosen = [text for text, kind in zip(texts, kinds, strict=True) if kind in wanted and text]
        entries = [AddedToken(text, normalized=False, special=special) for text in chosen]
        if special:
            tokenizer.add_special_tokens(entries)
        else:
            tokenizer.add_tokens(entries)
