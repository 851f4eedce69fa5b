"""Activations are the same to the bit in any number of rows, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from surefoot.models import probe
from surefoot.models.activation import Activation, activate

KINDS: tuple[Activation, ...] = ("silu", "gelu_tanh")
ROWS = (1, 2, 3, 5, 8, 13, 16, 20)


@pytest.fixture(params=(1, 2, 3, 5))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [75, 525, 4864, 8960])
def test_a_row_has_the_same_bits_in_any_company(kind: Activation, width: int, threads: int) -> None:
    rows = torch.randn(20, width, generator=torch.Generator().manual_seed(1)) * 3
    alone = torch.cat([activate(kind, row[None]) for row in rows])
    for count in ROWS:
        assert torch.equal(activate(kind, rows[:count]), alone[:count])
        assert torch.equal(activate(kind, rows[-count:]), alone[-count:])


@pytest.mark.parametrize("hidden", [100, 896, 1536])
def test_the_probe_finds_nothing_between_the_products_that_disagrees(hidden: int, threads: int) -> None:
    """On three threads a model of 8960 had no row count left, and so no promise."""
    sizes = range(1, 17)
    for kind in KINDS:
        assert probe.glue_sizes(hidden, 8960, 64, kind, sizes) == tuple(sizes)


def test_they_are_pytorchs_own_whatever_the_strides() -> None:
    pair = torch.randn(3, 2 * 50, generator=torch.Generator().manual_seed(2))
    gate, _ = pair.chunk(2, 1)
    before = gate.clone()
    torch.testing.assert_close(activate("silu", gate), F.silu(gate))
    torch.testing.assert_close(activate("gelu_tanh", gate), F.gelu(gate, approximate="tanh"))
    assert torch.equal(gate, before)
    assert activate("silu", gate).is_contiguous()
    assert activate("silu", gate[:0]).shape == (0, 50)
