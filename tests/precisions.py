"""Skips what this machine has no product for; its default is then the next precision."""

from __future__ import annotations

import pytest

from surefoot.models.torch_build import exact_planes, has_bf16
from tests.random_checkpoint import small_config

NEEDS_INT8 = pytest.mark.skipif(not exact_planes(small_config()), reason="no exact 8-bit product here")
NEEDS_BF16 = pytest.mark.skipif(not has_bf16(), reason="no bf16 product here")
