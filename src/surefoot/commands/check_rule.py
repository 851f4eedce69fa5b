"""`surefoot check-rule`: what the verification rules make of one drafted token, as exact fractions."""

from __future__ import annotations

import argparse
import re
from typing import Any


def add(commands: Any) -> None:
    command = commands.add_parser(
        "check-rule",
        help="prove the verification rules on two distributions you choose",
        description="Follows one drafted token through verification on every side of every comparison, in "
        "exact fractions: what is accepted, what is rejected, and what comes out.",
    )
    command._negative_number_matcher = re.compile(r"-[\d.]")  # no flags: it says what is wrong with them
    command.add_argument(
        "target", metavar="TARGET", help="target probabilities, as in 0.6,0.3,0.1 or 3/5,2/5"
    )
    command.add_argument("draft", metavar="DRAFT", help="draft probabilities over the same tokens")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from surefoot import exact

    target, draft = exact.parse_probs("target", args.target), exact.parse_probs("draft", args.draft)
    print(exact.format_check(exact.check_rule(target, draft)))
