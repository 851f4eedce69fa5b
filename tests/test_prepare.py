"""What loading computes is computed once: kept on disk, read back, and made anew where it is damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from surefoot.models.build import build
from surefoot.models.linear import TORCH_PRECISIONS, Float16Linear, Float32Linear, TorchPrecision
from surefoot.models.prepare import Prepared, prepare
from surefoot.models.torch_pass import TorchPasses
from tests.precisions import NEEDS_INT8
from tests.random_checkpoint import RandomCheckpoint, small_config


class Counting(RandomCheckpoint):
    """Remembers how many tensors were asked for."""

    reads = 0

    def tensor(self, name: str) -> torch.Tensor:
        self.reads += 1
        return super().tensor(name)


def assert_equal(one: Prepared, other: Prepared) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name])


@pytest.mark.parametrize("precision", TORCH_PRECISIONS)
def test_the_second_start_reads_no_tensor_of_the_file(precision: TorchPrecision, tmp_path: Path) -> None:
    first, again = Counting(small_config()), Counting(small_config())
    assert_equal(prepare(first, precision, tmp_path), prepare(again, precision, tmp_path))
    assert first.reads > 0
    assert again.reads == 0


def test_another_precision_and_another_file_are_kept_apart(tmp_path: Path) -> None:
    for precision in TORCH_PRECISIONS:
        prepare(RandomCheckpoint(small_config()), precision, tmp_path)
    other = Counting(small_config(), seed=1)
    prepare(other, "fp32", tmp_path)
    assert other.reads > 0
    assert len(list(tmp_path.iterdir())) == len(TORCH_PRECISIONS) + 1


def test_what_was_kept_and_is_damaged_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    right = {
        name: tensor.clone()
        for name, tensor in prepare(RandomCheckpoint(small_config()), "int8", tmp_path).items()
    }
    [kept] = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # the first result is still mapped
    kept.write_bytes(whole[: len(whole) // 2])
    again = Counting(small_config())
    with caplog.at_level(logging.WARNING):
        assert_equal(prepare(again, "int8", tmp_path), right)
    assert again.reads > 0
    assert "made anew" in caplog.text
    assert kept.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        found = prepare(RandomCheckpoint(small_config()), "bf16", tmp_path / "file" / "below")
    assert_equal(found, prepare(RandomCheckpoint(small_config()), "bf16", tmp_path / "good"))
    assert "could not be kept" in caplog.text


def test_what_was_kept_under_other_names_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(RandomCheckpoint(small_config()), "bf16", tmp_path)
    [kept] = tmp_path.iterdir()
    kept.unlink()
    save_file({"embed": torch.zeros(2, 2), "blk.0.attn.weight": torch.zeros(2, 2)}, kept)
    with caplog.at_level(logging.WARNING):
        assert "layers.0.qkv.weight" in prepare(RandomCheckpoint(small_config()), "bf16", tmp_path)
    assert "lacks tensors" in caplog.text


@NEEDS_INT8
def test_an_int8_head_that_loses_too_much_is_kept_in_fp16(tmp_path: Path) -> None:
    """A few large weights in a row make its one scale too coarse for the others."""
    even, uneven = RandomCheckpoint(small_config()), RandomCheckpoint(small_config(), seed=1)
    uneven.tensors["embed.weight"][:, 0] *= 30
    assert prepare(even, "int8", tmp_path)["head.weight"].dtype == torch.int8
    assert prepare(uneven, "int8", tmp_path)["head.weight"].dtype == torch.float16
    built = build(uneven, "int8", tmp_path)
    assert built.inexact is None
    assert isinstance(built.decoder.passes, TorchPasses)
    assert isinstance(built.decoder.passes.weights.head, Float16Linear | Float32Linear)
