"""Texts that end too late."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.engine import Engine
from surefoot.loop import Loop
from surefoot.request import Request


def ends_at_the_last_alone(request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
    """Looks for the end of the text at the last token of a block alone (transformers #47912)."""
    ends, request._end_ids = request._end_ids, frozenset()
    inner = request.extend(tokens[:-1])
    request._end_ids = ends
    return (*inner, *request.extend(tokens[-1:]))


class _OneTokenMoreLoop(Loop):
    def _budget(self, request: Request, load: int) -> int:
        return self._controller.budget(request.seq, load)

    def _extend(self, request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
        emitted = request.extend(tokens)
        if request.finish_reason != "length" or len(emitted) == len(tokens):
            return emitted
        beyond = tokens[len(emitted)]
        request.output.append(beyond)
        request.tokens.append(beyond)
        return (*emitted, beyond)


class OneTokenMore(Engine):
    """Drafts as if there were no limit, and looks for it a token late (transformers #46993)."""

    loop_type = _OneTokenMoreLoop
