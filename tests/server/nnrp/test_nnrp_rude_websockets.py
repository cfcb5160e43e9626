"""What a WebSocket peer may do that nobody should, on the HTTP port and on a port of its own, over raw sockets (issue 5, Bad
input): it costs that peer at most, memory is bounded, and somebody else on the same port is served all the time."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio

from client.nnrp import NnrpConnection, open_nnrp
from protocol.nnrp.enums import MessageType
from protocol.nnrp.messages import Ping
from protocol.nnrp.packet import encode_packet
from tests.server.nnrp.test_nnrp_websocket import WHERE, Place, serving
from tests.support.nnrp import HELLO, OPEN, submit_packet

MIB = 1 << 20
TEXT, BINARY, CONTINUED, PINGED = 1, 2, 0, 9


def frame(
    data: bytes, kind: int = BINARY, *, end: bool = True, masked: bool = True, declared: int | None = None
) -> bytes:
    """One frame as RFC 6455 has it, or with another length than its own."""
    size = len(data) if declared is None else declared
    head = bytes([kind | 0x80 * end])
    bit = 0x80 * masked
    if size < 126:
        head += bytes([size | bit])
    else:
        head += (
            bytes([126 | bit]) + struct.pack(">H", size)
            if size < 1 << 16
            else bytes([127 | bit]) + struct.pack(">Q", size)
        )
    return head + (bytes(4) if masked else b"") + data


@asynccontextmanager
async def upgraded(place: Place) -> AsyncIterator[trio.SocketStream]:
    """A connection that has been upgraded, and on which hello was said and a session opened."""
    parts = urlsplit(place.url)
    assert parts.port is not None
    async with await trio.open_tcp_stream("127.0.0.1", parts.port) as stream:
        await stream.send_all(
            b"GET /nnrp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % parts.port
        )
        got = b""
        with trio.fail_after(10):
            while b"\r\n\r\n" not in got:
                got += await stream.receive_some(4096)
            assert b" 101 " in got
            await stream.send_all(frame(encode_packet(HELLO)) + frame(encode_packet(OPEN)))
            while b"NNRP" + bytes([1, 0, MessageType.SESSION_OPEN_ACK]) not in got:
                got += await stream.receive_some(4096)
        yield stream


async def rest(stream: trio.SocketStream) -> bytes:
    """What comes until the server hangs up."""
    got = b""
    with trio.fail_after(20):
        while True:
            try:
                data = await stream.receive_some(65_536)
            except trio.BrokenResourceError:
                return got
            if not data:
                return got
            got += data


@asynccontextmanager
async def somebody_else(place: Place) -> AsyncIterator[NnrpConnection]:
    """Another client works before, while and after."""
    async with open_nnrp(place.url) as connection:
        session = await connection.open_session()
        assert (await session.request(b"before")).data == b"before"
        yield connection
        with trio.fail_after(5):
            assert (await session.request(b"after")).data == b"after"


def memory() -> int:
    """Resident bytes of this process, the server's among them."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ENDS = {
    "not masked": frame(encode_packet(Ping()), masked=False),
    "an opcode there is not": frame(b"", 3),
    "reserved bits": bytes([BINARY | 0xF0]) + frame(encode_packet(Ping()))[1:],
    "a continuation of nothing": frame(b"x", CONTINUED),
    "a message inside a message": frame(b"x", end=False) + frame(b"y"),
    "a long control frame": frame(bytes(200), PINGED),
    "a control frame in pieces": frame(b"", PINGED, end=False),
    "text that is no UTF-8": frame(b"\xff\xfe", TEXT),
}


@WHERE
@pytest.mark.parametrize("name", ENDS)
async def test_frames_that_end_the_connection(tmp_path: Path, where: str, name: str) -> None:
    """RFC 6455: the connection ends, whatever came before."""
    async with serving(where, tmp_path) as place, somebody_else(place), upgraded(place) as stream:
        before = memory()
        await stream.send_all(ENDS[name])
        await rest(stream)
        assert memory() - before < 16 * MIB
        await place.wait_until(lambda: len(place.service.links) == 1)


TOO_LONG = {
    "fragments without end": frame(b"NNRP", end=False) + frame(b"x", CONTINUED, end=False) * 1000,
    "a length of 2^63 - 1": frame(b"", declared=(1 << 63) - 1),
    "a length of 8 GiB": frame(b"", declared=8 << 30),
}


@WHERE
@pytest.mark.parametrize("name", TOO_LONG)
async def test_messages_that_do_not_end(tmp_path: Path, where: str, name: str) -> None:
    """nnrp-extensions, WebSocket: cut off where a packet could not be larger, whatever length is declared; nothing is made
    ready for what has not come, and byte by byte it costs no more."""
    piece = frame(bytes(MIB), CONTINUED, end=False) if name == "fragments without end" else bytes(MIB)
    async with serving(where, tmp_path) as place, somebody_else(place), upgraded(place) as stream:
        before = memory()
        await stream.send_all(TOO_LONG[name])
        await trio.sleep(0.05)
        assert memory() - before < 16 * MIB
        with trio.fail_after(20):
            try:
                while True:
                    await stream.send_all(piece)
            except trio.BrokenResourceError:
                pass
        assert memory() - before < 160 * MIB
        await place.wait_until(lambda: len(place.service.links) == 1)


@WHERE
async def test_one_packet_in_a_thousand_fragments(tmp_path: Path, where: str) -> None:
    """Fragments mean nothing: one message is one packet, however it is cut, with pings in between."""
    packet = submit_packet(1, b"partial=1;" + bytes(900))
    cut = [packet[at : at + 1] for at in range(len(packet))]
    data = frame(cut[0], end=False)
    for each in cut[1:-1]:
        data += frame(each, CONTINUED, end=False)
    data += frame(b"ping", PINGED) + frame(cut[-1], CONTINUED)
    async with serving(where, tmp_path) as place, somebody_else(place), upgraded(place) as stream:
        await stream.send_all(data)
        got = b""
        with trio.fail_after(10):
            while len(got) < len(packet):
                got += await stream.receive_some(65_536)
        assert bytes(900) in got


@WHERE
@pytest.mark.parametrize("what", ["pings", "empty pieces", "small pieces", "packets"])
async def test_floods_of_a_peer_that_never_reads(tmp_path: Path, where: str, what: str) -> None:
    """What is answered is not answered for ever, and what is not costs nothing: memory is bounded while it lasts."""
    flood = {
        "pings": frame(bytes(100), PINGED) * 500,
        "empty pieces": frame(b"", end=False) + frame(b"", CONTINUED, end=False) * 5000,
        "small pieces": frame(b"", end=False) + frame(b"xy", CONTINUED, end=False) * 5000,
        "packets": frame(encode_packet(Ping())) * 1000,
    }[what]
    async with serving(where, tmp_path) as place, somebody_else(place) as connection, upgraded(place) as stream:
        before = memory()
        session = await connection.open_session()
        served = 0
        with trio.move_on_after(1.5):
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    try:
                        await stream.send_all(flood)
                        while True:
                            await stream.send_all(
                                flood[len(frame(b"", end=False)) :] if what == "empty pieces" else flood
                            )
                    except trio.BrokenResourceError:
                        return

                nursery.start_soon(ask)
                while True:
                    assert (await session.request(b"%d" % served)).data == b"%d" % served
                    served += 1
        assert served > 3
        assert memory() - before < 32 * MIB


@WHERE
async def test_connections_that_are_reset_inside_a_frame(tmp_path: Path, where: str) -> None:
    """Not even a FIN: each leaves nothing behind, and its operation ends."""
    async with serving(where, tmp_path) as place, somebody_else(place):
        for _ in range(20):
            async with upgraded(place) as stream:
                await stream.send_all(frame(submit_packet(1, b"sleep=60000;")) + frame(submit_packet(2))[:30])
                await place.wait_until(lambda: place.service.statistics().operations == 1)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.socket.close()
            await place.wait_until(lambda: place.service.statistics().operations == 0)
        await place.wait_until(lambda: len(place.service.links) == 1)
