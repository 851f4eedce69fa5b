"""Writes whole answers with llama.cpp for benchmarks/generate.py, in an environment that has xllamacpp.

    PYTHON benchmarks/llama_answers.py MODEL.gguf THREADS

Says in a line of JSON what it is, then answers each line of standard input with one, until there are no more:

    {"prompt": [TOKEN, ...], "max_tokens": N, "speculation": {...}}

asks for the likeliest tokens behind a prompt, and is told these tokens (an end of the text among them) and
llama.cpp's own timings. speculation: type, a name of common_speculative_type, and what of its settings isn't
llama.cpp's default: of an n-gram drafter by their names, of a draft model its file as model.

Each answer has a server of its own: ngram-mod drafts from whatever its server has written, which would be
the same answer in an earlier repetition.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from importlib import import_module
from importlib.metadata import version
from typing import Any

LONGEST_DRAFT = 64  # tokens; that of ngram-mod


def main(path: str, threads: int) -> None:
    try:
        xllamacpp: Any = import_module("xllamacpp")
    except ModuleNotFoundError:
        sys.exit("no llama.cpp: xllamacpp is not installed here")
    _say({"peer": f"llama.cpp of xllamacpp {version('xllamacpp')}", "system": xllamacpp.get_system_info()})
    for line in sys.stdin:
        request = json.loads(line)
        params = _params(xllamacpp, path, threads, request)
        _say(_complete(xllamacpp.Server(params), request["prompt"], request["max_tokens"]))


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def _params(xllamacpp: Any, path: str, threads: int, request: dict[str, Any]) -> Any:
    """All settings of which nothing is said here are llama.cpp's defaults."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = len(request["prompt"]) + request["max_tokens"] + LONGEST_DRAFT
    params.verbosity = 0
    speculative = params.speculative
    for used in (params, speculative.draft):
        used.cpuparams.n_threads = used.cpuparams_batch.n_threads = threads
    settings = dict(request["speculation"])
    kind = settings.pop("type")
    speculative.types = [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind.upper()}"]]
    speculative.draft.mparams.path = settings.pop("model", "")
    for name, value in settings.items():
        setattr(getattr(speculative, kind), name, value)
    return params


def _complete(server: Any, prompt: list[int], max_tokens: int) -> dict[str, object]:
    """Over HTTP, since the package's own calls tell no tokens. All the prompt is read, and timed apart."""
    body = {
        "prompt": prompt,
        "n_predict": max_tokens,
        "temperature": 0,
        "samplers": ["temperature"],  # the others would only take time
        "cache_prompt": False,
        "return_tokens": True,
    }
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"llama.cpp can't answer: {error.read().decode()}")
    if answer["timings"]["prompt_n"] != len(prompt):
        sys.exit(f"llama.cpp read {answer['timings']['prompt_n']} tokens of a prompt of {len(prompt)}")
    return {"tokens": answer["tokens"], "timings": answer["timings"]}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
