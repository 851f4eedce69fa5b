"""The tokenizer of a folder in the layout of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from surefoot.models.fields import Fields, one_line, read_json, read_optional_json
from surefoot.models.tokenizer_parts import Spelling, TokenizerParts
from surefoot.types import SurefootError

Ids = tuple[int, ...]


def hf_parts(folder: Path) -> TokenizerParts:
    """The tokenizer in `folder`/tokenizer.json and tokenizer_config.json.

    Raises SurefootError when it is missing, damaged or of an unsupported kind.
    """
    path = folder / "tokenizer.json"
    layout = Fields(path, read_json(path))
    settings = Fields(folder / "tokenizer_config.json", read_optional_json(folder / "tokenizer_config.json"))
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise SurefootError(f"{path}: not a tokenizer: {one_line(error)}") from error
    backend.no_truncation()  # some files carry the settings of a training run
    backend.no_padding()
    spelling, strip_first_space = _decoding(layout)
    bos, eos = token_text(settings.get("bos_token")), token_text(settings.get("eos_token"))
    prefix, suffix = _surroundings(backend)
    return TokenizerParts(
        backend,
        spelling,
        strip_first_space=strip_first_space,
        prefix=_override(backend, prefix, settings.get("add_bos_token"), bos),
        suffix=_override(backend, suffix, settings.get("add_eos_token"), eos),
        eos_ids=hf_eos_ids(folder),
        template=_template(folder, settings),
        bos_text=bos,
        eos_text=eos,
        where=str(folder),
    )


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[Ids, Ids]:
    """Ids that a tokenizer.json puts before and behind every text."""
    plain = tuple(backend.encode("a", add_special_tokens=False).ids)
    whole = tuple(backend.encode("a", add_special_tokens=True).ids)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return (), ()


def _override(backend: tokenizers.Tokenizer, ids: Ids, wanted: object, text: str) -> Ids:
    token = backend.token_to_id(text) if text else None
    if not isinstance(wanted, bool) or token is None:
        return ids
    return (token,) if wanted else ()


def _template(folder: Path, settings: Fields) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SurefootError(f"{path}: cannot be read: {one_line(error)}") from error
    source = settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _decoding(layout: Fields) -> tuple[Spelling, bool]:
    """How a tokenizer.json spells text, and whether decoding takes a space off the front."""
    decoder = layout.mapping("decoder")
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    named = steps if isinstance(steps, list) else []
    kinds = {str(step.get("type")) for step in named if isinstance(step, dict)}
    if kinds == {"ByteLevel"}:
        return "bytes", False
    if {"Replace", "ByteFallback"} <= kinds <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return "spaces", "Strip" in kinds
    raise layout.fail("decoder", "which is not supported; byte-level and SentencePiece BPE are")


def hf_eos_ids(folder: Path) -> tuple[int, ...]:
    """Ids after which a text or a turn is over: those of generation_config.json first, then what the other
    configurations name."""
    config = read_optional_json(folder / "config.json")
    tokenizer = Fields(folder, read_optional_json(folder / "tokenizer_config.json"))
    text_config = Fields(folder, config).mapping("text_config")
    named: list[object] = []
    for source in (read_optional_json(folder / "generation_config.json"), config, text_config):
        value = source.get("eos_token_id")
        named += value if isinstance(value, list) else [value]
    for token, entry in tokenizer.mapping("added_tokens_decoder").items():
        if isinstance(entry, dict) and token.isdecimal():
            named += [int(token)] if entry.get("content") == token_text(tokenizer.get("eos_token")) else []
    return tuple(dict.fromkeys(token for token in named if isinstance(token, int)))


def token_text(entry: object) -> str:
    """The text of a token as tokenizer_config.json names it: a string, or an object with its content."""
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) else ""
