"""How a server does under load: throughput, time to the first token and between tokens.

    surefoot serve --port 8000 &
    python benchmarks/serve.py --url http://127.0.0.1:8000 --peer vllm=http://127.0.0.1:8100

Every load is run on each server in turn, plain and speculated on ours, several times over, after a round to
warm up. Answers have as many tokens as they may. Prints tables, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import httpx
import machine
import numpy as np
from answers import KINDS
from load import Answer, Subject, closed_loop, open_loop
from spread import Spread

from surefoot.cli import guarded
from surefoot.commands.options import Parser, number, whole
from surefoot.types import SurefootError

PROMPTS = Path(__file__).parent / "prompts"
QUANTILES = (50, 95, 99)
Run = Callable[[Subject, str], list[Answer]]  # under a salt, so that nothing is known of its prompts


@dataclass(frozen=True, slots=True)
class Measured:
    """What one load did to one server; spreads over the repetitions, quantiles of all requests together.

    tokens_per_second: of all requests, from the first one sent to the last one answered. ttft_ms, gap_ms,
    token_ms: p50, p95 and p99 of the time to the first text, between two pieces of text, and per token after
    the first. equal: whether the texts are those of plain decoding on the same server, None where there is
    no such thing to compare with.
    """

    subject: str
    load: str
    requests: int
    tokens_per_second: Spread
    ttft_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    token_ms: tuple[float, ...]
    equal: bool | None


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    report: dict[str, object] = {"machine": machine.describe(), "arguments": vars(args)}
    print(json.dumps(report["machine"]))
    subjects = _subjects(args)
    bodies = _bodies(args)
    loads: dict[str, Run] = {
        f"{concurrency} at once": _closed(bodies[: max(concurrency, args.requests)], concurrency)
        for concurrency in args.concurrency
    }
    loads |= {f"{rate:g} a second": _open(bodies, rate) for rate in args.rate}
    print("\nmedian (least–most of the repetitions); p50 / p95 / p99 of all requests")
    _print(COLUMNS)
    measured: list[Measured] = []
    for load, run in loads.items():
        measured += _measure(load, run, subjects, args.repetitions)
        for one in measured[-len(subjects) :]:
            _print(_cells(one))
    report["measured"] = [asdict(one) for one in measured]
    print(json.dumps(report))


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--url", metavar="URL", required=True, help="of surefoot's server: run plain and speculated")
    add("--peer", metavar="NAME=URL", action="append", default=[], help="another server; repeatable")
    add("--concurrency", metavar="N,…", type=_wholes, default=[1, 4, 8, 16], help="(default 1,4,8,16)")
    add("--rate", metavar="R,…", type=_numbers, default=[], help="Poisson arrivals, requests a second")
    add("--requests", metavar="N", type=whole, default=24, help="of a load (default 24)")
    add("--max-tokens", metavar="N", type=whole, default=64, help="of an answer (default 64)")
    add("--temperature", metavar="T", type=number, default=0.0, help="(default 0)")
    add("--repetitions", metavar="N", type=whole, default=3, help="of every load (default 3)")
    add("--workload", metavar="FILE", help="JSON lines with `turns`; default: the benchmarks' own prompts")
    return parser


def _wholes(text: str) -> list[int]:
    return [whole(part) for part in text.split(",")]


def _numbers(text: str) -> list[float]:
    return [number(part) for part in text.split(",")]


def _subjects(args: argparse.Namespace) -> list[Subject]:
    url = args.url.rstrip("/")
    model = _model(url)
    subjects = [Subject("plain", url, model, {"draft_tokens": 0}), Subject("speculated", url, model)]
    for peer in args.peer:
        name, _, at = peer.partition("=")
        subjects.append(Subject(name, at.rstrip("/"), _model(at.rstrip("/"))))
    return subjects


def _model(url: str) -> str:
    try:
        found = httpx.get(f"{url}/v1/models", timeout=10)
        model: str = found.raise_for_status().json()["data"][0]["id"]
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise SurefootError(f"{url}: no OpenAI-compatible server answers there: {error}") from None
    return model


def _bodies(args: argparse.Namespace) -> list[dict[str, object]]:
    """As many as the largest load needs, each prompt with a seed of its own."""
    count = max([args.requests, *args.concurrency])
    return [
        {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": args.max_tokens,
            "temperature": args.temperature,
            "seed": seed,
            "ignore_eos": True,
        }
        for seed, text in enumerate(islice(cycle(_texts(args.workload)), count))
    ]


def _texts(workload: str | None) -> list[str]:
    if workload is None:
        paths = [path for kind in KINDS for path in PROMPTS.glob(f"{kind}-*.txt")]
        paths.sort(key=lambda path: path.stem.rpartition("-")[2])  # the kinds in turn
        return [path.read_text(encoding="utf-8") for path in paths]
    try:
        lines = Path(workload).read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["turns"][0] for line in lines]
    except (OSError, ValueError, LookupError) as error:
        raise SurefootError(f"workload: {workload} can't be read as JSON lines with turns: {error}") from None


def _closed(bodies: Sequence[dict[str, object]], concurrency: int) -> Run:
    return lambda subject, salt: asyncio.run(closed_loop(subject, _salted(bodies, salt), concurrency))


def _open(bodies: Sequence[dict[str, object]], rate: float) -> Run:
    return lambda subject, salt: asyncio.run(open_loop(subject, _salted(bodies, salt), rate, seed=0))


def _salted(bodies: Sequence[dict[str, object]], salt: str) -> list[dict[str, object]]:
    return [body | {"cache_salt": f"{salt} {place}"} for place, body in enumerate(bodies)]


def _measure(load: str, run: Run, subjects: Sequence[Subject], repetitions: int) -> list[Measured]:
    """Every subject in turn, so that what else the machine does meets them all alike."""
    runs: dict[str, list[list[Answer]]] = {subject.name: [] for subject in subjects}
    for subject in subjects:
        run(subject, f"{load}, {subject.name}, warming up")
    for repetition in range(repetitions):
        for subject in subjects:
            runs[subject.name].append(run(subject, f"{load}, {subject.name}, {repetition}"))
    plain = [answer.text for answer in runs["plain"][0]]
    return [
        _measured(subject.name, load, runs[subject.name], plain if subject.name == "speculated" else None)
        for subject in subjects
    ]


def _measured(subject: str, load: str, runs: Sequence[Sequence[Answer]], plain: list[str] | None) -> Measured:
    answers = [answer for run in runs for answer in run]
    gaps = [gap for answer in answers for gap in answer.gaps]
    return Measured(
        subject,
        load,
        requests=len(answers),
        tokens_per_second=Spread.of([_throughput(run) for run in runs]),
        ttft_ms=_quantiles([answer.first - answer.began for answer in answers]),
        gap_ms=_quantiles(gaps or [0.0]),
        token_ms=_quantiles([answer.seconds_per_token for answer in answers]),
        equal=None if plain is None else all([answer.text for answer in run] == plain for run in runs),
    )


def _throughput(run: Sequence[Answer]) -> float:
    seconds = max(answer.ended for answer in run) - min(answer.began for answer in run)
    return sum(answer.tokens for answer in run) / seconds


def _quantiles(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(float(value) * 1000, 2) for value in np.percentile(seconds, QUANTILES))


COLUMNS = ("load", "server", "tokens/s", "first ms", "between pieces ms", "per token ms", "equal")
WIDTHS = (12, 12, 21, 22, 22, 20, 5)


def _print(cells: Sequence[str]) -> None:
    line = "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    print("  " + line, flush=True)  # what was measured, stays, whatever becomes of the rest


def _cells(one: Measured) -> tuple[str, ...]:
    return (
        one.load,
        one.subject,
        f"{one.tokens_per_second:.1f}",
        *(" / ".join(f"{value:.0f}" for value in times) for times in (one.ttft_ms, one.gap_ms, one.token_ms)),
        "" if one.equal is None else "yes" if one.equal else "NO",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
