"""The outermost wrapper: one request and its response, held to their deadlines and cleaned up after.

* The last message of a response is shielded for a few seconds. Without that, quart-trio cancels the task in the middle of
  the server's own recycling, so that ``Connection: close`` is not honoured and the keep-alive clock is never set again.
* Before it, what is left of the request body is awaited for a moment: a socket closed on unread bytes is reset, and the
  reset can overtake the answer.
* Every send has a deadline of its own; over HTTP/2 no transport deadline sees a peer whose window is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from server.connection import CLEANUPS, CONNECTION, RequestSends
from server.middleware.asgi import App, Message, Receive, Scope, Send
from server.telemetry import EndReason, log

__all__ = ["Exchange", "PeerTooSlow"]

_LAST_MESSAGE: Final = 5.0
"""Seconds the shield around the last message holds."""
_LINGER: Final = 2.0
"""Seconds the rest of an unread request body is awaited."""
_DISCARD_BYTES: Final = 64 * 2**20
"""What of it is read at most."""
_TRANSPORT: Final = "moorline.transport"
_STREAM: Final = "moorline.stream"
"""Where the guard puts its objects (`server.guard`, `server.guard_stream`); named here so that this does not need the guard."""


class PeerTooSlow(Exception):
    """The peer did not take what was sent to it in time."""


class Exchange:
    """ASGI wrapper. ``send_timeout`` in seconds."""

    def __init__(self, app: App, *, send_timeout: float) -> None:
        self._app = app
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state", {})
        multiplexed = scope.get("http_version", "1.1").startswith("2")
        sends = RequestSends(state.get(_TRANSPORT), state.get(_STREAM), multiplexed=multiplexed)
        cleanups: list[Callable[[], object]] = []
        scope[CONNECTION] = sends
        scope[CLEANUPS] = cleanups
        one = _One(receive, send, sends, self._send_timeout)
        # HTTP/2 ends one stream; the connection, and with it the answer, is not in danger.
        one.linger = not multiplexed
        try:
            await self._app(scope, one.receive, one.send)
        except* PeerTooSlow:
            log.info("request_ended", path=scope["path"], reason=EndReason.SLOW_READER)
        finally:
            _clean_up(cleanups)


def _clean_up(cleanups: list[Callable[[], object]]) -> None:
    for call in reversed(cleanups):
        try:
            call()
        except Exception:
            # One clean-up must not keep the others from running; it is a defect and is logged as one.
            log.exception("request_clean_up_failed")


class _One:
    """One request and its response."""

    def __init__(self, receive: Receive, send: Send, sends: RequestSends, timeout: float) -> None:
        self._receive = receive
        self._send = send
        self._sends = sends
        self._timeout = timeout
        self._receiving = False
        self._request_read = trio.Event()
        self._discarded = 0
        self.linger = True

    async def receive(self) -> Message:
        self._receiving = True
        try:
            message = await self._receive()
        finally:
            self._receiving = False
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._request_read.set()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._send_last(message)
            return
        if not self._sends.timed_here:
            await self._send(message)
            return
        with self._sends.begin(self._timeout) as sending:
            await self._send(message)
        self._sends.end()
        if sending.cancelled_caught:
            raise PeerTooSlow

    async def _send_last(self, message: Message) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_MESSAGE) as ending:
            if self.linger and not self._request_read.is_set():
                if message.get("body"):
                    # The whole answer first: the peer can read it while it is still sending.
                    await self._send({**message, "more_body": True})
                    message = {**message, "body": b""}
                await self._see_off()
            await self._send(message)
        if ending.cancelled_caught:
            raise PeerTooSlow
        self._sends.answered = True

    async def _see_off(self) -> None:
        """Wait a moment for the rest of the request, throwing it away where the application does not read it any more."""
        with trio.move_on_after(_LINGER):
            # The application's reader may not have had its first turn yet; two readers would take from each other.
            await trio.lowlevel.checkpoint()
            if self._receiving:
                await self._request_read.wait()
            while not self._request_read.is_set() and self._discarded < _DISCARD_BYTES:
                self._discarded += len((await self.receive()).get("body", b""))
