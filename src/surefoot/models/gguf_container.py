"""The GGUF container: metadata and the places of the tensors, every length checked against the file.

The gguf library's own reader takes 7 to 12 s for a real vocabulary (a NumPy view per string) and believes
the lengths it reads; its tables of types and block sizes are used here.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from surefoot.types import SurefootError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_SMALLEST_TENSOR_INFO = 8 + 4 + 4 + 8  # an empty name, no dimensions, a type, an offset
_SMALLEST_FIELD = 8 + 4 + 1
_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. shape: rows first, as torch has it. start, num_bytes: in the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    num_bytes: int


class GgufContainer:
    """An opened GGUF file (version 2 or 3, little endian), mapped, not read.

    metadata: key → int, float, bool, str, list[str], or an array of numbers [n]; beside the file's own keys,
    "file" is its path.
    Raises SurefootError naming the file and what is wrong with it.
    """

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorInfo]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if not path.stat().st_size:
                    raise SurefootError(f"{path}: the file is empty")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise SurefootError(f"{path}: cannot be read: {error.strerror}") from error
        cursor = _Cursor(path, self._map)
        num_tensors, num_fields = _header(cursor)
        self.metadata = {**_fields(cursor, num_fields), "file": path}
        self.tensors = _tensors(cursor, num_tensors, self._alignment())
        self._refuse_parts()

    def blocks(self, info: TensorInfo) -> NDArray[np.uint8]:
        """A tensor's bytes as stored, mapped: [rows, bytes per row]."""
        rows = prod(info.shape[:-1])
        data = np.frombuffer(self._map, np.uint8, info.num_bytes, info.start)
        return data.reshape(rows, info.num_bytes // rows)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", 32)
        if not isinstance(value, int) or value < 1 or value & (value - 1) or value > 1 << 20:
            raise SurefootError(f"{self.path}: general.alignment is {value}, not a power of two up to 2^20")
        return value

    def _refuse_parts(self) -> None:
        count = self.metadata.get("split.count", 0)
        if isinstance(count, int) and count > 1:
            raise SurefootError(f"{self.path}: one of {count} parts; join them with gguf-split --merge first")


class _Cursor:
    """Reads forward and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def fail(self, what: str) -> SurefootError:
        return SurefootError(f"{self.path}: damaged or truncated GGUF: {what}")

    def need(self, count: int, what: str) -> None:
        left = len(self.data) - self.position
        if count > left:
            raise self.fail(f"{what} needs {count} bytes at offset {self.position}, {left} are left")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        start = self.position
        self.position += count
        return self.data[start : self.position]

    def unpack(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}"), what))

    def name(self, what: str) -> str:
        """A string that may stand in a message as it is."""
        start = self.position
        text = self.string(what)
        if not text.isprintable() or len(text) > _LONGEST_NAME:
            raise self.fail(f"{what} at offset {start} is not a name")
        return text

    def string(self, what: str) -> str:
        (length,) = self.unpack("Q", what)
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} at offset {self.position - length} is not UTF-8") from error


def _header(cursor: _Cursor) -> tuple[int, int]:
    """Counts of tensors and of metadata fields."""
    magic = cursor.take(4, "the magic number")
    if magic != b"GGUF":
        raise SurefootError(f"{cursor.path}: not a GGUF file: it begins with {magic!r}, not with b'GGUF'")
    (version,) = cursor.unpack("I", "the version")
    if version not in (2, 3):
        swapped = version & 0xFFFF == 0
        kind = "big-endian GGUF" if swapped else f"GGUF version {version}"
        raise SurefootError(f"{cursor.path}: {kind} is not supported; little-endian versions 2 and 3 are")
    num_tensors, num_fields = cursor.unpack("QQ", "the header")
    cursor.need(num_tensors * _SMALLEST_TENSOR_INFO, f"a table of {num_tensors} tensors")
    cursor.need(num_fields * _SMALLEST_FIELD, f"metadata of {num_fields} fields")
    return num_tensors, num_fields


def _fields(cursor: _Cursor, count: int) -> dict[str, object]:
    fields: dict[str, object] = {}
    for _ in range(count):
        key = cursor.name("a metadata key")
        if key in fields:
            raise cursor.fail(f"metadata key {key!r} occurs twice")
        (kind,) = cursor.unpack("I", key)
        fields[key] = _value(cursor, key, kind)
    return fields


def _value(cursor: _Cursor, key: str, kind: int) -> object:
    if kind in _SCALARS:
        return cursor.unpack(_SCALARS[kind], key)[0]
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _array(cursor, key)
    raise cursor.fail(f"{key} has the unknown type {kind}")


def _array(cursor: _Cursor, key: str) -> object:
    kind, count = cursor.unpack("IQ", key)
    if kind in _SCALARS:
        dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
        cursor.need(count * dtype.itemsize, f"{key}, {count} numbers,")
        return np.frombuffer(cursor.take(count * dtype.itemsize, key), dtype)
    if kind != _STRING:
        raise cursor.fail(f"{key} is an array of the unsupported type {kind}")
    cursor.need(count * 8, f"{key}, {count} strings,")
    return _strings(cursor, key, count)


def _strings(cursor: _Cursor, key: str, count: int) -> list[str]:
    # The method calls of `cursor.string` are most of the time spent on 300,000 tokens and merges.
    data, position, size = cursor.data, cursor.position, len(cursor.data)
    read_length = struct.Struct("<Q").unpack_from
    texts: list[str] = []
    try:
        for _ in range(count):
            end = position + 8 + read_length(data, position)[0]
            if end > size:
                raise cursor.fail(f"{key}, string {len(texts)}, ends behind the file")
            texts.append(data[position + 8 : end].decode())
            position = end
    except struct.error as error:
        raise cursor.fail(f"{key}, string {len(texts)}, begins behind the file") from error
    except UnicodeDecodeError as error:
        raise cursor.fail(f"{key}, string {len(texts)}, is not UTF-8") from error
    cursor.position = position
    return texts


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    entries = [_tensor_entry(cursor) for _ in range(count)]
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} occurs twice")
        tensors[name] = _place(cursor, name, shape, kind, base + offset, alignment)
    end = base
    for info in sorted(tensors.values(), key=lambda info: info.start):
        if info.start < end:
            raise cursor.fail(f"tensor {info.name!r} at offset {info.start} overlaps the one before it")
        end = info.start + info.num_bytes
    return tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.name("a tensor name")
    (num_dimensions,) = cursor.unpack("I", name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.fail(
            f"tensor {name!r} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible"
        )
    dimensions = cursor.unpack(f"{num_dimensions}Q", name)
    kind, offset = cursor.unpack("IQ", name)
    return name, dimensions[::-1], kind, offset


def _place(
    cursor: _Cursor, name: str, shape: tuple[int, ...], raw_kind: int, start: int, alignment: int
) -> TensorInfo:
    try:
        kind = GGMLQuantizationType(raw_kind)
    except ValueError as error:
        raise cursor.fail(f"tensor {name!r} has the unknown type {raw_kind}") from error
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not prod(shape) or shape[-1] % block:
        raise cursor.fail(f"tensor {name!r} of type {kind.name} has the impossible shape {list(shape)}")
    num_bytes = prod(shape) // block * block_bytes
    if start % alignment or start + num_bytes > len(cursor.data):
        size = len(cursor.data)
        raise cursor.fail(
            f"tensor {name!r} of {num_bytes} bytes at offset {start}; the file has {size} bytes"
        )
    return TensorInfo(name, shape, kind, start, num_bytes)
