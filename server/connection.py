"""What the routes may know about, and do to, the connection and request they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import trio

__all__ = ["CLEANUPS", "CONNECTION", "Connection", "RequestSends", "connection_of", "on_request_end"]

CONNECTION: Final = "moorline.connection"
"""Key in the ASGI scope under which the outermost wrapper puts a `Connection`."""
CLEANUPS: Final = "moorline.cleanups"
"""Key in the ASGI scope under which the outermost wrapper keeps what is to be called when the request ends."""


class Connection(Protocol):
    """The transport of a request, as the guard has it."""

    @property
    def over(self) -> bool:
        """It has ended, or is about to: nothing that is sent from here on will be read."""
        ...

    @property
    def cut(self) -> bool:
        """It ended without a goodbye of the peer, or with one that crossed what was on its way."""
        ...

    def hurry(self, seconds: float) -> None:
        """Give the send in progress, if there is one, ``seconds`` more; the connection is closed when it takes longer."""
        ...

    def bear_with(self, seconds: float | None) -> None:
        """How long a peer may accept nothing from here on; None: as everywhere (``--send-timeout-ms``)."""
        ...


class RequestSends:
    """What one request may do with its connection, and the deadlines of what it sends.

    ``transport`` and ``stream`` are what the guard put into the ASGI state, None under another server. Over HTTP/1.1 the
    transport times each send itself. Over HTTP/2 a send waits for the peer's flow-control window, which no transport sees:
    then, and under another server, each send has a scope here.
    """

    __slots__ = ("_multiplexed", "_own_timeout", "_sending", "_stream", "_transport", "answered", "timed_here")

    def __init__(self, transport: Connection | None, stream: Any, *, multiplexed: bool) -> None:
        self.answered = False
        """The whole response was handed to the transport."""
        self.timed_here = transport is None or multiplexed
        self._multiplexed = multiplexed
        self._transport = transport
        self._stream = stream
        self._sending: trio.CancelScope | None = None
        self._own_timeout: float | None = None

    @property
    def cut(self) -> bool:
        """The peer went without a goodbye: what was sent last may not have arrived.

        HTTP/2 knows no other way to leave a response than a reset, and nobody can tell what crossed it.
        """
        return (self._transport is not None and self._transport.cut) or (self._multiplexed and self._left)

    @property
    def over(self) -> bool:
        """The peer has left: what is sent from here on goes nowhere."""
        return (self._transport is not None and self._transport.over) or self._left

    @property
    def _left(self) -> bool:
        return self._stream is not None and self._stream.closed

    def begin(self, timeout: float) -> trio.CancelScope:
        own = self._own_timeout
        self._sending = trio.CancelScope(deadline=trio.current_time() + (timeout if own is None else own))
        return self._sending

    def end(self) -> None:
        self._sending = None

    def hurry(self, seconds: float) -> None:
        if self.timed_here:
            if self._sending is None:
                return
            self._sending.deadline = min(self._sending.deadline, trio.current_time() + seconds)
        if self._transport is not None:
            self._transport.hurry(seconds)

    def bear_with(self, seconds: float | None) -> None:
        self._own_timeout = seconds
        if self._transport is not None and not self.timed_here:
            self._transport.bear_with(seconds)

    def on_gone(self, call: Callable[[], None] | None) -> bool:
        """Have ``call`` called when the peer leaves; None: no more. False where the server cannot tell but by a message."""
        if self._stream is None:
            return False
        self._stream.on_gone(call)
        return True


def connection_of(scope: Mapping[str, Any]) -> RequestSends:
    connection: RequestSends = scope[CONNECTION]
    return connection


def on_request_end(scope: MutableMapping[str, Any], call: Callable[[], object]) -> None:
    """Have ``call`` (synchronous, idempotent) called when the request is over, however it ends."""
    scope[CLEANUPS].append(call)
