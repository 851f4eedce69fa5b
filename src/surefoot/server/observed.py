"""An engine that is watched: every answer is measured."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from surefoot.asynchronous import AsyncEngine
from surefoot.server.logs import log
from surefoot.types import ClosedError, DeadlineError, SamplingParams, SurefootError

if TYPE_CHECKING:
    from surefoot.engine import Engine
    from surefoot.prompts import Prompt
    from surefoot.results import Chunk, Result
    from surefoot.server.metrics import Metrics


class ObservedEngine(AsyncEngine):
    """Measures requests where they are consumed, so with the time that they wait. log_prompts: whether
    prompts and answers appear in the log."""

    def __init__(
        self, engine: Engine, metrics: Metrics, *, max_waiting: int = 128, log_prompts: bool = False
    ) -> None:
        super().__init__(engine, max_waiting=max_waiting)
        self._tokenizer = engine.tokenizer
        self._metrics, self._log_prompts = metrics, log_prompts
        metrics.watch(lambda: self.load)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        chat: bool = False,
        draft_tokens: int | None = None,
        cache_salt: str = "",
        deadline: float | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        began = time.perf_counter()
        last: dict[int, float] = {}  # when each choice had its latest tokens
        ended: str | None = "abort"
        asked = super().generate(
            prompt,
            params,
            chat=chat,
            draft_tokens=draft_tokens,
            cache_salt=cache_salt,
            deadline=deadline,
        )
        try:
            async with aclosing(asked) as chunks:
                async for chunk in chunks:
                    self._measure(chunk, began, last)
                    if chunk.result:
                        self._finish(chunk.result, began)
                        ended = None
                    yield chunk
        except (DeadlineError, ClosedError):
            raise
        except SurefootError:
            ended = "error" if last else None  # else it was refused
            raise
        except Exception:
            ended = "error"
            raise
        finally:
            if ended:
                self._metrics.end(ended, time.perf_counter() - began)

    def _measure(self, chunk: Chunk, began: float, last: dict[int, float]) -> None:
        now = time.perf_counter()
        if chunk.choice in last:
            self._metrics.later_tokens(now - last[chunk.choice], len(chunk.token_ids))
        else:
            self._metrics.first_token(now - began)
        last[chunk.choice] = now

    def _finish(self, result: Result, began: float) -> None:
        self._metrics.finish(result, time.perf_counter() - began)
        if self._log_prompts:
            ids = result.prompt_token_ids
            prompt = self._tokenizer.decode(ids, skip_special=False) if self._tokenizer else ids
            log("info", "answer", prompt=prompt, answers=[choice.text for choice in result.choices])
