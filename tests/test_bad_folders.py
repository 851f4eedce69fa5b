"""Damaged and hostile folders of safetensors: one line that names the file, never another error."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from surefoot.models.load import open_checkpoint
from surefoot.text import load_tokenizer
from surefoot.types import SurefootError
from tests.bad_files import FEW, TINIEST, use
from tests.tiny import tiny_checkpoint_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_checkpoint_folder("llama", tmp_path, **TINIEST)


@FEW
@given(data=st.data())
def test_safetensors_cut_or_changed_are_refused_or_read(data: st.DataObject, folder: Path) -> None:
    path = folder / "model.safetensors"
    intact = path.read_bytes()
    try:
        if data.draw(st.booleans()):
            header = 8 + struct.unpack("<Q", intact[:8])[0]
            longest = data.draw(st.sampled_from([20, header, len(intact) - 1]))
            path.write_bytes(intact[: data.draw(st.integers(0, longest))])
            assert not use(folder)
        else:
            raw = bytearray(intact)
            place = data.draw(st.integers(0, data.draw(st.sampled_from([8, 200, 3000])) - 1))
            raw[place] = data.draw(st.integers(0, 255))
            path.write_bytes(raw)
            use(folder)
    finally:
        path.write_bytes(intact)


@FEW
@given(data=st.data())
def test_json_files_cut_or_changed_are_refused_or_read(data: st.DataObject, folder: Path) -> None:
    path = folder / data.draw(st.sampled_from(["config.json", "generation_config.json", "tokenizer.json"]))
    intact = path.read_bytes()
    try:
        if data.draw(st.booleans()):
            path.write_bytes(intact[: data.draw(st.integers(0, len(intact) - 1))].rstrip(b"}\n "))
            assert not use(folder)
        else:
            raw = bytearray(intact)
            raw[data.draw(st.integers(0, min(len(raw), 3000) - 1))] = data.draw(st.integers(0, 255))
            path.write_bytes(raw)
            use(folder)
    finally:
        path.write_bytes(intact)


ODD: tuple[object, ...] = (None, [], {}, "x", "", -1, 0, 1e308, True, [[]], {"a": []}, 10**30, ["x"], [None])
OPTIONAL_KEYS = (
    "rope_scaling",
    "rope_theta",
    "text_config",
    "quantization_config",
    "head_dim",
    "layer_types",
    "chat_template",
    "bos_token",
    "eos_token",
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_any_value_of_the_wrong_kind_is_refused_or_read(file: str, folder: Path) -> None:
    path = folder / file
    intact = json.loads(path.read_text()) if path.exists() else {}
    (folder / "chat_template.jinja").unlink()
    for key in (*intact, *OPTIONAL_KEYS):
        for value in ODD:
            path.write_text(json.dumps({**intact, key: value}))
            use(folder)
    path.write_text(json.dumps(intact))
    assert use(folder)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", "[" * 100_000, "config.json: broken JSON"),
        ("config.json", "[1]", "config.json: holds a list, not a JSON object"),
        ("config.json", b"\xff\xfe{", "config.json: broken JSON"),
        ("config.json", None, "config.json: cannot be read: No such file"),
        ("tokenizer.json", None, "tokenizer.json: cannot be read: No such file"),
        ("tokenizer.json", '{"decoder": {"type": "WordPiece"}}', "tokenizer.json: not a tokenizer"),
        ("tokenizer.json", "{}", "tokenizer.json: not a tokenizer"),
        ("model.safetensors", None, "weight file model.safetensors is missing"),
        ("model.safetensors", struct.pack("<Q", 1 << 62), "damaged or truncated safetensors"),
        ("model.safetensors.index.json", "{}", "has no weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "has no weight_map"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../x"}}',
            "names '../x', which is not",
        ),
        ("model.safetensors.index.json", '{"weight_map": {"a": "gone"}}', "weight file gone is missing"),
        ("chat_template.jinja", "{% if %}", "chat template is broken"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: cannot be read"),
        ("tokenizer_config.json", '{"chat_template": "x', "tokenizer_config.json: broken JSON"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    file: str, content: str | bytes | None, says: str, folder: Path
) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    def load() -> None:
        open_checkpoint(folder)
        load_tokenizer(folder)

    with pytest.raises(SurefootError, match=says) as caught:
        load()
    assert "\n" not in str(caught.value)


def test_a_missing_or_misshapen_tensor_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in weights.items() if key != name}, path)
    with pytest.raises(SurefootError, match=f"tensor '{name}' is missing"):
        open_checkpoint(folder)
    save_file({**weights, name: torch.zeros(32, 31)}, path)
    with pytest.raises(SurefootError, match=rf"tensor '{name}' has shape \[32, 31\]; .* says \[32, 32\]"):
        open_checkpoint(folder)


def test_a_file_that_shrinks_after_opening_is_refused(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SurefootError, match=r"tensor 'model.*' cannot be read"):
        checkpoint.tensor("norm.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float, folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] = value
    save_file(weights, path)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(
        SurefootError, match=r"'model.norm.weight' is damaged: it holds numbers that are not finite"
    ):
        checkpoint.tensor("norm.weight")
