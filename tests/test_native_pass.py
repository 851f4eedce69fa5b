"""A pass of the native core: what it computes, and that a row's bits depend on its own tokens alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.native.arrays import Floats
from surefoot.native.library import Library, Pool
from surefoot.native.model import Activation, Format, Layer, Linear, Matrix, Model
from surefoot.native.passes import Pass, key_stride
from tests.native import COMPILER, libraries

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

Doubles = NDArray[np.float64]
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 100, 576)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)


def bits(x: Floats) -> list[int]:
    found: list[int] = x.view(np.uint32).ravel().tolist()
    return found


# ---- one row's numbers ----


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.isa.name)
def test_a_number_that_is_none_is_not_lost_in_an_exponential(library: Library) -> None:
    gate = np.array([1, np.nan, -2], np.float32)
    for activation in Activation:
        got = library.gate(activation, gate, np.ones(3, np.float32))
        assert np.isnan(got).tolist() == [False, True, False]


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm(n: int) -> None:
    x, weight = drawn(n, seed=n, scale=3), drawn(n, seed=n + 1)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean() + np.float32(1e-5)) * weight
    for library in libraries():
        np.testing.assert_allclose(library.rms_norm(x, weight, 1e-5), wanted, rtol=1e-6)


def gated(activation: Activation, x: Doubles) -> Doubles:
    inner = x if activation is Activation.SILU else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    y: Doubles = x / (1 + np.exp(-inner))
    return y


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("n", LENGTHS)
def test_gate(activation: Activation, n: int) -> None:
    gate, up = drawn(n, seed=n, scale=4), drawn(n, seed=n + 1)
    for library in libraries():
        wanted = gated(activation, gate.astype(np.float64)) * up
        np.testing.assert_allclose(library.gate(activation, gate, up), wanted, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("activation", Activation)
def test_gates_far_out(activation: Activation) -> None:
    gate = np.array([-1e30, -200, -0.0, 0, 200, 1e30, np.nan], np.float32)
    for library in libraries():
        found = library.gate(activation, gate, np.ones_like(gate))
        np.testing.assert_allclose(found[2:], [0, 0, 200, 1e30, np.nan], rtol=1e-6)
        assert abs(found[0]) < 1e-7
        assert abs(found[1]) < 1e-30


@pytest.mark.parametrize("half", [1, 8, 15, 16, 17, 40, 64])
def test_rotate(half: int) -> None:
    x, angle = drawn(2 * half, seed=half), drawn(half, seed=1, scale=9).astype(np.float64)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    turned = (x[:half] + 1j * x[half:].astype(np.float64)) * (cos + 1j * sin.astype(np.float64))
    for library in libraries():
        found = library.rotate(x, cos, sin)
        np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag]), rtol=0, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 70), seed=st.integers(0, 99), activation=st.sampled_from(Activation))
def test_an_elements_bits_dont_depend_on_its_place(n: int, seed: int, activation: Activation) -> None:
    x, up = drawn(96, seed=seed, scale=5), drawn(96, seed=seed + 1)
    best, *others = libraries()
    whole = best.gate(activation, x, up)
    assert bits(best.gate(activation, x[:n].copy(), up[:n].copy())) == bits(whole[:n])
    for library in others:
        assert bits(library.gate(activation, x, up)) == bits(whole)
        assert bits(library.rms_norm(x[:n], up[:n], 1e-6)) == bits(best.rms_norm(x[:n], up[:n], 1e-6))
        turned = [each.rotate(x, up[:48], x[:48]) for each in (library, best)]
        assert bits(turned[0]) == bits(turned[1])


# ---- a decoder, in float64 ----


@dataclass(frozen=True)
class Family:
    """What differs from family to family, in small."""

    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 16
    hidden: int = 48
    intermediate: int = 96
    vocabulary: int = 70
    layers: int = 2
    activation: Activation = Activation.SILU
    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    windows: tuple[int, ...] = (0, 0)
    ropes: tuple[int, ...] = (0, 0)
    format: Format = Format.INT8_64


FAMILIES = {
    "llama": Family(),
    "qwen2": Family(heads=6, kv_heads=2, hidden=64, biases=True, format=Format.INT8_32),
    "qwen3": Family(heads=4, kv_heads=4, head_dim=24, head_norms=True),
    "gemma3": Family(
        heads=2,
        head_dim=32,
        hidden=80,
        intermediate=130,
        layers=3,
        activation=Activation.GELU_TANH,
        head_norms=True,
        post_norms=True,
        windows=(5, 70, 0),
        ropes=(0, 0, 1),
    ),
}


@cache
def weights(family: Family) -> Model:
    """The same model for every library: packing doesn't depend on the instruction set."""
    library, seeds = libraries()[0], iter(range(10**6))

    def matrix(outputs: int, inputs: int) -> Matrix:
        source = drawn(outputs, inputs, seed=next(seeds), scale=inputs**-0.5)
        return library.matrix(family.format, outputs, inputs, library.pack_int8(family.format, source))

    def linear(inputs: int, *outputs: int, bias: bool = False) -> Linear:
        added = drawn(sum(outputs), seed=next(seeds), scale=0.5) if bias else None
        return Linear([matrix(each, inputs) for each in outputs], added)

    def norm(width: int, wanted: bool = True) -> Floats | None:
        return 1 + drawn(width, seed=next(seeds), scale=0.1) if wanted else None

    def layer(window: int, rope: int) -> Layer:
        queries, keys = family.heads * family.head_dim, family.kv_heads * family.head_dim
        hidden = family.hidden
        return Layer(
            attention_norm=1 + drawn(hidden, seed=next(seeds), scale=0.1),
            mlp_norm=1 + drawn(hidden, seed=next(seeds), scale=0.1),
            qkv=linear(hidden, queries, keys, keys, bias=family.biases),
            output=linear(queries, hidden),
            gate_up=linear(hidden, family.intermediate, family.intermediate),
            down=linear(family.intermediate, hidden),
            q_norm=norm(family.head_dim, family.head_norms),
            k_norm=norm(family.head_dim, family.head_norms),
            attention_post_norm=norm(hidden, family.post_norms),
            mlp_post_norm=norm(hidden, family.post_norms),
            window=window,
            rope=rope,
        )

    return Model(
        layers=[layer(*each) for each in zip(family.windows, family.ropes, strict=True)],
        norm=1 + drawn(family.hidden, seed=next(seeds), scale=0.1),
        head=linear(family.hidden, family.vocabulary),
        heads=family.heads,
        kv_heads=family.kv_heads,
        head_dim=family.head_dim,
        activation=family.activation,
        norm_eps=1e-6,
        attention_scale=family.head_dim**-0.5,
    )


def embedded(model: Model, tokens: Sequence[int]) -> Floats:
    return drawn(50, model.hidden, seed=7)[[token % 50 for token in tokens]]


def rotation(model: Model, positions: Sequence[int]) -> tuple[Floats, Floats]:
    bases = np.array([1e4, 1e6])[: model.rotations, None, None]
    exponents = np.arange(model.head_dim // 2) / (model.head_dim // 2)
    angles = np.array(positions)[None, :, None] * bases**-exponents
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def norm64(x: Doubles, weight: Floats, eps: float) -> Doubles:
    y: Doubles = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return y


def expected(library: Library, model: Model, tokens: Sequence[int]) -> Doubles:
    """Logits after every token of a sequence."""
    n, eps, group = len(tokens), model.norm_eps, model.heads // model.kv_heads
    heads, kv_heads, half = model.heads, model.kv_heads, model.head_dim // 2
    cos, sin = rotation(model, range(n))

    def apply(linear: Linear, x: Doubles) -> Doubles:
        y = np.concatenate([x @ library.unpack(part).astype(np.float64).T for part in linear.parts], -1)
        return y if linear.bias is None else y + linear.bias

    x = embedded(model, tokens).astype(np.float64)
    for layer in model.layers:
        qkv = apply(layer.qkv, norm64(x, layer.attention_norm, eps)).reshape(n, heads + 2 * kv_heads, -1)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = norm64(q, layer.q_norm, eps), norm64(k, layer.k_norm, eps)
        turn = (cos + 1j * sin)[layer.rope][:, None]
        q, k = ((y[..., :half] + 1j * y[..., half:]) * turn for y in (q, k))
        scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, group, 1).conj()).real * model.attention_scale
        behind = np.arange(n)[:, None] - np.arange(n)
        scores[:, (behind < 0) | (behind >= (layer.window or n))] = -np.inf
        mix = np.exp(scores - scores.max(-1, keepdims=True))
        mix /= mix.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", mix, np.repeat(v, group, 1)).reshape(n, -1)
        y = apply(layer.output, mixed)
        x = x + (y if layer.attention_post_norm is None else norm64(y, layer.attention_post_norm, eps))
        gate, up = np.split(apply(layer.gate_up, norm64(x, layer.mlp_norm, eps)), 2, -1)
        y = apply(layer.down, gated(model.activation, gate) * up)
        x = x + (y if layer.mlp_post_norm is None else norm64(y, layer.mlp_post_norm, eps))
    return apply(model.head, norm64(x, model.norm, eps))


# ---- passes ----


@dataclass
class Runner:
    """Passes over one cache, in which every token has a slot of its own."""

    library: Library
    pool: Pool
    model: Model
    num_slots: int = 1400

    def __post_init__(self) -> None:
        shape = (len(self.model.layers), self.num_slots, self.model.kv_heads, key_stride(self.model.head_dim))
        self.keys, self.values = np.zeros(shape, np.float16), np.zeros(shape, np.float16)
        self.places = np.random.default_rng(self.pool.threads).permutation(self.num_slots).astype(np.int32)

    def run(self, paths: Sequence[Sequence[int]], wanted: Sequence[int]) -> Floats:
        """Rows, each the path that it ends; a token of a path is at once its number and its slot's."""
        lists: list[Sequence[int]] = []
        first_keys: list[int] = []
        for path in paths:
            if lists and len(path) == len(lists[-1]) + 1 and path[:-1] == lists[-1]:
                lists[-1] = path
            else:
                lists.append(path)
            first_keys.append(sum(map(len, lists[:-1])))
        cos, sin = rotation(self.model, [len(path) - 1 for path in paths])
        logits = np.full((len(wanted), self.model.vocabulary), np.nan, np.float32)
        pass_ = Pass(
            x=embedded(self.model, [path[-1] for path in paths]),
            cos=cos,
            sin=sin,
            slots=self.places[np.concatenate([np.array(path) for path in lists])],
            first_key=np.array(first_keys, np.int64),
            num_keys=np.array([len(path) for path in paths], np.int32),
            keys=self.keys,
            values=self.values,
            wanted_rows=np.array(wanted, np.int32),
            logits=logits,
        )
        self.library.forward(self.pool, self.model, pass_)
        return logits


def chain(length: int, before: int = 0) -> list[range]:
    return [range(end) for end in range(before + 1, length + 1)]


def runners(model: Model) -> Iterator[Runner]:
    """Every library with one thread, two and three."""
    for library in libraries():
        for threads in (1, 2, 3):
            yield Runner(library, library.pool(threads), model)


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_decoder(name: str) -> None:
    model, library = weights(FAMILIES[name]), libraries()[0]
    found = Runner(library, library.pool(2), model).run(chain(90), range(90))
    wanted = expected(library, model, range(90))
    assert np.abs(found - wanted).max() < 4e-3 * np.abs(wanted).max()
    assert np.abs(found - wanted).mean() < 4e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_those_of_one_row_at_a_time(name: str) -> None:
    """In one pass or many, on any number of threads and instruction set, wherever keys lie."""
    model = weights(FAMILIES[name])
    first, *others = runners(model)
    alone = np.concatenate([first.run([path], [0]) for path in chain(80)])
    for runner in others:
        runner.run(chain(33), [])
        rest = runner.run(chain(80, before=33), range(47))
        assert bits(rest) == bits(alone[33:]), (runner.library.isa.name, runner.pool.threads)


def test_a_long_prompt_goes_through_in_parts() -> None:
    """More rows than a pass takes at once: the last ones still see the first ones' keys."""
    model, library = weights(FAMILIES["llama"]), libraries()[0]
    runner = Runner(library, library.pool(2), model)
    wanted = [0, 511, 512, 600, 1029, 1199]
    at_once = runner.run(chain(1200), wanted)
    again = Runner(library, library.pool(3), model)
    for begin in range(0, 1200, 100):
        again.run(chain(begin + 100, before=begin), [])
    for row, logits in zip(wanted, at_once, strict=True):
        assert bits(again.run([range(row + 1)], [0])) == bits(logits)
    assert np.isfinite(at_once).all()


@settings(max_examples=20, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FAMILIES)))
def test_a_rows_bits_are_its_own(data: st.DataObject, name: str) -> None:
    """A tree's rows, beside a stranger's, have the bits that each has at the end of its own path alone."""
    model, library = weights(FAMILIES[name]), data.draw(st.sampled_from(libraries()), "library")
    runner = Runner(library, library.pool(data.draw(st.integers(1, 3), "threads")), model)
    stem, stranger = data.draw(st.integers(1, 90), "stem"), tuple(range(1000, 1040))
    runner.run(chain(stem), [])
    paths: list[tuple[int, ...]] = [(*range(stem), 200)]
    for token in range(201, 201 + data.draw(st.integers(0, 8), "nodes")):
        parent = data.draw(st.sampled_from([paths[0][:-1], *paths]))
        paths.append((*parent, token))
    rows = [*paths, *(stranger[: i + 1] for i in range(40))]
    wanted = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1), "wanted"))
    found = runner.run(rows, wanted)
    row = data.draw(st.sampled_from(wanted), "row")
    alone = Runner(libraries()[-1], libraries()[-1].pool(1), model)
    path = rows[row]
    at_the_end = [alone.run([path[: i + 1]], [0]) for i in range(len(path))][-1]
    assert bits(at_the_end) == bits(found[[wanted.index(row)]])


def test_keys_too_large_for_a_half_are_cut() -> None:
    """An infinity would be no number under a weight of zero, and show in rows that don't see it."""
    family = Family(format=Format.INT8_64, windows=(2, 2), biases=True)
    model, library = weights(family), libraries()[0]
    bias = model.layers[0].qkv.bias
    assert bias is not None
    kept = bias.copy()
    bias[family.heads * family.head_dim :] = 1e6
    runner = Runner(library, library.pool(1), model)
    logits = runner.run(chain(5), range(5))
    bias[:] = kept
    assert np.isfinite(logits).all()
    assert runner.keys.max() == 65504 == runner.values.max()


def test_a_token_that_is_no_number_shows_in_its_own_row_and_those_behind_it() -> None:
    model, library = weights(FAMILIES["llama"]), libraries()[0]
    runner = Runner(library, library.pool(1), model)
    runner.run(chain(3), [])
    runner.keys[:, runner.places[1]] = np.nan
    runner.values[:, runner.places[1]] = np.nan
    logits = runner.run([range(4), (0, 300)], [0, 1])
    assert np.isnan(logits[0]).all()
    assert np.isfinite(logits[1]).all()
