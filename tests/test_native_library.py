"""What Python hands to the kernels: the same structs as in C, and nothing that would be a crash there."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.native import structs
from surefoot.native.arrays import Bytes, Floats, aligned
from surefoot.native.compiler import KERNELS, find_compiler
from surefoot.native.library import PANEL, Library
from surefoot.native.model import BLOCKS, Activation, Format, Layer, Linear, Matrix, Model
from surefoot.native.passes import Pass, key_stride
from tests.native import COMPILER, libraries

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

NAMES = {
    structs.SfMatrix: "sf_matrix",
    structs.SfLinear: "sf_linear",
    structs.SfLayer: "sf_layer",
    structs.SfModel: "sf_model",
    structs.SfPass: "sf_pass",
}


@pytest.fixture(scope="module")
def best() -> Library:
    return libraries()[0]


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# ---- the contract, as C has it ----


def printed_by_c(folder: Path, lines: list[str]) -> list[str]:
    """What a C program that sees surefoot.h prints."""
    body = "\n".join(lines)
    source = f'#include <stdio.h>\n#include "surefoot.h"\nint main(void) {{\n{body}\n}}\n'
    (folder / "told.c").write_text(source)
    command = [*find_compiler(), "-std=gnu11", f"-I{KERNELS}", "told.c", "-o", "told"]
    subprocess.run(command, cwd=folder, check=True)
    return subprocess.run([folder / "told"], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("struct", NAMES, ids=NAMES.get)
def test_a_struct_is_laid_out_as_in_c(tmp_path: Path, struct: type[ctypes.Structure]) -> None:
    name, fields = NAMES[struct], [field[0] for field in struct._fields_]
    lines = [f'printf("%zu ", sizeof({name}));']
    for field in fields:
        lines.append(f'printf("%zu %zu ", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
    here = [ctypes.sizeof(struct)]
    for field in fields:
        here += [getattr(struct, field).offset, getattr(struct, field).size]
    assert printed_by_c(tmp_path, lines) == [str(number) for number in here]


def test_the_numbers_are_those_of_c(tmp_path: Path) -> None:
    names = [*Format.__members__, "NUM_FORMATS", *Activation.__members__, "MAX_PARTS", "PANEL"]
    lines = [f'printf("%d ", {name});' for name in names]
    here = [*Format, len(Format), *Activation, structs.MAX_PARTS, PANEL]
    assert printed_by_c(tmp_path, lines) == [str(int(number)) for number in here]


# ---- weights ----


def blocks(format: Format, outputs: int, inputs: int, seed: int = 0) -> Bytes:
    """Blocks of random bytes: not weights that anything has, but a pattern of bits as good as any."""
    weights, num_bytes = BLOCKS[format]
    return np.random.default_rng(seed).integers(0, 256, outputs * inputs // weights * num_bytes, np.uint8)


@pytest.mark.parametrize("outputs", [1, 32, 33, 200])
@pytest.mark.parametrize("threads", [2, 3, 7, 64])
def test_threads_pack_what_one_packs(best: Library, outputs: int, threads: int) -> None:
    source, weights = blocks(Format.Q6_K, outputs, 512), drawn(outputs, 100)
    one = best.pack_blocks(Format.Q6_K, outputs, 512, source)
    assert np.array_equal(best.pack_blocks(Format.Q6_K, outputs, 512, source, threads), one)
    rounded = best.pack_int8(Format.INT8_64, weights)
    assert np.array_equal(best.pack_int8(Format.INT8_64, weights, threads), rounded)


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_weights_come_back_within_half_a_step(library: Library) -> None:
    weights = drawn(40, 130)
    for format, group in ((Format.INT8_64, 64), (Format.INT8_32, 32)):
        matrix = library.matrix(format, 40, 130, library.pack_int8(format, weights))
        padded = np.zeros((40, 192), np.float32)
        padded[:, :130] = np.abs(weights)
        largest = padded.reshape(40, -1, group).max(axis=2).repeat(group, axis=1)[:, :130]
        step = largest / 127 * (1 + 2**-7)  # bf16 has eight bits
        assert (np.abs(library.unpack(matrix) - weights) <= step * 0.501).all()


@pytest.mark.parametrize("format", BLOCKS, ids=lambda format: format.name)
def test_the_size_of_blocks_is_that_of_a_file(format: Format) -> None:
    gguf = pytest.importorskip("gguf")
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format.name]] == BLOCKS[format]


# ---- products and rows ----


def int8(library: Library, outputs: int, inputs: int, seed: int = 0) -> Matrix:
    packed = library.pack_int8(Format.INT8_64, drawn(outputs, inputs, seed=seed))
    return library.matrix(Format.INT8_64, outputs, inputs, packed)


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_a_product_is_that_of_the_unpacked_weights(library: Library) -> None:
    linear = Linear((int8(library, 48, 130), int8(library, 20, 130, seed=1)), drawn(68, seed=2))
    x = drawn(5, 130, seed=3)
    y = library.linear_forward(library.pool(2), linear, x)
    weights = np.concatenate([library.unpack(part) for part in linear.parts])
    assert linear.bias is not None
    np.testing.assert_allclose(y, x.astype(float) @ weights.T + linear.bias, rtol=0, atol=0.03)


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_the_functions_of_one_row_are_what_they_are_called(library: Library) -> None:
    x, weight, up = drawn(72), drawn(72, seed=1), drawn(72, seed=2)
    wide = x.astype(float)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    expected = wide / np.sqrt((wide**2).mean() + 1e-5) * weight
    close(library.rms_norm(x, weight, 1e-5), expected)
    silu = wide / (1 + np.exp(-wide)) * up
    close(library.gate(Activation.SILU, x, up), silu)
    gelu = wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) * up
    close(library.gate(Activation.GELU_TANH, x, up), gelu)
    angle = drawn(36, seed=3)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = x[:36], x[36:]
    rotated = np.concatenate((first * cos - second * sin, second * cos + first * sin))
    close(library.rotate(x, cos, sin), rotated)


# ---- a model ----


def tiny(library: Library) -> Model:
    """Two heads of eight numbers over one key head."""
    layer = Layer(
        attention_norm=drawn(16),
        mlp_norm=drawn(16, seed=1),
        qkv=Linear((int8(library, 16, 16), int8(library, 8, 16), int8(library, 8, 16, seed=1))),
        output=Linear((int8(library, 16, 16, seed=2),)),
        gate_up=Linear((int8(library, 24, 16), int8(library, 24, 16, seed=1))),
        down=Linear((int8(library, 16, 24),)),
    )
    return Model(
        layers=(layer,),
        norm=drawn(16, seed=2),
        head=Linear((int8(library, 50, 16, seed=3),)),
        heads=2,
        kv_heads=1,
        head_dim=8,
        activation=Activation.SILU,
        norm_eps=1e-5,
        attention_scale=8**-0.5,
    )


def three_rows() -> Pass:
    """Three tokens of one sequence, nothing before them."""
    cache = (1, 4, 1, key_stride(8))
    return Pass(
        x=drawn(3, 16, seed=4),
        cos=np.ones((1, 3, 4), np.float32),
        sin=np.zeros((1, 3, 4), np.float32),
        slots=np.array([2, 0, 3], np.int32),
        first_key=np.zeros(3, np.int64),
        num_keys=np.array([1, 2, 3], np.int32),
        keys=np.zeros(cache, np.float16),
        values=np.zeros(cache, np.float16),
        wanted_rows=np.array([2], np.int32),
        logits=np.full((1, 50), np.nan, np.float32),
    )


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_a_pass_writes_logits_and_its_own_keys(library: Library) -> None:
    pass_ = three_rows()
    library.forward(library.pool(2), tiny(library), pass_)
    assert np.isfinite(pass_.logits).all()
    assert [bool(pass_.keys[0, slot].any()) for slot in range(4)] == [True, False, True, True]


def test_objects_outlive_the_names_of_their_arrays(best: Library) -> None:
    pool, model = best.pool(1), tiny(best)
    first, second = three_rows(), three_rows()
    best.forward(pool, model, first)
    gc.collect()
    _ = [np.full(1 << 12, 255, np.uint8) for _ in range(1000)]  # into whatever has been freed
    best.forward(pool, model, second)
    assert np.array_equal(first.logits, second.logits)


SHORT, DOUBLE = np.zeros(3, np.float32), np.zeros((3, 16))
WRONG_PASS: dict[str, dict[str, Any]] = {
    "x: float64": {"x": DOUBLE},
    "cos: ": {"cos": np.ones((2, 3, 4), np.float32)},
    "sin: ": {"sin": np.ones((1, 3, 8), np.float32)[:, :, ::2]},
    "slots: 0 to 4; allowed is 0 to 3": {"slots": np.array([0, 1, 4], np.int32)},
    "slots: -1": {"slots": np.array([0, 1, -1], np.int32)},
    "slots: int64": {"slots": np.zeros(3, np.int64)},
    "first_key: ": {"first_key": np.full(3, -1, np.int64)},
    "first_key [+] num_keys: 2 to 4; allowed is 1 to 3": {"first_key": np.ones(3, np.int64)},
    "num_keys: 0 to 3": {"num_keys": np.array([0, 2, 3], np.int32)},
    "keys: ": {"keys": np.zeros((1, 4, 1, 8), np.float16)},
    "values: ": {"values": np.zeros((1, 3, 1, 16), np.float16)},
    "wanted_rows: 3 to 3; allowed is 0 to 2": {"wanted_rows": np.array([3], np.int32)},
    "wanted_rows: .1, 0.; they are to ascend": {
        "wanted_rows": np.array([1, 0], np.int32),
        "logits": np.empty((2, 50), np.float32),
    },
    "logits: ": {"logits": np.zeros((1, 49), np.float32)},
}


@pytest.mark.parametrize("message", WRONG_PASS)
def test_a_pass_that_does_not_fit_is_refused(best: Library, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        best.forward(best.pool(1), tiny(best), replace(three_rows(), **WRONG_PASS[message]))
    assert len(str(caught.value).splitlines()) == 1


WRONG_MODEL: dict[str, Callable[[Model], Model]] = {
    "heads: 3; it is to be a multiple of kv_heads, 2": lambda m: replace(m, heads=3, kv_heads=2),
    "head_dim: 7": lambda m: replace(m, head_dim=7),
    "norm: ": lambda m: replace(m, norm=SHORT),
    "layer 0 mlp_norm: ": lambda m: replace(m, layers=[replace(m.layers[0], mlp_norm=SHORT)]),
    "layer 0 q_norm: ": lambda m: replace(m, layers=[replace(m.layers[0], q_norm=SHORT)]),
    "layer 0 qkv: 16 → 50; it is to be 16 → 16 [+] 8 [+] 8": lambda m: replace(
        m, layers=[replace(m.layers[0], qkv=m.head)]
    ),
    "layer 0 output: ": lambda m: replace(m, layers=[replace(m.layers[0], output=m.head)]),
    "layer 0 gate_up: ": lambda m: replace(m, layers=[replace(m.layers[0], gate_up=m.head)]),
    "layer 0 down: 24 → 8; it is to be 24 → 16": lambda m: replace(
        m, layers=[replace(m.layers[0], down=Linear((replace(m.layers[0].down.parts[0], outputs=8),)))]
    ),
    "layers: 0; a model has 1 or more": lambda m: replace(m, layers=[]),
    "layer 0 window, rope: -1, 0": lambda m: replace(m, layers=[replace(m.layers[0], window=-1)]),
}


@pytest.mark.parametrize("message", WRONG_MODEL)
def test_a_model_that_does_not_fit_together_is_refused(best: Library, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        WRONG_MODEL[message](tiny(best))
    assert len(str(caught.value).splitlines()) == 1


ONES = np.ones(8, np.float32)
WRONG_CALLS: dict[str, Callable[[Library], object]] = {
    "a matrix of 0 × 32": lambda lib: lib.matrix_bytes(Format.Q4_0, 0, 32),
    "inputs: 48; Q4_0 has a multiple of 32": lambda lib: lib.matrix_bytes(Format.Q4_0, 16, 48),
    "data: uint8": lambda lib: lib.matrix(Format.Q4_0, 16, 32, aligned(3)),
    "data: at the odd address": lambda lib: lib.matrix(
        Format.Q4_0, 16, 32, aligned(lib.matrix_bytes(Format.Q4_0, 16, 32) + 1)[1:]
    ),
    "source: uint8": lambda lib: lib.pack_blocks(Format.Q4_0, 16, 32, aligned(16 * 17)),
    "format: INT8_64 is made by": lambda lib: lib.pack_blocks(Format.INT8_64, 16, 32, aligned(64)),
    "format: Q4_K is made of": lambda lib: lib.pack_int8(Format.Q4_K, drawn(2, 256)),
    "source: float64": lambda lib: lib.pack_int8(Format.INT8_64, np.ones((2, 2))),  # type: ignore[arg-type]
    "parts: 4; allowed is 1 to 3": lambda lib: Linear((int8(lib, 2, 2),) * 4),
    "parts: 0": lambda lib: Linear(()),
    "inputs: .2, 3.": lambda lib: Linear((int8(lib, 2, 2), int8(lib, 2, 3))),
    "bias: ": lambda lib: Linear((int8(lib, 2, 2),), ONES),
    "x: float32 .1, 3.": lambda lib: lib.linear_forward(lib.pool(1), Linear((int8(lib, 2, 2),)), drawn(1, 3)),
    "weight: ": lambda lib: lib.rms_norm(SHORT, ONES, 1e-5),
    "up: ": lambda lib: lib.gate(Activation.SILU, SHORT, ONES),
    "x: ": lambda lib: lib.rotate(ONES, ONES, ONES),
    "sin: ": lambda lib: lib.rotate(ONES, ONES[:4], ONES),
    "threads: 0": lambda lib: lib.pool(0),
}


@pytest.mark.parametrize("message", WRONG_CALLS)
def test_a_call_that_does_not_fit_is_refused(best: Library, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        WRONG_CALLS[message](best)
    assert len(str(caught.value).splitlines()) == 1
