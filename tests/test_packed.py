"""What the native core computes from: packed once, kept, mapped, and made anew where it is damaged."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from surefoot.models import store
from surefoot.models.config import Blocks
from surefoot.models.packed import NativePrecision, Packed, pack
from surefoot.native.arrays import LINE, Floats
from surefoot.native.library import Library
from surefoot.native.model import Format
from tests.native import COMPILER, libraries
from tests.random_checkpoint import RandomCheckpoint, small_config

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

PRECISIONS: tuple[NativePrecision, ...] = ("file", "int8")
KINDS = {"q": "Q8_0", "down": "Q4_0", "embed": "Q5_0"}  # k, v, o, gate and up are float
THREADS = 2


class Counting(RandomCheckpoint):
    """Remembers how many tensors were asked for, blocks included."""

    reads = 0

    def tensor(self, name: str) -> torch.Tensor:
        self.reads += 1
        return super().tensor(name)

    def blocks(self, name: str) -> Blocks | None:
        self.reads += 1
        return super().blocks(name)


def checkpoint(seed: int = 0, **changes: object) -> Counting:
    return Counting(small_config(**changes), seed, kinds=KINDS)


def packed_in(folder: Path, source: RandomCheckpoint, precision: NativePrecision = "file") -> Packed:
    return pack(source, precision, library(), folder, THREADS)


def library() -> Library:
    return libraries()[0]


def contents(arrays: Packed) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged as a warning so far."""
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_second_start_reads_no_tensor_of_the_file(precision: NativePrecision, tmp_path: Path) -> None:
    first, again = checkpoint(), checkpoint()
    assert contents(packed_in(tmp_path, first, precision)) == contents(packed_in(tmp_path, again, precision))
    assert first.reads > 0
    assert again.reads == 0


def test_another_precision_and_another_file_are_kept_apart(tmp_path: Path) -> None:
    places = [(precision, seed) for precision in PRECISIONS for seed in (0, 1)]
    made = [contents(packed_in(tmp_path, checkpoint(seed), precision)) for precision, seed in places]
    kept = [contents(packed_in(tmp_path, checkpoint(seed), precision)) for precision, seed in places]
    assert kept == made
    assert len(list(tmp_path.iterdir())) == len(places)
    assert len({repr(sorted(each.items())) for each in made}) == len(places)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_embedding_and_head_are_kept_once_each_and_once_where_they_are_one(
    precision: NativePrecision, quantized: bool, tied: bool, tmp_path: Path
) -> None:
    kinds = {"embed": "Q5_0", "head": "Q8_0"} if quantized else {"down": "Q4_0"}
    source = RandomCheckpoint(small_config(tied_head=tied), kinds=kinds)
    found = packed_in(tmp_path, source, precision)
    names = {name for name in found if name.startswith(("embed", "head"))}
    if precision == "int8" or not quantized:
        assert names == {"embed.bf16", "head.INT8_32"}
    else:
        assert names == ({"head.Q5_0"} if tied else {"embed.Q5_0", "head.Q8_0"})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_array_holds_what_the_file_has_as_near_as_its_format_comes(
    precision: NativePrecision, tmp_path: Path
) -> None:
    config = small_config(tied_head=False, attention_bias=True, qk_norm=True, post_norms=True)
    source = RandomCheckpoint(config, kinds=KINDS)
    left = set(source.names())
    for name, array in packed_in(tmp_path, source, precision).items():
        stem, _, form = name.rpartition(".")
        wanted = name if name in source.names() else f"{stem}.weight"
        exact: Floats = source.tensor(wanted).numpy()
        left.discard(wanted)
        found = unpacked(array, form, exact)
        assert found.shape == exact.shape
        assert (np.abs(found - exact) <= allowed(form, exact)).all(), name
    assert not left


def unpacked(array: NDArray[np.generic], form: str, exact: Floats) -> Floats:
    if form == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    if form not in Format.__members__:
        return array.view(np.float32)
    outputs, inputs = exact.shape
    return library().unpack(library().matrix(Format[form], outputs, inputs, array.view(np.uint8)))


def allowed(form: str, exact: Floats) -> Floats:
    """How far a weight may be off: what rounding to 8 bits takes from its row at most, nothing in blocks but
    the last bit of their arithmetic."""
    match form:
        case "bf16":
            room = np.abs(exact) * 2**-8
        case "INT8_32" | "INT8_64":
            room = np.abs(exact).max(1, keepdims=True) / 127
        case "weight" | "bias":
            room = np.zeros_like(exact)
        case _:
            room = np.abs(exact) * 1e-6 + 1e-7
    return room.astype(np.float32)


def test_what_is_float_in_a_quantized_file_becomes_8_bits(tmp_path: Path) -> None:
    found = packed_in(tmp_path, checkpoint())
    forms = {name.rpartition(".")[2] for name in found if name.startswith("layers.0.")} - {"weight"}
    assert forms == {"Q8_0", "Q4_0", "INT8_64"}
    assert "layers.0.up.INT8_64" in found
    rounded = packed_in(tmp_path, checkpoint(), "int8")
    assert all("INT8" in name or name.endswith(("weight", "bf16")) for name in rounded)


def test_arrays_are_mapped_from_one_file_and_begin_with_a_cache_line(tmp_path: Path) -> None:
    packed_in(tmp_path, checkpoint())
    before = open_files()
    found = packed_in(tmp_path, checkpoint())
    maps = {id(owner) for owner in map(mapping_of, found.values())}
    assert len(maps) == 1
    assert all(array.ctypes.data % LINE == 0 for array in found.values())
    assert not any(array.flags.writeable for array in found.values())
    assert open_files() <= before + 1


def mapping_of(array: NDArray[np.generic]) -> object:
    """The mmap that an array lies in."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert type(owner).__name__ == "mmap"
    return owner


def open_files() -> int:
    listed = Path("/dev/fd")
    return len(list(listed.iterdir())) if listed.is_dir() else 0


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(change: Callable[[dict[str, list[object]]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        change(index["arrays"])
        (folder / "index.json").write_text(json.dumps(index))

    return damage


def rewrite(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "index.json").write_text(text)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no index": lambda folder: (folder / "index.json").unlink(),
    "half an index": lambda folder: shorten(folder / "index.json"),
    "an index of nothing": rewrite(""),
    "a list": rewrite("[]"),
    "no object": rewrite("null"),
    "an empty object": rewrite("{}"),
    "an index that is not text": lambda folder: (folder / "index.json").write_bytes(b"\xff\xfe"),
    "no arrays": rewrite('{"arrays": 3, "digest": ""}'),
    "an array less": edit(lambda arrays: arrays.pop("norm.weight")),
    "another shape": edit(lambda arrays: arrays["layers.0.q.Q8_0"].__setitem__(2, [64])),
    "another type": edit(lambda arrays: arrays["norm.weight"].__setitem__(1, "<f8")),
    "no type": edit(lambda arrays: arrays["norm.weight"].__setitem__(1, None)),
    "before the beginning": edit(lambda arrays: arrays["norm.weight"].__setitem__(0, -64)),
    "no weights": lambda folder: (folder / "weights.bin").unlink(),
    "half the weights": lambda folder: shorten(folder / "weights.bin"),
    "weights of nothing": lambda folder: (folder / "weights.bin").write_bytes(b""),
    "nothing at all": lambda folder: empty(folder),
    "another model's": lambda folder: move_another_here(folder),
}


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def move_another_here(folder: Path) -> None:
    shutil.rmtree(folder)
    elsewhere = folder.parent / "elsewhere"
    packed_in(elsewhere, RandomCheckpoint(small_config(hidden_size=128)))
    [other] = elsewhere.iterdir()
    other.rename(folder)
    elsewhere.rmdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_kept_and_is_damaged_is_made_anew(
    damage: str, tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    right = contents(packed_in(tmp_path, checkpoint()))
    whole = files(tmp_path)
    [folder] = tmp_path.iterdir()
    DAMAGE[damage](folder)
    again = checkpoint()
    assert contents(packed_in(tmp_path, again)) == right
    [line] = warnings()
    assert "made anew" in line
    assert "\n" not in line
    assert again.reads > 0
    assert files(tmp_path) == whole
    packed_in(tmp_path, checkpoint())
    assert len(warnings()) == 1


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").touch()
    found = packed_in(tmp_path / "file" / "below", checkpoint())
    [line] = warnings()
    assert "could not be kept" in line
    assert contents(found) == contents(packed_in(tmp_path / "good", checkpoint()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_costs_only_time(
    tmp_path: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = contents(packed_in(tmp_path / "good", checkpoint()))
    monkeypatch.setattr(store, "_WEIGHTS", "/dev/full")
    assert contents(packed_in(tmp_path / "full", checkpoint())) == right
    [line] = warnings()
    assert "No space left" in line
    assert files(tmp_path / "full") == {}


def test_what_a_killed_process_left_is_removed_once_nobody_writes_there(tmp_path: Path) -> None:
    for name, age in (("old", 7200), ("fresh", 60)):
        left = tmp_path / f"{name}.partial" / "model" / "weights.bin"
        left.parent.mkdir(parents=True)
        left.touch()
        written = left.stat().st_mtime - age
        for path in (left, left.parent, left.parent.parent):
            os.utime(path, (written, written))
    packed_in(tmp_path, checkpoint())
    assert [path.name for path in tmp_path.glob("*.partial")] == ["fresh.partial"]


def test_an_error_while_packing_leaves_nothing_behind(tmp_path: Path) -> None:
    class Damaged(RandomCheckpoint):
        def tensor(self, name: str) -> torch.Tensor:
            if name == "layers.2.gate.weight":
                raise KeyboardInterrupt
            return super().tensor(name)

    with pytest.raises(KeyboardInterrupt):
        packed_in(tmp_path, Damaged(small_config()))
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_on_the_disk_before_their_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda file: written.append(any(tmp_path.glob("*-packed-*[0-9]"))))
    packed_in(tmp_path, checkpoint())
    assert written == [False]


def test_many_may_pack_at_once_and_all_have_it(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    right = contents(packed_in(tmp_path / "alone", checkpoint()))
    with ThreadPoolExecutor(6) as workers:
        found = list(workers.map(lambda _: packed_in(tmp_path / "shared", checkpoint()), range(6)))
    assert [contents(each) for each in found] == [right] * 6
    assert warnings() == []
    [kept] = (tmp_path / "shared").iterdir()
    assert not kept.name.endswith(".partial")
