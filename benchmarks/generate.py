"""How fast this machine generates: whole answers, plain and speculated.

    python benchmarks/generate.py --model qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct

With `--peer PYTHON`, the interpreter of an environment with xllamacpp, llama.cpp writes the same answers at
temperature 0: plain, with its n-gram drafters, and with the draft models of --draft.
Prints tables, and as its last line one JSON object with everything in them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict

import machine
import torch
from answers import KINDS, PLAIN, Answers, compare, prompts_of
from peers import Child, gguf
from writers import Ours, Writer, llamas

from surefoot.cli import guarded
from surefoot.commands.options import DEFAULT_MODEL, Parser, number, whole
from surefoot.engine import Engine
from surefoot.loading import LoadedModel, load_model
from surefoot.pairing import names_a_model
from surefoot.prompts import prepare
from surefoot.types import SamplingParams


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    report: dict[str, object] = {"machine": machine.describe()}
    print(json.dumps(report["machine"]))
    report["models"] = [found for name in args.model or [DEFAULT_MODEL] for found in _measure(name, args)]
    print(json.dumps(report))


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", metavar="M", action="append", help=f"repeatable (default {DEFAULT_MODEL})")
    add(
        "--precision",
        metavar="P",
        action="append",
        help="repeatable (default auto)",
    )
    add(
        "--draft",
        metavar="D",
        action="append",
        help="beside none: ngram, suffix or a model; repeatable (default ngram)",
    )
    add("--kind", choices=KINDS, action="append", help="of prompts; repeatable (default: all)")
    add("--temperature", metavar="T", type=number, action="append", help="repeatable (default 0 and 0.8)")
    add("--prompts", metavar="N", type=whole, default=1, help="of each kind (default 1)")
    add("--max-tokens", metavar="N", type=whole, default=128, help="of an answer (default 128)")
    add("--repetitions", metavar="N", type=whole, default=3, help="of every answer (default 3)")
    add("--peer", metavar="PYTHON", help="an interpreter that has llama.cpp")
    add("--threads", metavar="N", type=whole, help="of ours and of the peer (default: torch's own)")
    return parser


def _measure(name: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """One model in every precision asked for."""
    peer = Child(args.peer, "llama_answers.py", gguf(name), torch.get_num_threads()) if args.peer else None
    with closing(peer) if peer else nullcontext():
        return [_summary(name, precision, peer, args) for precision in args.precision or ["auto"]]


def _summary(name: str, precision: str, peer: Child | None, args: argparse.Namespace) -> dict[str, object]:
    loaded = load_model(name, precision=precision, threads=args.threads)
    drafts = list(dict.fromkeys(args.draft or ["ngram"]))
    theirs = llamas(peer, {draft: gguf(draft) for draft in drafts if names_a_model(draft)}) if peer else {}
    answers = _answers(loaded, _ours(loaded, drafts, precision), theirs, args)
    _print_answers(f"{name}, {loaded.precision}", answers)
    found: dict[str, object] = {
        "model": name,
        "precision": loaded.precision,
        "kernels": loaded.kernels,
        "inexact": loaded.inexact,
        "answers": [asdict(one) for one in answers],
    }
    if peer is not None:
        print(f"  {peer.name}; {peer.system}")
        found |= {"peer": peer.name, "peer_system": peer.system}
    return found


def _ours(loaded: LoadedModel, drafts: Sequence[str], precision: str) -> dict[str, Writer]:
    engines = {
        draft: Engine(loaded, draft=load_model(draft, precision) if names_a_model(draft) else draft)
        for draft in dict.fromkeys([PLAIN, *drafts])
    }
    for engine in engines.values():
        engine.generate("Count to ten.", SamplingParams(max_tokens=8, seed=0), chat=True)
    return {draft: Ours(engine) for draft, engine in engines.items()}


def _answers(
    loaded: LoadedModel, ours: Mapping[str, Writer], theirs: Mapping[str, Writer], args: argparse.Namespace
) -> list[Answers]:
    return [
        answers
        for kind in args.kind or KINDS
        for temperature in ([0.0, 0.8] if args.temperature is None else args.temperature)
        for answers in compare(
            {**ours, **theirs} if temperature == 0 else ours,
            kind,
            temperature,
            [
                prepare(prompt, SamplingParams(), loaded.tokenizer, chat=True).ids
                for prompt in prompts_of(kind, args.prompts)
            ],
            max_tokens=args.max_tokens,
            repetitions=args.repetitions,
        )
    ]


COLUMNS = ("kind", "T", "drafter", "tokens", "equal", "tokens/s", "× plain", "length", "rate", "other")


def _print_answers(title: str, answers: Sequence[Answers]) -> None:
    print(f"\n{title}: whole answers; median (least–most of the repetitions)")
    lines = [COLUMNS, *map(_cells, answers)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


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
        "" if one.other_share is None else f"{one.other_share:.1%}",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
