"""Text in and out: tokenizer, chat template, incremental text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.chat import ChatTemplate
from surefoot.models.fields import shown
from surefoot.models.gguf_container import GgufContainer
from surefoot.models.gguf_tokenizer import gguf_parts
from surefoot.models.hf_tokenizer import hf_parts
from surefoot.models.tokenizer_parts import SPACE, TokenizerParts
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.models.config import Checkpoint


_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Tokenizer:
    """Text to ids and back.

    Decoding is defined token by token: each id stands for some bytes, and a text is those bytes joined and
    read as UTF-8, a U+FFFD for what is none. So pieces of a text add up to the text, whatever its tokens.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        """Raises SurefootError when the chat template is not valid."""
        self._backend = backend = parts.backend
        self._prefix, self._suffix = parts.prefix, parts.suffix
        self._template = None
        if parts.template is not None:
            self._template = ChatTemplate(parts.template, parts.bos_text, parts.eos_text, parts.where)
        self._where = parts.where
        self.eos_ids = parts.eos_ids
        self.strip_first_space = parts.strip_first_space
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self._texts: list[str | None] = [None] * self.vocab_size
        self._bytes: list[bytes] = [b""] * self.vocab_size
        spell = _byte_speller() if parts.spelling == "bytes" else _space_speller
        for text, token in vocabulary.items():
            self._texts[token] = text
            self._bytes[token] = text.encode() if token in added else spell(text)

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Ids of `text`; special tokens spelled out in it are read as such. add_special: BOS before it and
        EOS behind it where the model wants them, but no second BOS where `text` begins with one.

        Raises SurefootError for a lone surrogate, which is what Python makes of input that is not UTF-8.
        """
        try:
            text.encode()  # the library would say only that this is no str
        except UnicodeEncodeError as error:
            where = f"position {error.start} holds {text[error.start]!a}, half a character"
            raise SurefootError(f"the text can't be encoded: {where}; is it UTF-8?") from error
        # The call for a single text would keep other threads from running, and look for offsets.
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not add_special:
            return ids
        prefix = () if tuple(ids[: len(self._prefix)]) == self._prefix else self._prefix
        return [*prefix, *ids, *self._suffix]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of some ids; ids outside the vocabulary stand for nothing."""
        detokenizer = Detokenizer(self, skip_special)
        return "".join([*map(detokenizer.add, ids), detokenizer.finish()])

    def token_bytes(self, token: int) -> bytes:
        """What one id stands for; nothing for an id that is padding."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b""

    def token_text(self, token: int) -> str | None:
        """An id as its vocabulary spells it; None for one that is padding."""
        return self._texts[token] if 0 <= token < self.vocab_size else None

    def is_special(self, token: int) -> bool:
        """Whether an id stands for no text: BOS, the end of a turn and the like."""
        return token in self._special

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def knows_tools(self) -> bool:
        """Whether the model has a chat template that can tell it of tools."""
        return self._template is not None and self._template.knows_tools

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text a conversation becomes.

        messages: {"role": …, "content": …} each, and "tool_calls", "tool_call_id" and "name" where there are
        such. tools: {"type": "function", "function": {"name": …, "description": …, "parameters": …}} each.
        Both are as OpenAI's API has them, with arguments as JSON in a string.

        Raises SurefootError when the model has no chat template, or its template refuses them or has no
        place for tools.
        """
        if self._template is None:
            raise SurefootError(f"{self._where}: has no chat template; use --raw, or an instruct model")
        return self._template.render(messages, add_generation_prompt, tools)


class Detokenizer:
    """Text from ids as they come: `add` gives what each id settles, `finish` what is left.

    Half a character is held back until its other half comes; the pieces joined are `Tokenizer.decode` of
    all ids. continues: the ids go on from a text before them, so a space in front is theirs and stays.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.strip_first_space and not continues

    def add(self, token: int) -> str:
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        raw = self._tokenizer.token_bytes(token)
        if self._strip and raw:
            raw = raw.removeprefix(b" ")
            self._strip = False
        return self._decoder.decode(raw)

    def finish(self) -> str:
        """What was held back and can no longer be completed: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


def same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Raises SurefootError naming the first token that two tokenizers have differently.

    Vocabularies padded to different sizes are the same: an id that stands for nothing is no difference.
    """
    for token in range(max(target.vocab_size, draft.vocab_size)):
        if target.token_bytes(token) != draft.token_bytes(token):
            ours, theirs = shown(target.token_text(token)), shown(draft.token_text(token))
            raise SurefootError(
                "the tokenizers of target and draft differ: "
                f"token {token} is {ours} in the target, {theirs} in the draft"
            )


def load_tokenizer(source: Path | Checkpoint) -> Tokenizer:
    """The tokenizer of a GGUF file, of a folder with tokenizer.json, or of an opened checkpoint.

    Raises SurefootError when it is missing, damaged or of an unsupported kind.
    """
    if not isinstance(source, Path):
        metadata = source.metadata()
        folder = metadata.get("folder")
        return Tokenizer(hf_parts(folder) if isinstance(folder, Path) else gguf_parts(metadata))
    return Tokenizer(hf_parts(source) if source.is_dir() else gguf_parts(GgufContainer(source).metadata))


def _byte_speller() -> Callable[[str], bytes]:
    """GPT-2's alphabet: printable Latin-1 letters for themselves, the other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    to_byte = {chr(byte): byte for byte in printable}
    to_byte |= {chr(0x100 + place): byte for place, byte in enumerate(others)}

    def spell(text: str) -> bytes:
        if all(letter in to_byte for letter in text):
            return bytes(to_byte[letter] for letter in text)
        return text.encode()

    return spell


def _space_speller(text: str) -> bytes:
    if _BYTE.fullmatch(text):
        return bytes([int(text[3:5], 16)])
    return text.replace(SPACE, " ").encode()
