"""How fast this machine generates: what bounds it, a pass by its rows, whole answers plain and speculated.

    python benchmarks/generate.py --model qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct

Prints tables, and as its last line one JSON object with everything in them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import machine
import torch
from answers import KINDS, PLAIN, Answers, compare
from passes import CONTEXT, ROWS, Spread, pass_times

from surefoot.cli import guarded
from surefoot.commands.options import DEFAULT_MODEL, Parser, number, whole
from surefoot.engine import Engine
from surefoot.loading import LoadedModel, load_model
from surefoot.pairing import names_a_model
from surefoot.types import SamplingParams

PARTS = ("passes", "answers")


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    bandwidth = machine.read_bandwidth()
    report: dict[str, object] = {"machine": machine.describe(), "read_bandwidth": bandwidth}
    print(json.dumps(report["machine"]))
    print(f"memory is read at {bandwidth / 1e9:.1f} GB/s")
    report["models"] = [
        _measure(name, precision, bandwidth, args)
        for name in args.model or [DEFAULT_MODEL]
        for precision in args.precision or ["auto"]
    ]
    print(json.dumps(report))


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", metavar="M", action="append", help=f"repeatable (default {DEFAULT_MODEL})")
    add(
        "--precision",
        metavar="P",
        action="append",
        help="auto, fp32, bf16 or int8; repeatable (default auto)",
    )
    add(
        "--draft",
        metavar="D",
        action="append",
        help="beside none: ngram or a model; repeatable (default ngram)",
    )
    add("--kind", choices=KINDS, action="append", help="of prompts; repeatable (default: all)")
    add("--temperature", metavar="T", type=number, action="append", help="repeatable (default 0 and 0.8)")
    add("--prompts", metavar="N", type=whole, default=1, help="of each kind (default 1)")
    add("--max-tokens", metavar="N", type=whole, default=128, help="of an answer (default 128)")
    add(
        "--repetitions",
        metavar="N",
        type=whole,
        default=3,
        help="of every answer (default 3); of a pass 5 times as many",
    )
    add("--only", choices=PARTS, help="measure passes or answers alone")
    add("--threads", metavar="N", type=whole, help="default: torch's own")
    return parser


def _measure(name: str, precision: str, bandwidth: float, args: argparse.Namespace) -> dict[str, object]:
    loaded = load_model(name, precision=precision, threads=args.threads)
    found: dict[str, object] = {"model": name, "precision": loaded.precision, "inexact": loaded.inexact}
    if args.only != "answers":
        times = pass_times(loaded.model, loaded.tokenizer.vocab_size, 5 * args.repetitions)
        # Asked again, and the better counts: on a shared machine it comes and goes.
        bandwidth = max(bandwidth, machine.read_bandwidth())
        limit = 1000 * loaded.model.passes.num_bytes / bandwidth
        _print_passes(f"{name}, {loaded.precision}", times, limit)
        found |= {
            "weight_bytes": loaded.model.passes.num_bytes,
            "read_bandwidth": bandwidth,
            "limit_ms": limit,
            "pass_ms": {rows: asdict(spread) for rows, spread in times.items()},
            "one_row_over_limit": times[1].median / limit,
            "32_over_16_rows": times[32].median / times[16].median,
        }
    if args.only != "passes":
        answers = _answers(loaded, precision, args)
        _print_answers(f"{name}, {loaded.precision}", answers)
        found["answers"] = [asdict(one) for one in answers]
    return found


def _answers(loaded: LoadedModel, precision: str, args: argparse.Namespace) -> list[Answers]:
    engines = {
        draft: Engine(loaded, draft=load_model(draft, precision) if names_a_model(draft) else draft)
        for draft in dict.fromkeys([PLAIN, *(args.draft or ["ngram"])])
    }
    for engine in engines.values():
        engine.generate("Count to ten.", SamplingParams(max_tokens=8, seed=0), chat=True)
    temperatures = [0.0, 0.8] if args.temperature is None else args.temperature
    return [
        answers
        for kind in args.kind or KINDS
        for temperature in temperatures
        for answers in compare(
            engines,
            kind,
            temperature,
            count=args.prompts,
            max_tokens=args.max_tokens,
            repetitions=args.repetitions,
        )
    ]


def _print_passes(title: str, times: dict[int, Spread], limit: float) -> None:
    print(f"\n{title}: milliseconds of a pass, context {CONTEXT}; median (quartiles)")
    print(f"  weight bytes ÷ bandwidth (the better of before and after): {limit:.1f}")
    for rows in ROWS:
        print(
            f"  {rows:3} rows: {times[rows]:.1f}, {times[rows].median / limit:.2f} × weight bytes ÷ bandwidth"
        )
    print(f"  32 rows over 16: {times[32].median / times[16].median:.2f}")


COLUMNS = ("kind", "T", "drafter", "tokens", "equal", "tokens/s", "× plain", "length", "rate", "other")
WIDTHS = (5, 3, 28, 6, 5, 19, 16, 6, 4, 5)


def _print_answers(title: str, answers: Sequence[Answers]) -> None:
    print(f"\n{title}: whole answers; median (quartiles over repetitions)")
    lines = [COLUMNS, *map(_cells, answers)]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, WIDTHS, strict=True)))


def _cells(one: Answers) -> tuple[str, ...]:
    return (
        one.kind,
        f"{one.temperature:g}",
        one.draft,
        str(one.tokens),
        "yes" if one.equal else "NO",
        f"{one.tokens_per_second:.1f}",
        f"{one.ratio:.2f}",
        f"{one.mean_acceptance_length:.2f}",
        f"{one.acceptance_rate:.2f}",
        f"{one.other_share:.1%}",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
