"""`surefoot serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from surefoot.commands.options import DEFAULT_MODEL, add_engine_flags, number, whole
from surefoot.commands.session import given, say_inexact, say_loading
from surefoot.types import SurefootError

if TYPE_CHECKING:
    from surefoot.server.settings import Settings

_FLAGS: tuple[tuple[str, str, str, Callable[[str], object], str], ...] = (
    (
        "limits",
        "--kv-memory",
        "SIZE",
        str,
        "for keys and values, such as 4GiB (default: half of what is free)",
    ),
    ("limits", "--max-requests", "N", whole, "in flight at once, choices counted singly (default 32)"),
    ("limits", "--max-queue", "N", whole, "that wait; more are told to come back, with 429 (default 128)"),
    ("limits", "--max-rows", "N", whole, "of a pass (default 512)"),
    ("limits", "--prompt-rows", "N", whole, "of prompts in a pass while others write (default 64)"),
    ("limits", "--max-prompt-tokens", "N", whole, "of a prompt (default: as many as the context holds)"),
    ("limits", "--max-body-bytes", "SIZE", str, "of a request's body (default 4MiB)"),
    ("limits", "--body-timeout", "SECONDS", number, "for a body to arrive, then 408 (default 60)"),
    ("limits", "--timeout", "SECONDS", number, "for an answer, then 504 (default: none)"),
    ("limits", "--grace", "SECONDS", number, "that answers may go on when the server closes (default 30)"),
    ("server", "--host", "HOST", str, "where to listen (default 127.0.0.1: this machine alone)"),
    ("server", "--port", "PORT", whole, "0 takes a free one (default 8000)"),
    ("server", "--api-key", "KEY", str, "that clients must give; others see it in the list of processes"),
    (
        "server",
        "--api-key-file",
        "FILE",
        str,
        "whose first line is the key ($SUREFOOT_API_KEY without either)",
    ),
    ("server", "--log-level", "LEVEL", str, "debug, info, warning or error (default info)"),
)
_SWITCHES = (
    ("limits", "--no-prefix-cache", "prefix_cache", False, "compute every prompt from its first token"),
    ("server", "--log-prompts", "log_prompts", True, "write prompts and answers into the log"),
)
_NAMES = ("model", "draft", "draft_tokens", "share_drafts", "verify", "precision", "threads", "trace")
_REPEATED = ("served_model_name", "cors_origin")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="serve the OpenAI API over HTTP",
        description="Serves /v1/completions, /v1/chat/completions and what belongs to them. What flags don't "
        "say is taken from the --config file, whose keys are the flags' names with _ for -.",
    )
    command.add_argument("positional", metavar="MODEL", nargs="?", help="as --model")
    command.add_argument("--config", metavar="FILE", help="settings in TOML, such as max_requests = 16")
    add_engine_flags(command, only_given=True)
    groups = {"limits": command.add_argument_group("limits"), "server": command.add_argument_group("server")}
    groups["server"].add_argument(
        "--served-model-name",
        metavar="NAME",
        action="append",
        default=argparse.SUPPRESS,
        help="what requests call the model (default: as --model says); repeatable",
    )
    groups["server"].add_argument(
        "--cors-origin",
        metavar="ORIGIN",
        action="append",
        default=argparse.SUPPRESS,
        help="of pages that may use the server, such as https://example.org, or *; repeatable",
    )
    for group, name, metavar, parse, help_ in _FLAGS:
        groups[group].add_argument(name, metavar=metavar, type=parse, default=argparse.SUPPRESS, help=help_)
    for group, name, dest, value, help_ in _SWITCHES:
        groups[group].add_argument(
            name, dest=dest, action="store_const", const=value, default=argparse.SUPPRESS, help=help_
        )
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    settings = given_settings(args, os.environ)
    say_loading(settings.model)
    from surefoot.server.run import serve

    serve(settings, told=say_inexact)


def given_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """What flags, file and environment make."""
    from surefoot.server.settings import resolve

    flags = [flag[1].removeprefix("--").replace("-", "_") for flag in _FLAGS]
    names = (*_NAMES, *_REPEATED, *flags, *(switch[2] for switch in _SWITCHES))
    flags_given = given(args, names)
    if args.positional is not None:
        if "model" in flags_given:
            raise SurefootError(f"model: {args.positional} was given beside --model; give one of them")
        flags_given["model"] = args.positional
    return resolve(flags_given, args.config, {"model": DEFAULT_MODEL}, environment)
