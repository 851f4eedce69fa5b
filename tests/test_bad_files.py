"""Damaged and hostile model files: one line that names the file, never another error, never a hang."""

from __future__ import annotations

import struct
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.models.gguf_container import GgufContainer
from surefoot.models.load import open_checkpoint
from surefoot.text import load_tokenizer
from surefoot.types import SurefootError
from tests.bad_files import FEW, TINIEST, use
from tests.tiny import tiny_gguf


@cache
def gguf_bytes() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return tiny_gguf("llama", Path(folder) / "tiny.gguf", **TINIEST).read_bytes()


def header_size(raw: bytes | bytearray) -> int:
    """Bytes before the first tensor's data: about the last tensor's name and its entry."""
    return raw.rindex(b".weight") + len(b".weight") + 4 + 2 * 8 + 4 + 8


@FEW
@given(data=st.data())
def test_a_gguf_cut_anywhere_is_refused(data: st.DataObject, tmp_path: Path) -> None:
    raw = gguf_bytes()
    longest = data.draw(st.sampled_from([40, header_size(raw), len(raw) - 1]))
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw[: data.draw(st.integers(0, longest))])
    assert not use(path)


@FEW
@given(data=st.data())
def test_a_gguf_with_changed_bytes_is_refused_or_read(data: st.DataObject, tmp_path: Path) -> None:
    raw = bytearray(gguf_bytes())
    places = st.integers(0, data.draw(st.sampled_from([60, header_size(raw)])) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=3)):
        raw[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, raw[place] ^ 1, raw[place] ^ 0x10]))
    path = tmp_path / "changed.gguf"
    path.write_bytes(raw)
    use(path)


def test_an_intact_gguf_is_read(tmp_path: Path) -> None:
    path = tmp_path / "intact.gguf"
    path.write_bytes(gguf_bytes())
    assert use(path)


HUGE = struct.pack("<Q", 1 << 62)
COUNTS = b"GGUF" + struct.pack("<I", 3)
NO_TENSORS_ONE_FIELD = COUNTS + struct.pack("<QQ", 0, 1)
FIELD_K = NO_TENSORS_ONE_FIELD + struct.pack("<Q", 1) + b"k"
ARRAY_OF_STRINGS = FIELD_K + struct.pack("<II", 9, 8)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the file is empty"),
        (b"GG", "the magic number needs 4 bytes at offset 0, 2 are left"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file: it begins with"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian GGUF is not supported"),
        (COUNTS + HUGE + bytes(100), "a table of 4611686018427387904 tensors needs"),
        (COUNTS + bytes(8) + HUGE + bytes(100), "metadata of 4611686018427387904 fields needs"),
        (NO_TENSORS_ONE_FIELD + HUGE + bytes(100), "a metadata key needs 4611686018427387904 bytes"),
        (FIELD_K.replace(b"k", b"\xff") + bytes(100), "a metadata key at offset 32 is not UTF-8"),
        (FIELD_K + struct.pack("<I", 99) + bytes(20), "k has the unknown type 99"),
        (FIELD_K + struct.pack("<IIQ", 9, 9, 2) + bytes(90), "k is an array of the unsupported type 9"),
        (FIELD_K + struct.pack("<II", 9, 5) + HUGE, "k, 4611686018427387904 numbers, needs"),
        (ARRAY_OF_STRINGS + HUGE, "k, 4611686018427387904 strings, needs"),
        (ARRAY_OF_STRINGS + struct.pack("<Q", 1) + HUGE, "k, string 0, ends behind the file"),
        (ARRAY_OF_STRINGS + struct.pack("<QQ", 2, 8) + bytes(8), "k, string 1, begins behind the file"),
        (ARRAY_OF_STRINGS + struct.pack("<QQ", 1, 1) + b"\xff", "k, string 0, is not UTF-8"),
        (
            COUNTS + struct.pack("<QQ", 0, 2) + 2 * (struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 7)),
            "metadata key 'k' occurs twice",
        ),
    ],
)
def test_what_is_wrong_with_a_gguf_is_said(raw: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(SurefootError, match=says) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # no length was believed
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(str(path))


def table(*entries: tuple[str, tuple[int, ...], int, int], data: int = 4096) -> bytes:
    """A GGUF with a tensor table alone: name, dimensions, type, offset of each."""
    raw = COUNTS + struct.pack("<QQ", len(entries), 0)
    for name, dimensions, kind, offset in entries:
        raw += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dimensions))
        raw += struct.pack(f"<{len(dimensions)}QIQ", *dimensions, kind, offset)
    return raw + bytes(data)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([("a", (4, 4), 0, 0), ("a", (4, 4), 0, 64)], "tensor 'a' occurs twice"),
        ([("a", (4, 4), 0, 0), ("b", (4, 4), 0, 32)], "tensor 'b' at offset .* overlaps the one before it"),
        ([("a", (4, 4), 0, 1 << 40)], "tensor 'a' of 64 bytes at offset"),
        ([("a", (4, 4), 0, (1 << 64) - 32)], "tensor 'a' of 64 bytes at offset"),
        ([("a", (1 << 62, 1 << 62), 0, 0)], "tensor 'a' of .* bytes at offset"),
        ([("a", (4, 0), 0, 0)], "'a' of type F32 has the impossible shape"),
        ([("a", (33,), 2, 0)], "'a' of type Q4_0 has the impossible shape"),
        ([("a", (4, 4), 0, 7)], "tensor 'a' of 64 bytes at offset"),
        ([("a", (4, 4), 250, 0)], "tensor 'a' has the unknown type 250"),
        ([("a", (), 0, 0)], "tensor 'a' has 0 dimensions"),
        ([("a", (1,) * 5, 0, 0)], "tensor 'a' has 5 dimensions"),
    ],
)
def test_what_is_wrong_with_a_tensor_table_is_said(
    entries: list[tuple[str, tuple[int, ...], int, int]], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(table(*entries))
    with pytest.raises(SurefootError, match=says):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokenizer.ggml.model", "bert", "'bert' is not supported; gpt2 and llama are"),
        (
            "tokenizer.ggml.pre",
            "new-thing",
            "pre 'new-thing' is not supported; default, gpt-2",
        ),
        ("tokenizer.ggml.merges", ["x y"], "merge 'x y' joins or makes what is no token"),
        ("tokenizer.ggml.merges", ["nospace"], "merge 'nospace' joins or makes what is no token"),
        ("tokenizer.ggml.merges", [1, 2], "tokenizer.ggml.merges is missing"),
        ("tokenizer.ggml.tokens", [1, 2], "has no tokenizer"),
        ("tokenizer.ggml.token_type", [1, 1], "tokenizer.ggml.token_type doesn't fit its 320 tokens"),
        ("tokenizer.ggml.bos_token_id", 320, "tokenizer.ggml.bos_token_id is 320, outside its 320 tokens"),
        ("tokenizer.chat_template", "{% for %}", "chat template is broken"),
    ],
)
def test_a_bad_tokenizer_in_a_gguf_is_refused(key: str, value: Any, says: str, tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        adders = {str: writer.add_string, int: writer.add_uint32}
        adders.get(type(value), writer.add_array)(key, value)

    path = tiny_gguf("llama", tmp_path / "bad.gguf", edit=edit, **TINIEST)
    with pytest.raises(SurefootError, match=says):
        load_tokenizer(path)


def test_a_token_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["a", "b", "a"])
        writer.add_token_types([1, 1, 1])

    with pytest.raises(SurefootError, match="token 'a' occurs twice"):
        load_tokenizer(tiny_gguf("llama", tmp_path / "bad.gguf", edit=edit, **TINIEST))


def test_any_metadata_of_the_wrong_kind_is_refused_or_read(tmp_path: Path) -> None:
    intact = tiny_gguf("llama", tmp_path / "intact.gguf", **TINIEST)
    keys = [key for key in GgufContainer(intact).metadata if key != "file"]
    keys += ["llama.rope.scaling.type", "llama.attention.sliding_window", "tokenizer.ggml.add_eos_token"]
    for key in keys:
        for value in (0, -5, 1.5, True, "x", [1, 2], ["x"], [0.5]):

            def edit(writer: gguf.GGUFWriter, key: str = key, value: object = value) -> None:
                writer.kv_data[0].pop(key, None)
                writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))

            use(tiny_gguf("llama", tmp_path / "edited.gguf", edit=edit, **TINIEST))


@pytest.mark.parametrize("name", ["nowhere.gguf", "a-folder"])
def test_what_is_not_there_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a-folder").mkdir()
    with pytest.raises(SurefootError, match=name):
        open_checkpoint(tmp_path / name)
