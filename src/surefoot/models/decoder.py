"""A decoder as the engine sees it: passes checked, laid out, computed, and undone when they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.models.base import Segment
from surefoot.models.config import ModelConfig
from surefoot.models.kv import PagedCache
from surefoot.models.plan import Plan, depths_of, lay_out
from surefoot.tree import parents_of


class Passes(Protocol):
    """What computes: PyTorch (models/torch_pass.py) or the native core (models/native_pass.py)."""

    @property
    def num_bytes(self) -> int:
        """Bytes of weight that one pass reads."""

    def new_cache(self) -> PagedCache:
        """An empty cache whose keys and values have the form that `run` wants."""

    def run(self, plan: Plan, cache: PagedCache) -> NDArray[np.float32]:
        """Fills the slots of the plan's rows; logits of the wanted rows, [wanted, vocabulary]."""


class Decoder:
    """Implements `models.base.Model`: one decoder for the Llama family, Llama, Mistral, Qwen2, Qwen3, SmolLM
    and Gemma 3, whatever computes it."""

    def __init__(self, config: ModelConfig, passes: Passes) -> None:
        self.config, self.passes = config, passes
        self.cache = passes.new_cache()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        return self.config.max_length

    @torch.inference_mode()
    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self._check(batch)
        before = {segment.seq: self.cache.length(segment.seq) for segment in batch}
        try:
            plan = lay_out(batch, self.cache)
            if not plan.tokens:
                return np.zeros((0, self.vocab_size), np.float32)
            return self.passes.run(plan, self.cache)
        except BaseException:
            for seq, length in before.items():
                self.cache.truncate(seq, min(length, self.cache.length(seq)))
            raise

    def _check(self, batch: Sequence[Segment]) -> None:
        if len({segment.seq for segment in batch}) < len(batch):
            raise ValueError("a sequence stands in the pass twice")
        for segment in batch:
            try:
                length = self.cache.length(segment.seq)
            except KeyError:
                raise ValueError(f"sequence {segment.seq} is unknown") from None
            rows = len(segment.tokens)
            if not 0 <= segment.num_wanted <= rows:
                raise ValueError(f"sequence {segment.seq}: {segment.num_wanted} of {rows} rows are wanted")
            parents_of(segment.parents, rows)
            reach = max(depths_of(segment), default=-1) + 1
            if length + reach > self.max_length:
                raise ValueError(f"sequence {segment.seq}: {length} + {reach} rows exceed {self.max_length}")
            wrong = [token for token in segment.tokens if not 0 <= token < self.vocab_size]
            if wrong:
                raise ValueError(f"token {wrong[0]} is not in the vocabulary of {self.vocab_size}")
