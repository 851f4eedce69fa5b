"""Times passes of llama.cpp for benchmarks/pass.py, in an environment that has xllamacpp or llama-cpp-python.

    PYTHON benchmarks/llama_peer.py MODEL.gguf THREADS

Says in a line of JSON what it is, then answers each line of standard input with one, until there are no more:

    {"context": [TOKEN, ...]}               these, and no others, are in the cache from now on
    {"rows": [TOKEN, ...], "wanted": N}     milliseconds of a pass over them, the last N rows' logits wanted

Uses the C interface that both packages carry, since neither's own can time a pass. All settings but the
threads are llama.cpp's defaults: flash attention, half keys and values, weights repacked for the processor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Pointer = ctypes.c_void_p
Int = ctypes.c_int32


class Params(ctypes.Structure):
    """llama_model_params or llama_context_params, whose fields differ between versions and are handed back as
    they come. Both calling conventions (x86-64's, ARM's) pass so large a structure in memory, where room to
    spare at its end does no harm."""

    _fields_ = (("room", ctypes.c_uint64 * 128),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("num_tokens", Int),
        ("tokens", ctypes.POINTER(Int)),
        ("embeddings", Pointer),
        ("positions", ctypes.POINTER(Int)),
        ("num_sequences", ctypes.POINTER(Int)),
        ("sequences", ctypes.POINTER(ctypes.POINTER(Int))),
        ("wanted", ctypes.POINTER(ctypes.c_int8)),
    )


PROTOTYPES: dict[str, tuple[Any, ...]] = {  # the result's type, then the arguments'
    "llama_backend_init": (None,),
    "llama_print_system_info": (ctypes.c_char_p,),
    "llama_model_default_params": (Params,),
    "llama_model_load_from_file": (Pointer, ctypes.c_char_p, Params),
    "llama_context_default_params": (Params,),
    "llama_init_from_model": (Pointer, Pointer, Params),
    "llama_n_ctx": (ctypes.c_uint32, Pointer),
    "llama_set_n_threads": (None, Pointer, Int, Int),
    "llama_get_memory": (Pointer, Pointer),
    "llama_memory_seq_rm": (ctypes.c_bool, Pointer, Int, Int, Int),
    "llama_batch_init": (Batch, Int, Int, Int),
    "llama_batch_free": (None, Batch),
    "llama_decode": (Int, Pointer, Batch),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), Pointer),
}


def main(path: str, threads: int) -> None:
    package, library = _library()
    llama = Llama(library, path, threads)
    _say({"peer": f"llama.cpp of {package} {version(package)}", "system": llama.system})
    for line in sys.stdin:
        request = json.loads(line)
        if "context" in request:
            llama.hold(request["context"])
            _say({})
        else:
            _say({"ms": llama.milliseconds(request["rows"], request["wanted"])})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def _library() -> tuple[str, ctypes.CDLL]:
    """The first package found, and its library with llama.cpp in it."""
    if importlib.util.find_spec("xllamacpp") is not None:
        extension = importlib.util.find_spec("xllamacpp.xllamacpp")
        assert extension is not None
        assert extension.origin is not None
        return "xllamacpp", ctypes.CDLL(extension.origin)
    package = importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        sys.exit("no llama.cpp: neither xllamacpp nor llama-cpp-python is installed here")
    return "llama-cpp-python", ctypes.CDLL(str(Path(package.origin).parent / "lib" / "libllama.so"))


class Llama:
    """A model and one sequence."""

    def __init__(self, library: ctypes.CDLL, path: str, threads: int) -> None:
        self._library = library
        for name, (result, *arguments) in PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        library.llama_backend_init()
        self.system: str = library.llama_print_system_info().decode()
        model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
        if not model:
            sys.exit(f"llama.cpp can't load {path}")
        self._context = library.llama_init_from_model(model, library.llama_context_default_params())
        if not self._context:
            sys.exit(f"llama.cpp can't make a context for {path}")
        library.llama_set_n_threads(self._context, threads, threads)
        self._limit: int = library.llama_n_ctx(self._context)
        self._held = 0

    def hold(self, tokens: Sequence[int]) -> None:
        self._truncate(0)
        if tokens:
            self._decode(tokens, 1)
        self._held = len(tokens)

    def milliseconds(self, tokens: Sequence[int], wanted: int) -> float:
        taken = self._decode(tokens, wanted)
        self._truncate(self._held)
        return taken

    def _decode(self, tokens: Sequence[int], wanted: int) -> float:
        batch = self._batch(tokens, wanted)
        began = time.perf_counter()
        code = self._library.llama_decode(self._context, batch)
        self._library.llama_get_logits(self._context)  # waits for what still runs
        taken = 1000 * (time.perf_counter() - began)
        self._library.llama_batch_free(batch)
        if code:
            sys.exit(
                f"llama_decode: {code} for {len(tokens)} rows behind {self._held}, of {self._limit} at most"
            )
        return taken

    def _batch(self, tokens: Sequence[int], wanted: int) -> Batch:
        batch: Batch = self._library.llama_batch_init(len(tokens), 0, 1)
        batch.num_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.tokens[row] = token
            batch.positions[row] = self._held + row
            batch.num_sequences[row] = 1
            batch.sequences[row][0] = 0
            batch.wanted[row] = row >= len(tokens) - wanted
        return batch

    def _truncate(self, length: int) -> None:
        memory = self._library.llama_get_memory(self._context)
        if not self._library.llama_memory_seq_rm(memory, 0, length, -1):
            sys.exit(f"llama.cpp can't forget what is behind {length} tokens")
        self._held = min(self._held, length)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
