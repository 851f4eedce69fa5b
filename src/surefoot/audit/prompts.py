"""What an audit asks: a few prompts of our own, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.prompts import prepare
from surefoot.types import SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.text import Tokenizer

PROMPTS = (
    "Rename the variable n to count and return the whole function:\n"
    "def mean(xs):\n    n = len(xs)\n    if n == 0:\n        return 0.0\n    return sum(xs) / n\n",
    "Write a Python function that merges two sorted lists into one.",
    "Tell a short story about a lighthouse keeper who finds a letter.",
    "List ten vegetables, one on each line, with the color of each.",
    "Translate into French: The train to the coast leaves at nine, and the last one back at ten in the "
    "evening.",
    "Repeat these lines three times:\nred fox, blue door\nblue door, green hill\ngreen hill, red fox",
    'Give this record as JSON with the keys "name", "born" and "works": Ada Lovelace, 1815, notes on the '
    "Analytical Engine.",
    "A shop sells pens at 3 for 2 euros. How much are 18 pens? Show each step.",
    "Erkläre in drei Sätzen, warum der Himmel blau ist.",
    "Summarize in one sentence: The river rose for two days. On the third morning the lower road was under "
    "water, the school stayed closed, and the bakery sold bread from a boat. By evening the rain had "
    "stopped, and the river began to fall.",
    "Add type hints to this function:\ndef clamp(x, low, high):\n    return max(low, min(high, x))\n",
    "What are the arguments for and against working at night?",
)
"""Text to copy, text to invent, and much in between: drafts are good at some and bad at others."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a file.

    `.txt`: one a line. `.jsonl`: a JSON object a line, its prompt under "prompt", or the first of "turns"; or
    a bare JSON string. Empty lines are none. Raises SurefootError naming the file, and the line that is no
    prompt.
    """
    if path.suffix not in (".txt", ".jsonl"):
        raise SurefootError(f"prompts: {path} is neither a .txt nor a .jsonl file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold other line ends
    except OSError as error:
        raise SurefootError(f"prompts: {path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SurefootError(f"prompts: {path} is not UTF-8 at byte {error.start}") from error
    numbered = [(number, line.rstrip("\r")) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise SurefootError(f"prompts: {path} has none; an audit needs at least 1")
    if path.suffix == ".txt":
        return tuple(line for _, line in numbered)
    return tuple(_parsed(line, f"prompts: line {number} of {path}") for number, line in numbered)


def encode(prompts: Sequence[str], tokenizer: Tokenizer, *, chat: bool) -> tuple[tuple[int, ...], ...]:
    """The prompts as token ids. chat: each is a message, put into the model's chat template where it has
    one."""
    templated = chat and tokenizer.has_chat_template
    return tuple(prepare(prompt, SamplingParams(), tokenizer, chat=templated).ids for prompt in prompts)


def _parsed(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SurefootError(f"{where} is not JSON: {error}") from error
    if isinstance(value, dict):
        turns = value.get("turns")
        value = value.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(value, str) or not value.strip():
        raise SurefootError(f'{where} has no prompt: text under "prompt", or first in "turns"')
    return value
