"""What a model file says of its tokenizer, whichever format said it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tokenizers

SPACE = "▁"  # how SentencePiece vocabularies spell a space

Spelling = Literal["bytes", "spaces"]
"""How a vocabulary spells text: a letter per byte (GPT-2's), or plainly, with ▁ for a space and <0x0A> for
a byte (SentencePiece's)."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """backend: splits text into ids, adding nothing. strip_first_space: it puts a space before every text,
    which decoding takes away again. prefix, suffix: ids that go around a text (BOS, EOS). template: Jinja.
    bos_text, eos_text: as the template writes them, empty when there are none. where: the file, for messages.
    """

    backend: tokenizers.Tokenizer
    spelling: Spelling
    strip_first_space: bool = False
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()
    template: str | None = None
    bos_text: str = ""
    eos_text: str = ""
    where: str = "the model"
