"""A connection as uvicorn has it, with an end: what a client began to ask gets an answer."""

from __future__ import annotations

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from surefoot.server.errors import api_error
from surefoot.server.middleware import error_response
from surefoot.types import ClosedError


class Wire(H11Protocol):
    """uvicorn closes a connection without a word when it hasn't read the head of a request; this one says
    whether there is something to wait for, and refuses what isn't there in the end."""

    patience = 5.0
    """Seconds that a client has for its first byte once it is connected."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._began = self.loop.time()
        self._heard = False

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)

    @property
    def is_owed(self) -> bool:
        """Whether there is, or may soon be, a request here that has no answer yet. A connection that rests
        between two requests is owed nothing."""
        if self.transport.is_closing():
            return False
        if not self._heard:
            return self.loop.time() < self._began + self.patience
        return self._answers or self._has_half_a_head

    def shutdown(self) -> None:
        if self._has_half_a_head and not self.transport.is_closing():
            self._refuse()
        else:
            super().shutdown()

    @property
    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_half_a_head(self) -> bool:
        return self.conn.our_state is h11.IDLE and bool(self.conn.trailing_data[0])

    def _refuse(self) -> None:
        told = error_response(api_error(ClosedError("server: it closed before the request was complete")))
        headers = [*self.server_state.default_headers, *told.raw_headers]
        head = [b"HTTP/1.1 503 Service Unavailable", *(b": ".join(field) for field in headers), b""]
        self.transport.write(b"\r\n".join([*head, bytes(told.body)]))
        self.transport.close()
