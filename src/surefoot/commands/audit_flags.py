"""The flags of `surefoot audit`: four forms in one command, and which flag belongs to which."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from surefoot.commands.options import (
    DEFAULT_MODEL,
    PRECISIONS,
    SAMPLING_FLAGS,
    add_sampling_flags,
    number,
    whole,
)
from surefoot.types import VERIFY_MODES, SamplingParams, SurefootError

Form = Literal["own", "servers", "transformers", "self-test"]
OWN: tuple[Form, ...] = ("own",)
SERVERS: tuple[Form, ...] = ("servers",)
TRANSFORMERS: tuple[Form, ...] = ("transformers",)
SELF_TEST: tuple[Form, ...] = ("self-test",)
COMPARING: tuple[Form, ...] = (*OWN, *SERVERS, *TRANSFORMERS)

LEADING = {
    "--self-test": SELF_TEST,
    "--transformers": TRANSFORMERS,
    "--url": SERVERS,
    "--baseline-url": SERVERS,
    "--record": SERVERS,
    "--replay": SERVERS,
}
"""The flags that choose a form. Our own engine has none: it is what is audited without them."""

FIRST: dict[Form, str] = {"servers": "--url", "transformers": "--transformers", "self-test": "--self-test"}

MAX_TOKENS = 48  # of an answer: short ones, so that many prompts and settings are tried
HOW = ("alpha", "detect")

UNSAMPLED = ("n", "seed", "logprobs", "prompt_logprobs", "grammar")  # of no use, or the audit's own choice
SAMPLED: dict[Form, tuple[str, ...]] = {
    "own": tuple(flag.field for flag in SAMPLING_FLAGS if flag.field not in UNSAMPLED),
    "servers": ("max_tokens", "temperature", "top_k"),
    "transformers": ("max_tokens", "temperature", "top_p", "top_k"),
    "self-test": (),
}
"""The sampling parameters that each form takes."""

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, such as 90, 60s or 2m")
    return float(found[1]) * SECONDS[found[2]]


def share(text: str) -> float:
    value = number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; allowed is (0, 1)")
    return value


@dataclass(frozen=True, slots=True)
class Flag:
    """parse: None for a switch."""

    name: str
    forms: tuple[Form, ...]
    metavar: str
    parse: Callable[[str], object] | None
    help: str
    choices: tuple[str, ...] | None = None
    field: str | None = None  # where it isn't the name's own

    @property
    def dest(self) -> str:
        return self.field or self.name.removeprefix("--").replace("-", "_")


GROUPS: dict[str, tuple[Flag, ...]] = {
    "our own engine": (
        Flag(
            "--model",
            (*OWN, *SERVERS),
            "M",
            str,
            f"what is audited, as in `surefoot generate` (default {DEFAULT_MODEL}); with --url, the servers' "
            "name of it (default: the only one they list)",
        ),
        Flag("--draft", OWN, "D", str, "who guesses ahead: ngram (default), suffix, or a smaller model"),
        Flag(
            "--verify",
            OWN,
            "RULE",
            str,
            f"{', '.join(VERIFY_MODES)}; the first is the default",
            VERIFY_MODES,
        ),
        Flag(
            "--draft-tokens",
            (*OWN, *TRANSFORMERS),
            "K",
            whole,
            "the guesses a round (default: several lengths; with --transformers 5)",
        ),
        Flag("--precision", OWN, "P", str, f"{', '.join(PRECISIONS)}; the first is the default", PRECISIONS),
        Flag("--threads", OWN, "N", whole, "as in `surefoot generate`"),
    ),
    "two servers that speak OpenAI's API": (
        Flag(
            "--url", SERVERS, "URL", str, "the one with speculation; drawn from at temperature 1 by default"
        ),
        Flag("--baseline-url", SERVERS, "URL", str, "the same without"),
        Flag(
            "--record",
            SERVERS,
            "FILE",
            str,
            "keep what is answered: a run that broke off goes on; one server alone is only recorded",
        ),
        Flag("--replay", SERVERS, "FILE", str, "what was recorded, in place of the server that isn't named"),
        Flag("--chat", SERVERS, "", None, "ask for chats, not for completions"),
        Flag("--concurrency", SERVERS, "N", whole, "requests under way at once (default 4)"),
        Flag("--samples", SERVERS, "N", whole, "drawn answers per prompt and server (default 8)"),
        Flag("--stream", SERVERS, "", None, "ask for answers piece by piece"),
        Flag("--api-key", SERVERS, "KEY", str, "default: the environment's OPENAI_API_KEY"),
    ),
    "transformers' assisted generation": (
        Flag("--transformers", TRANSFORMERS, "TARGET", str, "a model that transformers loads"),
        Flag(
            "--assistant", TRANSFORMERS, "DRAFT", str, "its draft model; without it, the modes that need none"
        ),
    ),
    "the audit itself": (
        Flag("--self-test", SELF_TEST, "", None, "audit engines broken on purpose; all must be caught"),
        Flag("--processes", SELF_TEST, "N", whole, "run so many at once (default: one per core)"),
    ),
    "how thoroughly": (
        Flag("--prompts", COMPARING, "FILE", str, "the prompts (default: some of every kind)"),
        Flag("--budget", COMPARING, "TIME", seconds, "end after 90, 60s, 2m or 1h (default 60s)"),
        Flag("--alpha", COMPARING, "A", share, "the probability of a false alarm (default 0.01)"),
        Flag("--detect", COMPARING, "B", share, "the bias to be seen, as a share of tokens (default 0.1)"),
        Flag(
            "--tie-gap",
            (*SERVERS, *TRANSFORMERS),
            "G",
            number,
            "tokens whose logits differ by no more are a tie (default 0.15; with --transformers 0.001)",
        ),
        Flag("--seed", COMPARING, "S", whole, "of the audit's own choices (default 0)", field="audit_seed"),
    ),
}


def add_audit_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag of every form; only those given reach the result."""
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.parse is None:
                group.add_argument(
                    flag.name, dest=flag.dest, action="store_true", default=argparse.SUPPRESS, help=flag.help
                )
                continue
            group.add_argument(
                flag.name,
                dest=flag.dest,
                metavar=flag.metavar,
                type=flag.parse,
                choices=flag.choices,
                default=argparse.SUPPRESS,
                help=flag.help,
            )
    add_sampling_flags(parser, without=UNSAMPLED, defaults=SamplingParams(max_tokens=MAX_TOKENS))


def form_of(args: argparse.Namespace) -> Form:
    """Which form was asked for. Raises SurefootError for flags of two, and for one that its form hasn't."""
    given = [(name, forms) for name, dest, forms in _flags() if hasattr(args, dest)]
    leading = [name for name in LEADING if any(name == other for other, _ in given)]
    form: Form = LEADING[leading[0]][0] if leading else "own"
    for name in leading:
        if form not in LEADING[name]:
            raise SurefootError(f"{leading[0]} and {name} exclude each other: an audit is of one thing")
    for name, forms in given:
        if form not in forms and leading:
            raise SurefootError(f"{name} was given with {leading[0]}, which has no use for it")
        if form not in forms:
            needed = " or ".join(FIRST[other] for other in forms)
            raise SurefootError(f"{name} was given without {needed}, which it belongs to")
    return form


def _flags() -> Iterable[tuple[str, str, tuple[Form, ...]]]:
    """Every flag: its name, where it stands in the result, and its forms."""
    for flags in GROUPS.values():
        yield from ((flag.name, flag.dest, flag.forms) for flag in flags)
    for flag in SAMPLING_FLAGS:
        if flag.field not in UNSAMPLED:
            forms = tuple(form for form, fields in SAMPLED.items() if flag.field in fields)
            yield flag.name, flag.field, forms
