"""A resume whose answer is lost: the session is not (nnrp-wire 13.7; the server's half is in test_nnrp_resume.py)."""

from __future__ import annotations

import pytest
import trio

from client.nnrp import NnrpOptions, open_nnrp
from protocol.nnrp.enums import MessageType
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.splitter import Splitter
from tests.support.nnrp import serving_nnrp


class Swallowing(trio.abc.Stream):
    """Ends in the client's eyes when told, or when the answer to its SESSION_OPEN comes; the server is told nothing."""

    def __init__(self, stream: trio.SocketStream, *, swallows: bool) -> None:
        self.stream = stream
        self.cut = trio.Event()
        self._swallows = swallows

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = b""
        async with trio.open_nursery() as nursery:

            async def wait_cut() -> None:
                await self.cut.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_cut)
            data = bytes(await self.stream.receive_some(65_536))
            nursery.cancel_scope.cancel()
        splitter = Splitter()
        splitter.receive_data(data)
        kinds = {decode_packet(bytes(each.data)).header.msg_type for each in splitter.packets()}
        if self.cut.is_set() or (self._swallows and MessageType.SESSION_OPEN_ACK in kinds):
            raise trio.BrokenResourceError
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_resume_is_asked_for_again_where_its_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server holds the connection to be alive on which nobody heard of the new token, and refuses the old one at first."""
    monkeypatch.setattr("server.nnrp.session.SILENCE", 0.3)
    monkeypatch.setattr("client.nnrp.openings.DOUBT", 0.5)
    streams: list[Swallowing] = []

    async def connect(host: str, port: int) -> trio.abc.Stream:
        streams.append(Swallowing(await trio.open_tcp_stream(host, port), swallows=len(streams) == 1))
        return streams[-1]

    with trio.fail_after(30):
        async with serving_nnrp() as served:
            async with open_nnrp(served.url, NnrpOptions(connect=connect)) as connection:
                session = await connection.open_session(resumable=True)
                assert (await session.request(b"one")).data == b"one"
                streams[0].cut.set()
                assert (await session.request(b"two")).data == b"two"
                assert len(streams) == 3
            for each in streams:
                await trio.aclose_forcefully(each.stream)
