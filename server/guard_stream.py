"""One HTTP request of the server, which can be told about its end without a task that waits for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState

__all__ = ["STREAM", "GuardedHttpStream"]

STREAM: Final = "moorline.stream"
"""Key in ``scope["state"]`` under which a request finds its `GuardedHttpStream`."""


class GuardedHttpStream(HTTPStream):
    """Stands in for the library's class (`server.guard.install`)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._on_gone: Callable[[], None] | None = None

    def on_gone(self, call: Callable[[], None] | None) -> None:
        """Have ``call`` (synchronous) called when the peer has left, or the response is over; None: no more."""
        self._on_gone = call
        if call is not None and self.closed:
            call()

    async def handle(self, event: Any) -> None:
        if isinstance(event, Request):
            event = dataclasses.replace(event, state=ConnectionState({**event.state, STREAM: self}))
        elif isinstance(event, StreamClosed) and self._on_gone is not None:
            self._on_gone()
        await super().handle(event)
