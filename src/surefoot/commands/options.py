"""Flags and what they become: sampling parameters, engine settings, a prompt."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.types import VERIFY_MODES, Constraint, SamplingParams, SurefootError

DEFAULT_MODEL = "smollm2-135m-instruct"
PRECISIONS = ("auto", "file", "int8", "bf16", "fp32")


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line, like every other error of the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        raise SurefootError(f"{message} (see {self.prog} --help)")


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def bias(text: str) -> tuple[int, float]:
    token, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form ID=BIAS, such as 198=-2.5")
    return whole(token), number(value)


def schema(path: str) -> Constraint:
    try:
        return Constraint("json_schema", Path(path).read_bytes().decode())
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{path!r}: byte {error.start} is not UTF-8") from None


def regex(text: str) -> Constraint:
    return Constraint("regex", text)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of one field of `SamplingParams`; a repeated one gathers its values. Of two flags of a field
    only one may be given."""

    field: str
    name: str
    metavar: str
    parse: Callable[[str], object] | None  # None: a switch
    help: str
    repeated: bool = False


SAMPLING_FLAGS = (
    Flag("max_tokens", "--max-tokens", "N", whole, "stop after N tokens"),
    Flag("temperature", "--temperature", "T", number, "0 takes the most likely token"),
    Flag(
        "top_p", "--top-p", "P", number, "keep the likeliest tokens that hold P of the probability; 1 is off"
    ),
    Flag("top_k", "--top-k", "K", whole, "keep the K likeliest tokens; 0 is off"),
    Flag("min_p", "--min-p", "P", number, "drop tokens below P times the likeliest; 0 is off"),
    Flag("repetition_penalty", "--repetition-penalty", "X", number, "over prompt and output; 1 is off"),
    Flag("presence_penalty", "--presence-penalty", "X", number, "over the output; 0 is off"),
    Flag("frequency_penalty", "--frequency-penalty", "X", number, "over the output; 0 is off"),
    Flag("logit_bias", "--logit-bias", "ID=BIAS", bias, "add BIAS to a token's logit; repeatable", True),
    Flag("min_tokens", "--min-tokens", "N", whole, "no end of sequence before N tokens"),
    Flag("bad_words", "--bad-word", "TEXT", str, "never write TEXT; repeatable", True),
    Flag("stop", "--stop", "TEXT", str, "end before TEXT; repeatable", True),
    Flag("stop_token_ids", "--stop-token-id", "ID", whole, "end after this token; repeatable", True),
    Flag("ignore_eos", "--ignore-eos", "", None, "write on past the end of sequence"),
    Flag(
        "seed", "--seed", "S", whole, "the same seed gives the same tokens; drawn and reported when not given"
    ),
    Flag("n", "--n", "N", whole, "write N answers to the prompt"),
    Flag("logprobs", "--logprobs", "K", whole, "with --json: log-probabilities, and those of K alternatives"),
    Flag("prompt_logprobs", "--prompt-logprobs", "K", whole, "the same of the prompt's tokens"),
    Flag("grammar", "--json-schema", "FILE", schema, "write JSON that follows the JSON schema in FILE"),
    Flag("grammar", "--regex", "R", regex, "write what the regular expression R matches as a whole"),
)


def add_sampling_flags(
    parser: argparse.ArgumentParser,
    *,
    without: tuple[str, ...] = (),
    defaults: SamplingParams = SamplingParams(),  # noqa: B008 - it is frozen
) -> None:
    """Adds the flags of every field of `SamplingParams` but those named; only given ones reach the result.

    defaults: what the help says they are.
    """
    group = parser.add_argument_group("how tokens are chosen, and when they end")
    wanted = [flag for flag in SAMPLING_FLAGS if flag.field not in without]
    counts = Counter(flag.field for flag in wanted)
    one_of = {field: group.add_mutually_exclusive_group() for field, count in counts.items() if count > 1}
    for flag in wanted:
        place = one_of.get(flag.field, group)
        if flag.parse is None:
            place.add_argument(
                flag.name, dest=flag.field, action="store_true", default=argparse.SUPPRESS, help=flag.help
            )
            continue
        default = getattr(defaults, flag.field)
        shown = f" (default {default})" if isinstance(default, int | float) else ""
        place.add_argument(
            flag.name,
            dest=flag.field,
            metavar=flag.metavar,
            type=flag.parse,
            action="append" if flag.repeated else "store",
            default=argparse.SUPPRESS,
            help=flag.help + shown,
        )


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The parameters that the given flags make; the rest keep their defaults."""
    given: dict[str, Any] = {}
    for flag in SAMPLING_FLAGS:
        if hasattr(args, flag.field):
            value = getattr(args, flag.field)
            given[flag.field] = tuple(value) if flag.repeated else value
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return SamplingParams(**given)


def add_engine_flags(parser: argparse.ArgumentParser, *, only_given: bool = False) -> None:
    """Adds the flags that say which model runs, and how. only_given: model and draft too are in the result
    only where they were given."""
    group = parser.add_argument_group("which model, and how it runs")
    group.add_argument(
        "--model",
        metavar="M",
        default=argparse.SUPPRESS if only_given else DEFAULT_MODEL,
        help=f"a name of `surefoot models`, a hub id, a folder or a .gguf file (default {DEFAULT_MODEL})",
    )
    group.add_argument(
        "--draft",
        metavar="D",
        default=argparse.SUPPRESS if only_given else "ngram",
        help="who guesses ahead: none, ngram, suffix, or a smaller model with the same tokenizer "
        "(default ngram)",
    )
    group.add_argument(
        "--draft-tokens",
        metavar="K",
        type=whole,
        default=argparse.SUPPRESS,
        help="the most guesses a round (default: 15 for ngram and suffix, 4 for a model)",
    )
    group.add_argument(
        "--share-drafts",
        action="store_true",
        default=argparse.SUPPRESS,
        help="with --draft suffix: guess from other answers of this process, too",
    )
    group.add_argument(
        "--verify",
        choices=VERIFY_MODES,
        default=argparse.SUPPRESS,
        help="coupled (default) keeps the seed's tokens; rejection and block keep only the distribution",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        default=argparse.SUPPRESS,
        help="auto (default): a GGUF file's own quantized weights (file), else int8, where computed exactly",
    )
    group.add_argument(
        "--threads",
        metavar="N",
        type=whole,
        default=argparse.SUPPRESS,
        help="default: as many as PyTorch chooses, usually one per core",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="write a line of JSON to FILE for every round",
    )


def read_prompt(source: str) -> str:
    """The prompt itself, or what `-` (standard input) or `@FILE` holds, less one final line end.

    Raises SurefootError when a file can't be read, and for what isn't UTF-8 or is empty.
    """
    if source == "-":
        text = _decoded("standard input", sys.stdin.buffer.read()).removesuffix("\n")
    elif source.startswith("@"):
        text = _decoded(source[1:], _read(source[1:])).removesuffix("\n")
    else:
        text = _decoded("prompt", os.fsencode(source))
    if not text:
        raise SurefootError("prompt: it is empty; at least 1 character is needed")
    return text


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SurefootError(
            f"prompt file {path!r}: {error.strerror}; if it is the prompt, use - and standard input"
        ) from None


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SurefootError(
            f"{name}: byte {error.start} is {data[error.start]:#04x}, which is not UTF-8"
        ) from None
