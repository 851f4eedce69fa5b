"""The demonstration: three prompts, answered plainly and speculated, with the same seed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.cli import guarded
from surefoot.commands.options import DEFAULT_MODEL, Parser, whole
from surefoot.types import SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.engine import Engine
    from surefoot.results import Result

FILE = """\
class Basket:
    def __init__(self, owner):
        self.owner = owner
        self.items = []

    def add(self, name, price, count=1):
        self.items.append({"name": name, "price": price, "count": count})

    def total(self):
        return sum(item["price"] * item["count"] for item in self.items)

    def receipt(self):
        lines = [f"Basket of {self.owner}"]
        for item in self.items:
            lines.append(f"{item['count']} x {item['name']}: {item['price']}")
        lines.append(f"Total: {self.total()}")
        return "\\n".join(lines)
"""

PROMPTS = {
    "rewriting a file": "Rewrite this Python file with the class Basket renamed to Cart:"
    f"\n\n```python\n{FILE}```",
    "writing a function": "Write a Python function that counts how often each word occurs in a text.",
    "a story": "Tell a short story about a fox who learns to read.",
}

GREEN, DIM, BOLD, OFF = "\033[32m", "\033[2m", "\033[1m", "\033[0m"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt, both ways."""

    kind: str
    plain: Result
    speculated: Result

    @property
    def equal(self) -> bool:
        return self.plain.token_ids == self.speculated.token_ids

    @property
    def ratio(self) -> float:
        """How many times as fast the speculated answer was, once its first token was there."""
        return self.plain.stats.decode_ms / max(self.speculated.stats.decode_ms, 1e-9)

    def __str__(self) -> str:
        plain, speculated = self.plain.stats, self.speculated.stats
        tokens = len(self.speculated.token_ids)
        return (
            f"{'the same' if self.equal else 'DIFFERENT'} {tokens} tokens · "
            f"plain {plain.tokens_per_second:.1f} tokens/s · speculated {speculated.tokens_per_second:.1f} "
            f"tokens/s ({self.ratio:.2f}×) · mean acceptance length {speculated.mean_acceptance_length:.2f}"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the demonstration. Raises SurefootError when an answer differs, after the last one."""
    args = _parser().parse_args(argv)
    params = SamplingParams(max_tokens=args.max_tokens, temperature=0.8, seed=args.seed)
    from surefoot.engine import Engine
    from surefoot.loading import load_model
    from surefoot.models.pull import progress_bar, pull

    with progress_bar(DEFAULT_MODEL) as progress:
        pull(DEFAULT_MODEL, progress)
    print(f"Model {DEFAULT_MODEL}, temperature 0.8, seed {args.seed}; the drafter looks up n-grams.")
    loaded = load_model(DEFAULT_MODEL)
    with Engine(loaded, draft=None) as plain, Engine(loaded, draft="ngram") as speculated:
        for engine in (plain, speculated):  # the first passes of a process are slower
            engine.generate("Hello", SamplingParams(max_tokens=4, seed=0))
        comparisons = [_compare(kind, plain, speculated, params) for kind in PROMPTS]
    print(f"\n{conclusion(comparisons)}")
    different = [comparison.kind for comparison in comparisons if not comparison.equal]
    if different:
        raise SurefootError(
            f"the promise is broken: other tokens with speculation for {', '.join(different)}"
        )


def _parser() -> Parser:
    parser = Parser(
        prog="scripts/demo", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seed", metavar="S", type=whole, default=7, help="of all answers")
    parser.add_argument("--max-tokens", metavar="N", type=whole, default=160, help="of each answer")
    return parser


def _compare(kind: str, plain: Engine, speculated: Engine, params: SamplingParams) -> Comparison:
    print(f"\n{_styled(BOLD, kind.upper())}\n{_styled(DIM, PROMPTS[kind].strip())}")
    results = []
    for name, engine in (("plain", plain), ("speculated", speculated)):
        print(f"\n{_styled(BOLD, name)}")
        results.append(_show(engine, PROMPTS[kind], params))
    comparison = Comparison(kind, *results)
    print(f"\n{_styled(BOLD, str(comparison))}")
    return comparison


def _show(engine: Engine, prompt: str, params: SamplingParams) -> Result:
    """Streams an answer; what came several tokens at a time is green on a terminal."""
    for chunk in engine.stream(prompt, params, chat=True):
        print(_styled(GREEN, chunk.text) if len(chunk.token_ids) > 1 else chunk.text, end="", flush=True)
        if chunk.result:
            print()
            return chunk.result
    raise AssertionError("a stream ends with its result")


def _styled(style: str, text: str) -> str:
    return f"{style}{text}{OFF}" if text and sys.stdout.isatty() else text


def conclusion(comparisons: Sequence[Comparison]) -> str:
    """What the numbers say, whichever way they fell."""
    ratios = ", ".join(f"{comparison.kind} {comparison.ratio:.2f}×" for comparison in comparisons)
    plain = sum(comparison.plain.stats.decode_ms for comparison in comparisons)
    overall = plain / max(sum(comparison.speculated.stats.decode_ms for comparison in comparisons), 1e-9)
    slower = sum(comparison.ratio < 1 for comparison in comparisons)
    lost = f" Speculation lost time on {slower} of {len(comparisons)}." if slower else ""
    return f"Speculated against plain, overall {overall:.2f}×: {ratios}.{lost}"


if __name__ == "__main__":
    sys.exit(guarded(main))
