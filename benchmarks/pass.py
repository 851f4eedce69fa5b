"""How long one pass of a model takes, by the number of rows in it, beside llama.cpp on the same file.

    python benchmarks/pass.py --peer PYTHON

PYTHON is the interpreter of an environment with xllamacpp (or llama-cpp-python); without it ours stand alone.
Prints tables, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict

import machine
import torch
from peers import gguf
from spread import Spread
from subjects import Ours, Peer, Subject

from surefoot.cli import guarded
from surefoot.commands.options import DEFAULT_MODEL, Parser, whole
from surefoot.loading import LoadedModel, load_model
from surefoot.models.catalog import list_models

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT = 300
Times = dict[str, Spread]  # by "1" … "32", and "prompt"


def main(argv: Sequence[str] | None = None) -> None:
    args = _parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    report: dict[str, object] = {"machine": machine.describe(), "context": CONTEXT, "prompt": args.prompt}
    print(json.dumps(report["machine"]))
    report["models"] = [found for name in args.model or _present() for found in _measure(name, args)]
    print(json.dumps(report))


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", metavar="M", action="append", help="repeatable (default: those of the catalogue here)")
    add("--precision", metavar="P", action="append", help="repeatable (default auto)")
    add("--peer", metavar="PYTHON", help="an interpreter that has llama.cpp")
    add("--runs", metavar="N", type=whole, default=5, help="of every pass (default 5)")
    add(
        "--prompt", metavar="N", type=whole, default=512, help="rows of the prompt that is read (default 512)"
    )
    add("--threads", metavar="N", type=whole, default=2, help="of ours and of the peer (default 2)")
    return parser


def _present() -> list[str]:
    return [entry.name for entry in list_models() if entry.present] or [DEFAULT_MODEL]


def _measure(name: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """One model in every precision asked for."""
    peer = Peer(args.peer, gguf(name), args.threads) if args.peer else None
    with closing(peer) if peer else nullcontext():
        found = []
        for precision in args.precision or ["auto"]:
            before = machine.read_bandwidth()
            loaded = load_model(name, precision, args.threads)
            subjects: dict[str, Subject] = {"ours": Ours(loaded)}
            if peer is not None:
                subjects["peer"] = peer
            times = pass_times(subjects, loaded.tokenizer.vocab_size, args.runs, args.prompt)
            # Asked again, and the better counts: on a shared machine it comes and goes.
            bandwidth = max(before, machine.read_bandwidth(), key=lambda one: one.bytes_per_second)
            found.append(_summary(loaded, times, bandwidth, peer))
            print("\n".join(_table(found[-1], times, bandwidth, args.runs)))
        return found


def pass_times(subjects: Mapping[str, Subject], vocab_size: int, runs: int, prompt: int) -> dict[str, Times]:
    """Milliseconds of a pass: by rows behind a context, all of whose logits are wanted, as of a verification;
    and of reading a prompt, whose last row's are."""
    draw = random.Random(0)
    tokens = [draw.randrange(vocab_size) for _ in range(max(CONTEXT + max(ROWS), prompt))]
    context, rest = tokens[:CONTEXT], tokens[CONTEXT:]
    taken = _alternate(subjects, context, {str(rows): (rest[:rows], rows) for rows in ROWS}, runs)
    read = _alternate(subjects, [], {"prompt": (tokens[:prompt], 1)}, runs)
    return {name: taken[name] | read[name] for name in subjects}


def _alternate(
    subjects: Mapping[str, Subject],
    context: Sequence[int],
    passes: Mapping[str, tuple[Sequence[int], int]],
    runs: int,
) -> dict[str, Times]:
    """Passes and subjects take turns, so that what else the machine does meets all of them alike."""
    for subject in subjects.values():
        subject.hold(context)
    taken: dict[str, dict[str, list[float]]] = {name: {key: [] for key in passes} for name in subjects}
    for run in range(runs):
        for key, (tokens, wanted) in passes.items():
            for name in sorted(subjects, reverse=bool(run % 2)):
                # The first finds the other's data in the caches, and its threads still spinning.
                subjects[name].milliseconds(tokens, wanted)
                taken[name][key].append(subjects[name].milliseconds(tokens, wanted))
    return {name: {key: Spread.of(ms) for key, ms in found.items()} for name, found in taken.items()}


def _summary(
    loaded: LoadedModel, times: Mapping[str, Times], bandwidth: machine.Bandwidth, peer: Peer | None
) -> dict[str, object]:
    num_bytes = loaded.model.passes.num_bytes
    limit = 1000 * num_bytes / bandwidth.bytes_per_second
    found: dict[str, object] = {
        "model": loaded.name,
        "precision": loaded.precision,
        "kernels": loaded.kernels,
        "inexact": loaded.inexact,
        "weight_bytes": num_bytes,
        "read_bandwidth": asdict(bandwidth),
        "limit_ms": limit,
        "one_row_over_limit": times["ours"]["1"].median / limit,
        "pass_ms": {name: {key: asdict(ms) for key, ms in found.items()} for name, found in times.items()},
        "16_over_1_rows": {name: found["16"].median / found["1"].median for name, found in times.items()},
    }
    if peer is not None:
        ratios = {key: times["peer"][key].median / ms.median for key, ms in times["ours"].items()}
        found |= {"peer": peer.name, "peer_system": peer.system, "peer_over_ours": ratios}
    return found


def _table(
    found: Mapping[str, object], times: Mapping[str, Times], bandwidth: machine.Bandwidth, runs: int
) -> Iterator[str]:
    yield ""
    yield (
        f"{found['model']}, {found['precision']} by {found['kernels']}, {torch.get_num_threads()} threads: "
        f"milliseconds of a pass at context {CONTEXT}, median (least–most) of {runs} runs"
    )
    both = "peer" in times
    if both:
        yield f"  peer: {found['peer']}; {found['peer_system']}"
    yield f"  {'rows':6}  {'ours':24}" + (f"  {'peer':24}  peer ÷ ours" if both else "")
    for key, ours in times["ours"].items():
        line = f"  {key:6}  {format(ours, '.1f'):24}"
        if both:
            peer = times["peer"][key]
            line += f"  {format(peer, '.1f'):24}  {peer.median / ours.median:.2f}"
        yield line
    ratios = [f"{name} {some['16'].median / some['1'].median:.2f}" for name, some in times.items()]
    yield f"  16 rows ÷ 1: {', '.join(ratios)}"
    yield (
        f"  weight bytes ÷ read bandwidth: {found['limit_ms']:.1f} ms at "
        f"{bandwidth.bytes_per_second / 1e9:.1f} GB/s (by {bandwidth.by}); 1 row takes "
        f"{found['one_row_over_limit']:.2f} times that"
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
