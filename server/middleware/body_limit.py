"""Bounds on the request body: never more than the limit in memory, and not for ever."""

from __future__ import annotations

from typing import Final

import trio

from server.middleware.asgi import App, Message, Receive, Scope, Send, header, respond

__all__ = ["BodyLimit"]

_RATE: Final = 16 * 1024
"""Bytes per second a body must come at on the whole, beyond its first allowance of time."""


class _Refused(Exception):
    """The body broke a bound: ``status`` and ``body`` of the answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class BodyLimit:
    """ASGI wrapper. ``largest`` in bytes, ``timeout`` in seconds.

    413 comes at once for a declared length, and at the first byte too many of a chunked body.
    """

    def __init__(self, app: App, *, largest: int, timeout: float) -> None:
        self._app = app
        self._largest = largest
        self._timeout = timeout
        self._too_large = b'{"error":"Request body too large (max %d MB)"}' % max(1, largest // 2**20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        incoming = _Incoming(receive, self._largest, self._timeout, self._too_large)
        outgoing = _Outgoing(send)
        refused: list[_Refused] = []
        try:
            incoming.check_declared(header(scope, b"content-length"))
            await self._app(scope, incoming.receive, outgoing.send)
        except* _Refused as errors:
            refused.append(_first(errors))
        if refused and not outgoing.started:
            # What of the body is still to come is thrown away by the outermost wrapper, so that the peer sees the refusal.
            await respond(send, refused[0].status, refused[0].body, [(b"connection", b"close")])


def _first(errors: BaseExceptionGroup[_Refused]) -> _Refused:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Incoming:
    def __init__(self, receive: Receive, largest: int, timeout: float, too_large: bytes) -> None:
        self._receive = receive
        self._largest = largest
        self._deadline = trio.current_time() + timeout
        self._too_large = too_large
        self._size = 0
        self._complete = False

    def check_declared(self, length: str | None) -> None:
        if length is not None and length.isdecimal() and int(length) > self._largest:
            raise _Refused(413, self._too_large)

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        message: Message | None = None
        with trio.CancelScope(deadline=self._deadline + self._size / _RATE):
            message = await self._receive()
        if message is None:
            raise _Refused(408, b'{"error":"Request body took too long"}')
        self._count(message)
        if self._size > self._largest:
            raise _Refused(413, self._too_large)
        return message

    def _count(self, message: Message) -> None:
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        else:
            self._complete = True


class _Outgoing:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def send(self, message: Message) -> None:
        self.started = True
        await self._send(message)
