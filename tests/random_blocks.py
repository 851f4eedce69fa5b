"""Quantized blocks of random weights, of any kind that a GGUF file may have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from surefoot.native.model import BLOCKS, Format

# Per kind: about how many scales the weights spread over, where a block has its scale, and where its min
# and how many scales that is, so that the weights are about zero in the mean.
_SHAPES = {
    "Q4_0": (8, 0, None),
    "Q4_1": (8, 0, (2, -8)),
    "Q5_0": (16, 0, None),
    "Q8_0": (128, 0, None),
    "Q4_K": (8 * 32, 0, (2, 8)),
    "Q5_K": (16 * 32, 0, (2, 16)),
    "Q6_K": (32 * 64, 208, None),
}


def random_blocks(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """[outputs, bytes of a row]; a row's product with numbers about 1 is about 1."""
    weights, num_bytes = BLOCKS[Format[kind]]
    spread, at, low = _SHAPES[kind]
    blocks = rng.integers(0, 256, (outputs * inputs // weights, num_bytes), dtype=np.uint8)
    scale = rng.uniform(0.5, 1.5, (len(blocks), 1)) * inputs**-0.5 / spread
    blocks[:, at : at + 2] = scale.astype(np.float16).view(np.uint8)
    if low is not None:
        at, scales = low
        blocks[:, at : at + 2] = (scale * scales).astype(np.float16).view(np.uint8)
    return blocks.reshape(outputs, -1)
