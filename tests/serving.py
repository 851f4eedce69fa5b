"""What the tests of the asynchronous engine and the server share: a toy model whose tokens are bytes, one
that waits to be let on, and a service over either."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from surefoot.asynchronous import AsyncEngine
from surefoot.engine import Engine
from surefoot.models.base import Model, Segment
from surefoot.models.tokenizer_parts import TokenizerParts
from surefoot.models.toy import ToyModel, random_table
from surefoot.results import Chunk, Result
from surefoot.server.service import Service
from surefoot.text import Tokenizer

PATIENCE = 60  # seconds; only a hang takes so long
NAME = "toy"
CONTEXT = 400
IM_START, IM_END = 256, 257  # behind the bytes, whose ids they are
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_TABLE = random_table(VOCAB_SIZE, order=2, seed=1)
_UNLIKELY = np.full(VOCAB_SIZE, -8, np.float32)
_UNLIKELY[[*b"abcdefghijklmnopqrstuvwxyz .", IM_END]] = 0


def prose(prefix: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits of a target that mostly writes small letters, and now and then ends."""
    return np.asarray(_TABLE(prefix), np.float32) + _UNLIKELY


def toy_model() -> ToyModel:
    return ToyModel(prose, VOCAB_SIZE, max_length=CONTEXT, eos_token_ids=(IM_END,))


class Gated(ToyModel):
    """The toy model whose passes, but for the first so many, wait until the gate is open; the first that
    does says that it is held."""

    def __init__(self, free: int = 0) -> None:
        super().__init__(prose, VOCAB_SIZE, CONTEXT, (IM_END,))
        self.gate, self._held = threading.Event(), threading.Event()
        self.passes, self._free = 0, free

    def forward(self, batch: Sequence[Segment]) -> NDArray[np.float32]:
        self.passes += 1
        if self.passes > self._free:
            self._held.set()
            assert self.gate.wait(PATIENCE)
        return super().forward(batch)

    async def is_held(self) -> None:
        assert await asyncio.to_thread(self._held.wait, PATIENCE)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Runs a coroutine, which must not hang."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(bounded())


def engine_of(model: ToyModel, **options: Any) -> Engine:
    return Engine(model, tokenizer=byte_tokenizer(), **options)


async def whole_answer(chunks: AsyncGenerator[Chunk, None]) -> Result:
    async with aclosing(chunks):
        result = [chunk async for chunk in chunks][-1].result
    assert result
    return result


async def idle(engine: AsyncEngine) -> None:
    """Returns once the engine holds no request; the caller bounds the wait."""
    while engine.load.running or engine.load.waiting:
        await asyncio.sleep(0)


async def taken(engine: AsyncEngine, count: int) -> None:
    """Returns once so many requests are the engine's business."""
    while len(engine._open) < count:
        await asyncio.sleep(0)


def byte_tokenizer(template: str | None = TEMPLATE, prefix: tuple[int, ...] = ()) -> Tokenizer:
    """One token per byte, whose value is its id, and two special ones for turns. prefix: before any text."""
    backend = Backend(BPE({letter: byte for byte, letter in enumerate(_byte_letters())}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    specials = ("<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    return Tokenizer(
        TokenizerParts(
            backend,
            "bytes",
            prefix=prefix,
            eos_ids=(IM_END,),
            template=template,
            eos_text="<|im_end|>",
        )
    )


def _byte_letters() -> list[str]:
    """GPT-2's letter for every byte: itself where that is printable, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@asynccontextmanager
async def toy_service(
    model: Model | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    timeout: float | None = None,
    max_waiting: int = 128,
    **engine: Any,
) -> AsyncIterator[Service]:
    """A service over the toy model, or another one of the same tokens; its engine is closed at the end.

    engine: further arguments of `Engine`.
    """
    tokenizer = tokenizer or byte_tokenizer()
    made = Engine(model or toy_model(), tokenizer=tokenizer, **engine)
    async with AsyncEngine(made, max_waiting=max_waiting) as running:
        yield Service(
            engine=running,
            tokenizer=tokenizer,
            names=(NAME,),
            max_length=CONTEXT,
            max_draft_tokens=32,
            timeout=timeout,
            created=1_700_000_000,
        )
