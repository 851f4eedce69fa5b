"""What a precision costs in quality: how far its distributions are from float32's, over real text.

    python benchmarks/quality.py --model smollm2-135m-instruct

The text is Python's own documentation of its language, which every Python carries. Prints a table, and as
its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pydoc_data.topics import topics

import machine
import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.cli import guarded
from surefoot.commands.options import DEFAULT_MODEL, Parser, whole
from surefoot.loading import LoadedModel, load_model
from surefoot.models.base import Segment
from surefoot.types import SurefootError

TOPICS = ("execmodel", "import", "comparisons", "objects")
ROWS = 100  # whose logits are held at once


@dataclass(frozen=True, slots=True)
class Quality:
    """mean_kl: KL(fp32 ‖ precision) in nats, the mean over the tokens. top_agreement: how often the most
    likely token is the same."""

    model: str
    precision: str
    tokens: int
    mean_kl: float
    top_agreement: float


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="M", action="append", help=f"repeatable (default {DEFAULT_MODEL})")
    parser.add_argument("--tokens", metavar="N", type=whole, default=2000, help="default 2000")
    args = parser.parse_args(argv)
    table = [row for name in args.model or [DEFAULT_MODEL] for row in measure(name, args.tokens)]
    print(f"{'model':28} {'precision':9} {'tokens':>6} {'mean KL':>8} {'same top token':>14}")
    for row in table:
        print(f"{row.model:28} {row.precision:9} {row.tokens:6} {row.mean_kl:8.5f} {row.top_agreement:14.1%}")
    print(json.dumps({"machine": machine.describe(), "quality": [asdict(row) for row in table]}))


def measure(name: str, count: int) -> list[Quality]:
    """The quality of each reduced precision that this machine has, over `count` tokens of a model, a
    quarter from each topic."""
    loaded = load_model(name, precision="fp32")
    texts = [
        loaded.tokenizer.encode(topics[topic], add_special=True)[: count // len(TOPICS)] for topic in TOPICS
    ]
    expected = [block for text in texts for block in log_probs(loaded, text)]
    del loaded
    found = []
    for precision in ("file", "int8", "bf16"):
        try:
            reduced = load_model(name, precision=precision)
        except SurefootError as error:
            print(f"{name}: {error}", file=sys.stderr)
        else:
            found.append(_compare(reduced, texts, expected))
    return found


def _compare(
    loaded: LoadedModel, texts: Sequence[Sequence[int]], expected: Sequence[NDArray[np.float32]]
) -> Quality:
    divergences: list[float] = []
    same: list[bool] = []
    blocks = (block for text in texts for block in log_probs(loaded, text))
    for reference, found in zip(expected, blocks, strict=True):
        exact = reference.astype(np.float64)
        divergences += (np.exp(exact) * (exact - found)).sum(1).tolist()
        same += (reference.argmax(1) == found.argmax(1)).tolist()
    return Quality(
        loaded.name, loaded.precision, len(same), float(np.mean(divergences)), float(np.mean(same))
    )


def log_probs(loaded: LoadedModel, text: Sequence[int]) -> Iterator[NDArray[np.float32]]:
    """Log-probabilities after each token of a text, [up to 100, vocabulary] float32, block after block."""
    model, limit, seq = loaded.model, loaded.tokenizer.vocab_size, 1 << 40
    model.cache.add(seq)
    for start in range(0, len(text), ROWS):
        rows = text[start : start + ROWS]
        logits = model.forward([Segment(seq, rows, num_wanted=len(rows))])[:, :limit]
        yield torch.from_numpy(logits).double().log_softmax(1).float().numpy()
    model.cache.free(seq)


if __name__ == "__main__":
    sys.exit(guarded(main))
