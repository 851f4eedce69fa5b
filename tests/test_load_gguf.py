"""GGUF files as checkpoints: the same model as in safetensors, every block format, every refusal."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from surefoot.models import gguf_file
from surefoot.models.config import ModelConfig
from surefoot.models.gguf_container import GgufContainer
from surefoot.models.load import open_checkpoint
from surefoot.types import SurefootError
from tests.ggml_reference import BLOCKS, SCALES, read_blocks
from tests.models_fixture import catalogue_path, smollm2_path
from tests.tiny import FAMILIES, add_gguf_settings, tiny_checkpoint_folder, tiny_gguf, tiny_model

SAME = [name for name in ModelConfig.__slots__ if name not in ("family", "norm_eps", "eos_token_ids")]


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_and_safetensors_hold_the_same_model(family: str, tmp_path: Path) -> None:
    ours = open_checkpoint(tiny_gguf(family, tmp_path / "model.gguf"))
    theirs = open_checkpoint(tiny_checkpoint_folder(family, tmp_path))
    for name in SAME:
        assert getattr(ours.config, name) == getattr(theirs.config, name), name
    assert ours.config.family == ("llama" if family == "mistral" else family)
    assert ours.config.norm_eps == pytest.approx(theirs.config.norm_eps, rel=1e-6)
    assert ours.config.eos_token_ids == (2, 0)  # <|im_end|>, and <|endoftext|> by its name
    assert ours.names() == theirs.names()
    for name in ours.names():
        tensor = ours.tensor(name)
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert torch.equal(tensor, theirs.tensor(name)), name
    with pytest.raises(KeyError):
        ours.tensor("blk.0.attn_q.weight")


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 8e-3), ("Q8_0", 1e-2)])
def test_smaller_formats_are_close(kind: str, error: float, tmp_path: Path) -> None:
    exact = open_checkpoint(tiny_gguf("qwen2", tmp_path / "f32.gguf"))
    rounded = open_checkpoint(tiny_gguf("qwen2", tmp_path / "rounded.gguf", kind))
    for name in exact.names():
        right, got = exact.tensor(name), rounded.tensor(name)
        assert torch.equal(right, got) == (right.dim() == 1)
        assert (right - got).abs().max() <= error * right.abs().max()


def random_blocks(kind: str, rows: int, per_row: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Any bits, but finite scales: [rows, bytes per row]."""
    _, size, _ = BLOCKS[kind]
    raw = rng.integers(0, 256, (rows * per_row, size), np.uint8)
    for offset in SCALES[kind]:
        raw[:, offset : offset + 2] = rng.normal(size=(len(raw), 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, per_row * size)


def one_layer_gguf(path: Path, **kinds: str) -> Path:
    """A llama of one layer, 256 wide, its matrices of the kinds given by their GGUF names, else F32."""
    config = tiny_model("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=1).config
    writer = gguf.GGUFWriter(path, "llama")
    add_gguf_settings(writer, config, "llama")
    rng = np.random.default_rng(5)
    shapes = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256)}
    shapes |= {"ffn_gate": (256, 256), "ffn_up": (256, 256), "ffn_down": (256, 256)}
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()} | {"token_embd": (64, 256)}
    for name, (rows, columns) in shapes.items():
        kind = kinds.get(name.removeprefix("blk.0."), "F32")
        if kind == "F32":
            writer.add_tensor(f"{name}.weight", rng.normal(size=(rows, columns)).astype(np.float32))
        else:
            raw = random_blocks(kind, rows, columns // BLOCKS[kind][0], rng)
            writer.add_tensor(f"{name}.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(256, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_format_is_read_as_defined(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "_CHUNK_ELEMENTS", 7 * 256)  # several chunks, the last one short
    path = one_layer_gguf(tmp_path / "model.gguf", attn_v=kind)
    raw = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_v.weight").data.tobytes()
    got = open_checkpoint(path).tensor("layers.0.v.weight")
    assert got.shape == (128, 256)
    np.testing.assert_allclose(got.numpy().ravel(), read_blocks(kind, raw), rtol=1e-5, atol=1e-5)


def test_an_unsupported_format_is_named_with_its_tensor(tmp_path: Path) -> None:
    path = one_layer_gguf(tmp_path / "model.gguf", ffn_up="Q4_0")
    raw = path.read_bytes()
    place = raw.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    assert raw[place] == gguf.GGMLQuantizationType.Q4_0
    iq4_nl = gguf.GGMLQuantizationType.IQ4_NL  # of the same size
    path.write_bytes(raw[:place] + struct.pack("<I", iq4_nl) + raw[place + 4 :])
    with pytest.raises(SurefootError, match=r"'blk.0.ffn_up.weight' has type IQ4_NL; supported are F32, .*K"):
        open_checkpoint(path)


def test_a_block_of_nonsense_is_refused(tmp_path: Path) -> None:
    path = one_layer_gguf(tmp_path / "model.gguf", ffn_up="Q6_K")
    info = GgufContainer(path).tensors["blk.0.ffn_up.weight"]
    raw = bytearray(path.read_bytes())
    raw[info.start + 208 : info.start + 210] = b"\x00\x7e"  # its scale: not a number
    path.write_bytes(raw)
    with pytest.raises(
        SurefootError, match=r"'blk.0.ffn_up.weight' is damaged: it holds numbers that are not"
    ):
        open_checkpoint(path).tensor("layers.0.up.weight")


def setting(key: str, value: object) -> Callable[[gguf.GGUFWriter], None]:
    """An edit that sets a metadata key, in the type that its value suggests."""

    def edit(writer: gguf.GGUFWriter) -> None:
        adders = {
            str: writer.add_string,
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }
        adders[type(value)](key, value)

    return edit


def extra_tensor(name: str) -> Callable[[gguf.GGUFWriter], None]:
    return lambda writer: writer.add_tensor(name, np.full(8, 2.0, np.float32))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_linear_scaling_divides_the_global_rope(family: str, tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        setting(f"{family}.rope.scaling.type", "linear")(writer)
        setting(f"{family}.rope.scaling.factor", 4.0)(writer)

    plain = open_checkpoint(tiny_gguf(family, tmp_path / "plain.gguf")).config
    scaled = open_checkpoint(tiny_gguf(family, tmp_path / "scaled.gguf", edit=edit)).config
    assert None in plain.windows
    for window, before, after in zip(plain.windows, plain.ropes, scaled.ropes, strict=True):
        factor = 1 if window else 4
        np.testing.assert_allclose(np.array(after.frequencies) * factor, before.frequencies, rtol=1e-6)


def test_factors_of_their_own_divide_the_frequencies(tmp_path: Path) -> None:
    plain = open_checkpoint(tiny_gguf("llama", tmp_path / "plain.gguf")).config.ropes[0]
    path = tiny_gguf("llama", tmp_path / "scaled.gguf", edit=extra_tensor("rope_freqs.weight"))
    scaled = open_checkpoint(path).config.ropes[0]
    np.testing.assert_allclose(np.array(scaled.frequencies) * 2, plain.frequencies, rtol=1e-6)


@pytest.mark.parametrize(
    ("family", "key", "value", "says"),
    [
        (
            "llama",
            "general.architecture",
            "mamba",
            "'mamba' is not supported; llama, qwen2, qwen3, gemma3",
        ),
        ("llama", "general.alignment", 48, "general.alignment is 48, not a power of two"),
        ("llama", "split.count", 3, "one of 3 parts; join them"),
        ("llama", "llama.rope.scaling.type", "yarn", "llama.rope.scaling.type is 'yarn', which is not"),
        ("llama", "llama.rope.dimension_count", 8, "llama.rope.dimension_count is 8, only 16"),
        ("qwen3", "qwen3.attention.value_length", 16, "qwen3.attention.value_length is 16, only 32"),
        ("gemma3", "gemma3.attn_logit_softcapping", 50.0, "gemma3.attn_logit_softcapping is 50.0, which"),
        ("llama", "llama.expert_count", 8, "llama.expert_count is 8, which is not supported"),
        ("llama", "llama.block_count", 0, "llama.block_count is 0, not a whole number from 1 to 1024"),
        ("llama", "llama.block_count", 1 << 30, "llama.block_count is 1073741824, not a whole number"),
        ("llama", "llama.block_count", 4, "tensor 'blk.3.attn_norm.weight' is missing"),
        ("llama", "llama.attention.head_count_kv", 3, "4 attention heads can't share 3 key heads evenly"),
        ("llama", "llama.attention.head_count", [4, 4, 4], "llama.attention.head_count is array"),
        ("qwen2", "qwen2.attention.key_length", 33, "a head of size 33 can't be rotated"),
        ("llama", "llama.attention.layer_norm_rms_epsilon", 0.0, "is 0.0, not a number above 0"),
        ("llama", "llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan, not a number above 0"),
        ("llama", "llama.context_length", 0, "llama.context_length is 0, not a whole number"),
        (
            "llama",
            "llama.feed_forward_length",
            95,
            r"shape \[96, 64\]; the configuration says \[95, 64\]",
        ),
        ("llama", "tokenizer.ggml.eos_token_id", 999, "end-of-sequence id 999 is outside its 320 tokens"),
        (
            "llama",
            "tokenizer.ggml.tokens",
            ["x"] * 321,
            "its tokenizer has 321 tokens, its embedding 320",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    family: str, key: str, value: object, says: str, tmp_path: Path
) -> None:
    path = tiny_gguf(family, tmp_path / "edited.gguf", edit=setting(key, value))
    with pytest.raises(SurefootError, match=says) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert "edited.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("family", "name", "says"),
    [
        ("llama", "blk.0.attn_output.bias", "is not part of a llama model as supported"),
        ("qwen3", "rope_freqs.weight", r"is F32 \[8\], not F32 \[16\]"),
    ],
)
def test_a_tensor_that_would_be_left_out_is_refused(
    family: str, name: str, says: str, tmp_path: Path
) -> None:
    path = tiny_gguf(family, tmp_path / "edited.gguf", edit=extra_tensor(name))
    with pytest.raises(SurefootError, match=f"tensor '{name}' {says}"):
        open_checkpoint(path)


def test_a_gemma_of_62_layers_scales_attention_by_its_width(tmp_path: Path) -> None:
    config = open_checkpoint(tiny_gguf("gemma3", tmp_path / "7.gguf")).config
    assert config.attention_scale == 32**-0.5
    config = open_checkpoint(tiny_gguf("gemma3", tmp_path / "62.gguf", num_hidden_layers=62)).config
    assert config.attention_scale == (64 / 4) ** -0.5


def test_the_fingerprint_follows_the_file(tmp_path: Path) -> None:
    path = tiny_gguf("llama", tmp_path / "model.gguf")
    first = open_checkpoint(path).fingerprint
    assert first == open_checkpoint(path).fingerprint
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert open_checkpoint(path).fingerprint != first


def test_the_real_smollm2() -> None:
    path = smollm2_path()
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert (config.family, config.vocab_size, config.hidden_size, config.num_layers) == (
        "llama",
        49152,
        576,
        30,
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.max_length) == (9, 3, 64, 8192)
    assert config.tied_head
    assert config.eos_token_ids == (2, 0)
    check_against_reference(path, "blk.0.attn_v.weight", "layers.0.v.weight")
    check_against_reference(path, "token_embd.weight", "embed.weight")


def check_against_reference(path: Path, file_name: str, name: str) -> None:
    """A tensor's first and last rows."""
    file = GgufContainer(path)
    info = file.tensors[file_name]
    got = open_checkpoint(path).tensor(name)
    for row in (0, -1):
        right = read_blocks(info.kind.name, file.blocks(info)[row].tobytes())
        np.testing.assert_allclose(got[row].numpy(), right, rtol=1e-5, atol=1e-7)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "file_name", "name"),
    [
        ("qwen2.5-coder-1.5b-instruct", "blk.27.ffn_gate.weight", "layers.27.gate.weight"),  # Q4_K
        ("qwen2.5-coder-1.5b-instruct", "blk.0.ffn_down.weight", "layers.0.down.weight"),  # Q6_K
        ("qwen2.5-coder-0.5b-instruct", "blk.3.attn_q.weight", "layers.3.q.weight"),  # Q5_0, not permuted
        ("gemma-3-270m", "blk.5.attn_output.weight", "layers.5.o.weight"),
    ],
)
def test_other_real_models(model: str, file_name: str, name: str) -> None:
    check_against_reference(catalogue_path(model), file_name, name)


@pytest.mark.models
def test_the_real_gemma() -> None:
    config = open_checkpoint(catalogue_path("gemma-3-270m")).config
    assert config.windows == ((512,) * 5 + (None,)) * 3
    assert config.ropes[0].frequencies[1] == pytest.approx(10_000 ** (-2 / 256), rel=1e-6)
    assert config.ropes[5].frequencies[1] == pytest.approx(1_000_000 ** (-2 / 256), rel=1e-6)
    assert config.embedding_scale == pytest.approx(640**0.5, rel=1e-7)
    assert config.eos_token_ids == (1, 106)
