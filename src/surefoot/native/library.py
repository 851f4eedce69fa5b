"""The compiled kernels, loaded: each function of kernels/surefoot.h with its arguments checked."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surefoot.native import compiler, isa
from surefoot.native.arrays import Bytes, Floats, aligned, check, pointer
from surefoot.native.isa import Isa
from surefoot.native.model import BLOCKS, Activation, Format, Linear, Matrix, Model
from surefoot.native.passes import Pass
from surefoot.native.structs import SfLinear, SfMatrix, SfModel, SfPass
from surefoot.types import SurefootError

PACKAGED = Path(__file__).parent / "prebuilt"  # in a wheel that was built with libraries
PANEL = 32  # outputs that are packed together

SIGNATURES = {
    "sf_ready": (c_int,),
    "sf_strip_bytes": (c_int64, c_int, c_int),
    "sf_matrix_bytes": (c_int64, c_int, c_int, c_int),
    "sf_pack_blocks": (None, c_int, c_int, c_int, c_void_p, c_void_p),
    "sf_pack_int8": (None, c_int, c_int, c_int, c_void_p, c_void_p),
    "sf_unpack": (None, POINTER(SfMatrix), c_int, c_void_p),
    "sf_pool_new": (c_void_p, c_int),
    "sf_pool_free": (None, c_void_p),
    "sf_forward": (c_int, c_void_p, POINTER(SfModel), POINTER(SfPass)),
    "sf_linear_forward": (c_int, c_void_p, POINTER(SfLinear), c_int, c_void_p, c_void_p),
    "sf_rms_norm": (None, c_void_p, c_void_p, c_int, c_float, c_void_p),
    "sf_gate": (None, c_int, c_void_p, c_void_p, c_int, c_void_p),
    "sf_rotate": (None, c_void_p, c_void_p, c_void_p, c_int),
}
"""What each function returns, and takes."""

log = logging.getLogger("surefoot")


@cache
def _first_usable(folder: Path, isas: tuple[Isa, ...], *, asked: bool) -> Library | None:
    reasons: list[str] = []
    for each in isas:
        try:
            library = open_library(each, folder)
        except SurefootError as error:
            if asked:
                raise
            reasons.append(str(error))
        else:
            if reasons:
                log.warning("%s: running on %s instead", "; ".join(reasons), each.name)
            return library
    if reasons:
        said = "; ".join(dict.fromkeys(reasons))  # one reason may hold for all
        log.warning("%s: running on PyTorch, several times slower on small models", said)
    return None


def native_library(folder: Path) -> Library | None:
    """The kernels for this processor, the same object every time: packaged, or else compiled and kept in
    `folder`. None, and one warning, where they can't be had.

    $SUREFOOT_ISA names the instruction set instead, or "pytorch" for none; what is named and can't be had
    raises SurefootError.
    """
    asked = os.environ.get(isa.VARIABLE)
    return _first_usable(folder, isa.candidates(asked), asked=bool(asked))


def open_library(wanted: Isa, folder: Path) -> Library:
    """The kernels for one instruction set. Raises SurefootError, one line, where they can't be had."""
    prebuilt = packaged(wanted, PACKAGED)
    return Library(wanted, prebuilt if prebuilt.is_file() else compiler.compiled(wanted, folder))


def packaged(isa: Isa, folder: Path) -> Path:
    """Where the library of an instruction set lies among those that a wheel brings."""
    return folder / f"libsurefoot-{isa.name}.so"


class Library:
    """The kernels for one instruction set, which this process may use."""

    def __init__(self, isa: Isa, path: Path) -> None:
        """Raises SurefootError where the file can't be loaded, or the system refuses the instructions."""
        self.isa, self.path = isa, path
        self._pools: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()
        try:
            self.functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise SurefootError(" ".join(str(error).split())) from error  # which names the file
        for name, (returned, *taken) in SIGNATURES.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = returned, taken
        if not self.functions.sf_ready():
            raise SurefootError(f"{isa.name}: the system refuses these instructions")

    def pool(self, threads: int) -> Pool:
        """The threads that all models of this library take turns with: a target's would otherwise still be
        spinning while its draft's begin."""
        pool = self._pools.get(threads)
        if pool is None:
            pool = self._pools[threads] = Pool(self.functions, threads)
        return pool

    def matrix_bytes(self, format: Format, outputs: int, inputs: int) -> int:
        if outputs < 1 or inputs < 1:
            raise ValueError(f"a matrix of {outputs} × {inputs}; both are to be 1 or more")
        weights, _ = BLOCKS.get(format, (1, 0))
        if inputs % weights:
            raise ValueError(f"inputs: {inputs}; {format.name} has a multiple of {weights}")
        size: int = self.functions.sf_matrix_bytes(format, outputs, inputs)
        return size

    def matrix(self, format: Format, outputs: int, inputs: int, data: Bytes) -> Matrix:
        """A matrix whose packed weights are there already."""
        check("data", data, "uint8", self.matrix_bytes(format, outputs, inputs))
        if data.ctypes.data % 2:
            raise ValueError(f"data: at the odd address {data.ctypes.data:#x}; it is to be an even one")
        return Matrix(format, outputs, inputs, data)

    def pack_blocks(
        self, format: Format, outputs: int, inputs: int, source: Bytes, threads: int = 1
    ) -> Bytes:
        """Packs GGUF blocks, [outputs · bytes of a row] as in the file."""
        if format not in BLOCKS:
            raise ValueError(f"format: {format.name} is made by rounding, not of blocks")
        size = self.matrix_bytes(format, outputs, inputs)
        weights, num_bytes = BLOCKS[format]
        row = inputs // weights * num_bytes
        check("source", source, "uint8", outputs * row)
        return self._pack(self.functions.sf_pack_blocks, format, outputs, inputs, source, size, threads)

    def pack_int8(self, format: Format, source: Floats, threads: int = 1) -> Bytes:
        """Rounds weights, [outputs, inputs], to 8 bits."""
        if format in BLOCKS:
            raise ValueError(f"format: {format.name} is made of blocks, not by rounding")
        outputs, inputs = source.shape
        check("source", source, "float32", outputs, inputs)
        size = self.matrix_bytes(format, outputs, inputs)
        return self._pack(self.functions.sf_pack_int8, format, outputs, inputs, source, size, threads)

    def _pack(
        self,
        pack: Callable[..., None],
        format: Format,
        outputs: int,
        inputs: int,
        source: NDArray[np.generic],
        size: int,
        threads: int,
    ) -> Bytes:
        """Every thread takes its share of panels: they lie one after the other, in the source as here."""
        target = aligned(size)
        panels = -(-outputs // PANEL)
        share = -(-panels // threads) * PANEL
        source_row, target_panel = source.nbytes // outputs, size // panels

        def run(first: int) -> None:
            pack(
                format,
                min(share, outputs - first),
                inputs,
                source.ctypes.data + first * source_row,
                target.ctypes.data + first // PANEL * target_panel,
            )

        with ThreadPoolExecutor(threads) as workers:
            list(workers.map(run, range(0, outputs, share)))
        return target

    def unpack(self, matrix: Matrix, outputs: Sequence[int] | None = None) -> Floats:
        """The weights of some outputs, or of all, [outputs, inputs]."""
        wanted = range(matrix.outputs) if outputs is None else outputs
        if len(wanted) and not 0 <= min(wanted) <= max(wanted) < matrix.outputs:
            raise ValueError(f"outputs: {min(wanted)} to {max(wanted)}; allowed is 0 to {matrix.outputs - 1}")
        weights = np.empty((len(wanted), matrix.inputs), np.float32)
        struct = matrix.struct
        for output, row in zip(wanted, weights, strict=True):
            self.functions.sf_unpack(byref(struct), output, row.ctypes.data)
        return weights

    def linear_forward(self, pool: Pool, linear: Linear, x: Floats) -> Floats:
        """x Wᵀ + b, [rows, outputs]."""
        rows = len(x)
        check("x", x, "float32", rows, linear.inputs)
        y = np.empty((rows, linear.outputs), np.float32)
        with pool.held() as handle:
            code = self.functions.sf_linear_forward(
                handle, byref(linear.struct), rows, pointer(x), pointer(y)
            )
        if code:
            raise MemoryError(f"no memory for {rows} rows of {linear.inputs} → {linear.outputs}")
        return y

    def forward(self, pool: Pool, model: Model, pass_: Pass) -> None:
        """Runs a pass, which leaves its rows' keys and values in the cache and the logits in `pass_`."""
        struct = pass_.struct(model)
        with pool.held() as handle:
            code = self.functions.sf_forward(handle, byref(model.struct), byref(struct))
        if code:
            raise MemoryError(f"no memory for a pass of {struct.rows} rows")

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        """x / rms(x) · weight, of one row."""
        check("x", x, "float32", x.size)
        check("weight", weight, "float32", x.size)
        y = np.empty_like(x)
        self.functions.sf_rms_norm(pointer(x), pointer(weight), x.size, eps, pointer(y))
        return y

    def gate(self, activation: Activation, gate: Floats, up: Floats) -> Floats:
        """activation(gate) · up, of one row."""
        check("gate", gate, "float32", gate.size)
        check("up", up, "float32", gate.size)
        y = np.empty_like(gate)
        self.functions.sf_gate(activation, pointer(gate), pointer(up), gate.size, pointer(y))
        return y

    def rotate(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        """One head, rotated: pairs (i, i + n / 2)."""
        check("x", x, "float32", 2 * cos.size)
        check("cos", cos, "float32", cos.size)
        check("sin", sin, "float32", cos.size)
        y = x.copy()
        self.functions.sf_rotate(pointer(y), pointer(cos), pointer(sin), y.size)
        return y


class Pool:
    """Threads for kernels, the caller's among them; they end when the pool is collected."""

    def __init__(self, functions: ctypes.CDLL, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"threads: {threads}; allowed is 1 or more")
        self.functions, self.threads = functions, threads
        self._start()

    def _start(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._handle: int | None = self.functions.sf_pool_new(self.threads)
        if self._handle is None:
            raise SurefootError(f"threads: {self.threads} can't be had; the system refuses so many")
        weakref.finalize(self, _free, self.functions, self._handle, self._process)

    @contextmanager
    def held(self) -> Iterator[int | None]:
        """The pool's handle, for one caller at a time."""
        if self._process != os.getpid():  # a fork has no threads but the one that forked
            self._start()
        with self._lock:
            yield self._handle


def _free(functions: ctypes.CDLL, handle: int, process: int) -> None:
    if process == os.getpid():  # a fork would wait for threads that it hasn't
        functions.sf_pool_free(handle)
