"""`surefoot generate`: one prompt, one answer, or several."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from surefoot.commands.options import add_engine_flags, add_sampling_flags, read_prompt, sampling_params
from surefoot.commands.session import open_engine, summarize, write
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.loading import LoadedModel
    from surefoot.results import Choice, Result
    from surefoot.sampling import TopLogprobs

BETWEEN_CHOICES = "---\n"


def add(commands: Any) -> None:
    command = commands.add_parser(
        "generate",
        help="answer a prompt",
        description="Answers a prompt. The text goes to standard output as it comes; on a terminal, a line "
        "with the speed and the seed follows on standard error.",
    )
    command.add_argument(
        "prompt", metavar="PROMPT", help="the prompt; - reads standard input, @FILE reads a file (UTF-8)"
    )
    command.add_argument("--raw", action="store_true", help="continue the prompt as it is: no chat template")
    command.add_argument("--json", action="store_true", help="print one JSON object at the end, nothing else")
    add_engine_flags(command)
    add_sampling_flags(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    params = sampling_params(args)
    for name, count in (("logprobs", params.logprobs), ("prompt-logprobs", params.prompt_logprobs)):
        if count is not None and not args.json:
            raise SurefootError(f"--{name}: {count} was given without --json, which shows them")
    prompt = read_prompt(args.prompt)
    with open_engine(args) as (engine, loaded):
        if args.json or params.n > 1:
            [result] = engine.generate(prompt, params, chat=not args.raw)
            if args.json:
                print(json.dumps(report(result, loaded), allow_nan=False))
            else:
                _print_choices(result, loaded)
        else:
            _, streamed = write(engine.stream(prompt, params, chat=not args.raw))
            summarize(streamed, loaded)


def _print_choices(result: Result, loaded: LoadedModel) -> None:
    texts = [choice.text.removesuffix("\n") + "\n" for choice in result.choices]
    sys.stdout.write(BETWEEN_CHOICES.join(texts))
    summarize(result, loaded)


def report(result: Result, loaded: LoadedModel) -> dict[str, Any]:
    """The object of --json: the first choice at the top, and all of them under `choices` when n > 1."""
    found = _choice(result.choices[0])
    found |= {"seed": result.seed, "precision": loaded.precision, "kernels": loaded.kernels}
    found |= {"usage": asdict(result.usage), "stats": asdict(result.stats)}
    if result.prompt_logprobs is not None:
        found["prompt_logprobs"] = list(map(_logprobs, result.prompt_logprobs))
    if len(result.choices) > 1:
        found["choices"] = [{"index": choice.index, **_choice(choice)} for choice in result.choices]
    return found


def _choice(choice: Choice) -> dict[str, Any]:
    found: dict[str, Any] = {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
    }
    if choice.logprobs is not None:
        found["logprobs"] = list(map(_logprobs, choice.logprobs))
    return found


def _logprobs(entry: TopLogprobs | None) -> dict[str, Any] | None:
    """None for the first token of a prompt, which follows nothing."""
    if entry is None:
        return None
    pairs = zip(entry.ids, entry.values, strict=True)
    return {
        "logprob": entry.chosen,
        "top": [{"token_id": int(token), "logprob": float(value)} for token, value in pairs],
    }
