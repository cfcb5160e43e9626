"""A connection to the server under test on which what comes back can be spoilt on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from protocol.nnrp.splitter import Splitter

__all__ = ["Spoil", "spoiling_connect"]

_READ: Final = 65_536

Spoil = Callable[[bytes], bytes]
"""A whole packet of the server's, as it is to arrive."""


def spoiling_connect(spoil: Spoil) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
    """For `client.nnrp.NnrpOptions.connect`."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        return SpoiltStream(await trio.open_tcp_stream(host, port), spoil)

    return connect


class SpoiltStream(trio.abc.Stream):
    def __init__(self, stream: trio.abc.Stream, spoil: Spoil) -> None:
        self._stream = stream
        self._spoil = spoil
        self._splitter = Splitter()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            data = await self._stream.receive_some(_READ)
            if not data:
                return b""
            self._splitter.receive_data(data)
            if made := b"".join(self._spoil(bytes(each.data)) for each in self._splitter.packets()):
                return made

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()
