"""A very small HTTP/2 client, for tests that need to be rude."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import trio

from tests.support.http import RawConnection

__all__ = ["Http2"]


class Http2:
    """A client over HTTP/2: with prior knowledge in the clear, or over TLS.

    ``acknowledge`` False: it never opens its window again.
    """

    def __init__(self, raw: RawConnection, *, acknowledge: bool = True) -> None:
        self.raw = raw
        self.acknowledge = acknowledge
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.statuses: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.bodies: dict[int, bytes] = {}
        self.goodbye: int | None = None
        self.gone = False

    async def start(self) -> None:
        self.connection.initiate_connection()
        await self.flush()

    def open_stream(self, method: str, path: str, *, end: bool = True, **more: str) -> int:
        """Further headers with underscores."""
        stream = self.connection.get_next_available_stream_id()
        headers = [
            (":method", method),
            (":path", path),
            (":scheme", "https" if isinstance(self.raw.stream, trio.SSLStream) else "http"),
            (":authority", f"127.0.0.1:{self.raw.port}"),
            *((name.replace("_", "-").lower(), value) for name, value in more.items()),
        ]
        self.connection.send_headers(stream, headers, end_stream=end)
        return stream

    async def flush(self) -> None:
        data = self.connection.data_to_send()
        if data:
            await self.raw.send(data)

    async def step(self) -> None:
        try:
            await self._step()
        except trio.BrokenResourceError:
            self.gone = True

    async def _step(self) -> None:
        if not await self.raw.more():
            self.gone = True
            return
        data = bytes(self.raw.buffer)
        self.raw.buffer.clear()
        for event in self.connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                if self.acknowledge:
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ends[event.stream_id] = "ended"
            elif isinstance(event, h2.events.StreamReset):
                self.ends[event.stream_id] = "reset"
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.goodbye = event.error_code
        await self.flush()

    async def status(self, stream: int) -> int:
        while stream not in self.statuses and not self.gone:
            await self.step()
        return self.statuses[stream]

    async def end_of(self, stream: int) -> str:
        while stream not in self.ends and not self.gone:
            await self.step()
        return self.ends.get(stream, "connection lost")

    async def wait_end(self, within: float) -> None:
        with trio.fail_after(within):
            while not self.gone:
                await self.step()
