"""NNRP over QUIC as the aioquic client sees it, by hand: streams, datagrams, addresses, and what is done about bad input
(nnrp-wire 2.1, 2.4)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, DatagramFrameReceived, QuicEvent, StreamDataReceived

from client.nnrp import NnrpConnectionLost, NnrpOptions, open_nnrp
from protocol.nnrp.enums import ErrorCode, MessageType
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.messages import Error, FrameCancel, Ping
from protocol.nnrp.packet import Packet, encode_packet
from protocol.nnrp.splitter import Splitter
from server.nnrp.policy import ServingPolicy
from server.nnrp.quic_library import load_library
from server.nnrp.quic_listener import listen_quic
from server.nnrp.quic_packets import RetryTokens, parse_head
from server.nnrp.service import open_service
from server.nnrp.workers.echo import EchoWorker
from tests.support.certificates import make_signed_certificate
from tests.support.nnrp import HELLO, OPEN, raw, submit_packet, text_of
from tests.support.nnrp_transports import Place, in_asyncio, serving_everywhere


class Peer(QuicConnectionProtocol):
    """Keeps what comes: packets with their stream, whether a stream has ended, datagrams."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.packets: asyncio.Queue[tuple[int, Packet]] = asyncio.Queue()
        self.datagrams: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: set[int] = set()
        self.over = asyncio.Event()
        self._splitters: dict[int, Splitter] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            splitter = self._splitters.setdefault(event.stream_id, Splitter())
            splitter.receive_data(event.data)
            for each in splitter.packets():
                self.packets.put_nowait((event.stream_id, each.decode(strict=True)))
            if event.end_stream:
                self.ended.add(event.stream_id)
        elif isinstance(event, DatagramFrameReceived):
            self.datagrams.put_nowait(event.data)
        elif isinstance(event, ConnectionTerminated):
            self.over.set()

    def put(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        self._quic.send_stream_data(stream_id, data, end)
        self.transmit()

    def put_uni(self, data: bytes) -> None:
        self.put(self._quic.get_next_available_stream_id(is_unidirectional=True), data, end=True)

    def put_datagram(self, data: bytes) -> None:
        self._quic.send_datagram_frame(data)
        self.transmit()

    async def next(self, kind: MessageType | None = None) -> tuple[int, Packet]:
        stream_id, packet = await asyncio.wait_for(self.packets.get(), 10)
        assert kind is None or packet.kind is kind, packet
        return stream_id, packet


@asynccontextmanager
async def connected(host: str, port: int, ca_file: str, alpn: str = "nnrp/1") -> AsyncIterator[Peer]:
    configuration = QuicConfiguration(alpn_protocols=[alpn], is_client=True, max_datagram_frame_size=65536)
    configuration.load_verify_locations(cafile=ca_file)
    async with connect(host, port, configuration=configuration, create_protocol=Peer) as peer:
        assert isinstance(peer, Peer)
        yield peer


def where(place: Place) -> tuple[str, int, str]:
    return (*place.host_and_port("quic"), str(place.certificate.authority))


async def greeted(peer: Peer) -> None:
    peer.put(0, encode_packet(HELLO))
    await peer.next(MessageType.SERVER_HELLO_ACK)
    peer.put(0, encode_packet(OPEN))
    await peer.next(MessageType.SESSION_OPEN_ACK)


async def default_shape(*to: Any) -> list[Any]:
    seen: list[Any] = []
    async with connected(*to) as peer:
        await greeted(peer)
        for number in (1, 2):
            peer.put_uni(submit_packet(number, b"%d" % number))
            stream_id, packet = await peer.next(MessageType.RESULT_PUSH)
            seen.append((stream_id & 3, text_of(packet), stream_id in peer.ended))
        peer.put_uni(submit_packet(3, b"partial=3;abcdefghi"))
        parts = [await peer.next(MessageType.RESULT_PUSH) for _ in range(3)]
        seen.append((len({stream_id for stream_id, _ in parts}), b"".join(text_of(each) for _, each in parts)))
        seen.append(parts[0][0] in peer.ended)
        # Several packets on one unidirectional stream, and a ping on a further bidirectional one.
        peer.put_uni(submit_packet(4, b"4") + submit_packet(5, b"5"))
        seen.append(sorted([text_of((await peer.next())[1]) for _ in range(2)]))
        peer.put(4, encode_packet(Ping()))
        seen.append((await peer.next(MessageType.PONG))[0])
        seen.append(peer._quic._retry_count)
    return seen


@pytest.mark.parametrize("library", ["qh3", "aioquic"])
async def test_a_stream_for_every_answer(tmp_path: Path, library: str) -> None:
    """nnrp-wire 2.4: submits and results on unidirectional streams, the rest on the control stream; any packet is accepted on
    any stream. The parts of one answer share a stream, in order. The address was proved by a retry."""
    async with serving_everywhere(tmp_path, library=library) as place:
        seen = await in_asyncio(default_shape, *where(place))
        await place.wait_until(lambda: not place.service.links)
    assert seen == [
        (3, b"1", True),
        (3, b"2", True),
        (1, b"partial=3;abcdefghi"),
        True,
        [b"4", b"5"],
        0,
        1,
    ]
    assert place.service.violations == 0


async def one_stream(first: str, *to: Any) -> set[int]:
    async with connected(*to) as peer:
        streams = set()
        if first == "hello":
            peer.put(0, encode_packet(HELLO))
            await peer.next(MessageType.SERVER_HELLO_ACK)
        peer.put(0, encode_packet(OPEN))
        streams.add((await peer.next(MessageType.SESSION_OPEN_ACK))[0])
        peer.put(0, submit_packet(1, b"partial=2;abcd"))
        for _ in range(2):
            streams.add((await peer.next(MessageType.RESULT_PUSH))[0])
        return streams


@pytest.mark.parametrize("first", ["hello", "session"])
async def test_everything_on_one_stream(tmp_path: Path, first: str) -> None:
    """nnrp-wire 2.4, sender rules: a client that submits on the control stream, or says no hello, is answered there."""
    async with serving_everywhere(tmp_path) as place:
        assert await in_asyncio(one_stream, first, *where(place)) == {0}


async def by_datagram(*to: Any) -> list[Any]:
    seen: list[Any] = []
    async with connected(*to) as peer:
        await greeted(peer)
        for wrong in (b"", b"x" * 40, encode_packet(Ping()) * 2, encode_packet(Ping())[:-1], encode_packet(HELLO)):
            peer.put_datagram(wrong)
        peer.put_datagram(encode_packet(Ping(), session_id=7))
        pong = await asyncio.wait_for(peer.datagrams.get(), 10)
        seen.append((len(pong), pong[6] == MessageType.PONG, pong[20]))
        peer.put(0, encode_packet(Ping()))
        seen.append((await peer.next(MessageType.PONG))[0])
        peer.put_uni(submit_packet(1, b"sleep=60000;"))
        # It may come before the submit it means; that counts all the same.
        peer.put_datagram(encode_packet(FrameCancel(), session_id=1, frame_id=1))
        _, packet = await peer.next()
        seen.append(packet.kind)
    return seen


async def test_datagrams(tmp_path: Path) -> None:
    """nnrp-wire 2.4: exactly one whole FRAME_CANCEL, PING or PONG; anything else is dropped without a word. A PONG goes the
    way its PING came."""
    async with serving_everywhere(tmp_path) as place:
        seen = await in_asyncio(by_datagram, *where(place))
    assert seen == [(40, True, 7), 0, MessageType.RESULT_DROP]
    assert place.service.violations == 0


BAD = {
    "garbage on the control stream": (0, b"X" * 40, False),
    "a huge body": (0, raw(Ping())[:16] + b"\xff\xff\xff\x7f" + raw(Ping())[20:], False),
    "half a packet on a stream of its own": (2, raw(HELLO)[:60], True),
    "garbage on a stream of its own": (2, b"\x00" * 64, True),
}


async def misbehave(stream_id: int, data: bytes, end: bool, *to: Any) -> list[int]:
    async with connected(*to) as bad, connected(*to) as good:
        await greeted(bad)
        await greeted(good)
        bad.put(stream_id, data, end=end)
        codes = []
        _, packet = await bad.next(MessageType.ERROR)
        assert isinstance(packet.metadata, Error)
        assert packet.metadata.is_fatal
        codes.append(packet.metadata.error_code)
        await asyncio.wait_for(bad.over.wait(), 10)
        good.put_uni(submit_packet(1, b"fine"))
        assert text_of((await good.next(MessageType.RESULT_PUSH))[1]) == b"fine"
    return codes


@pytest.mark.parametrize("name", list(BAD))
async def test_bad_streams(tmp_path: Path, name: str) -> None:
    """nnrp-wire 2.1: framing that fails on any stream is an ERROR and the end of the connection, and of no other."""
    async with serving_everywhere(tmp_path) as place:
        codes = await in_asyncio(misbehave, *BAD[name], *where(place))
        await place.wait_until(lambda: not place.service.links)
    assert set(codes) <= {ErrorCode.MALFORMED_HEADER, ErrorCode.LIMIT_EXCEEDED}
    assert len(codes) == 1


async def test_another_alpn_is_refused(tmp_path: Path) -> None:
    """nnrp-wire 1, 2.4: `nnrp/1` is required."""

    async def hello(host: str, port: int, ca_file: str) -> None:
        async with connected(host, port, ca_file, "h3"):
            pass

    async with serving_everywhere(tmp_path) as place:
        with pytest.raises(ConnectionError):
            await in_asyncio(hello, *where(place))
        async with open_nnrp(place.urls["quic"], place.options) as connection:
            assert await connection.ping() >= 0


async def test_nothing_is_kept_for_an_address_that_is_not_proved(tmp_path: Path) -> None:
    """Issue 5, Listeners, address validation: an Initial without a token is answered with a retry and forgotten; garbage and
    short datagrams are not answered at all."""
    initial = bytes([0xC3]) + (1).to_bytes(4, "big") + b"\x08ABCDEFGH\x04abcd" + b"\x00" + b"\x44\x96" + bytes(1200)
    async with serving_everywhere(tmp_path) as place:
        address = place.host_and_port("quic")
        udp = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with udp:
            for wrong in (b"", b"\xff", bytes(50), initial[:600], bytes([0x43]) + bytes(1300)):
                await udp.sendto(wrong, address)
            for _ in range(50):
                await udp.sendto(initial, address)
            with trio.fail_after(10):
                for _ in range(50):
                    data = await udp.recv(2048)
                    head = parse_head(data, 8)
                    assert head is not None
                    assert (data[0] >> 4) & 3 == 3
                    assert head.destination == b"abcd"
                    assert len(data) < 200
            # A version nobody speaks is told which one we do.
            await udp.sendto(initial[:1] + b"\x1a\x2a\x3a\x4a" + initial[5:], address)
            with trio.fail_after(10):
                data = await udp.recv(2048)
            assert data[1:5] == bytes(4)
            assert data[-4:] == (1).to_bytes(4, "big")
            # A token made by somebody else opens nothing.
            forged = initial[:19] + b"\x40\x40" + bytes(64) + b"\x44\x96" + bytes(1200)
            await udp.sendto(forged, address)
            with trio.move_on_after(0.2):
                raise AssertionError(await udp.recv(2048))
        assert not place.service.links


def test_retry_tokens() -> None:
    """RFC 9000, 8.1.4: bound to the address and to both ids, made here, and soon over."""
    tokens = RetryTokens()
    here = ("127.0.0.1", 5000)
    token = tokens.make(here, b"original", b"source", 100.0)
    assert tokens.check(here, token, 101.0) == (b"original", b"source")
    assert tokens.check(here, token, 131.0) is None
    assert tokens.check(("127.0.0.1", 5001), token, 101.0) is None
    assert tokens.check(("127.0.0.2", 5000), token, 101.0) is None
    assert RetryTokens().check(here, token, 101.0) is None
    for at in range(len(token)):
        assert tokens.check(here, token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :], 101.0) is None
        assert tokens.check(here, token[:at], 101.0) is None


async def test_many_connections_on_one_socket(tmp_path: Path) -> None:
    """Issue 5, Listeners: each has its sessions; over the limit the next is not answered, and others go on."""
    policy = ServingPolicy(max_connections=30)
    done: list[int] = []
    async with serving_everywhere(tmp_path, policy) as place:

        async def use(number: int, everybody: trio.Event) -> None:
            async with open_nnrp(place.urls["quic"], place.options) as connection:
                session = await connection.open_session()
                assert (await session.request(b"%d" % number)).data == b"%d" % number
                done.append(number)
                await everybody.wait()

        everybody = trio.Event()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(30):
                    nursery.start_soon(use, number, everybody)
                await place.wait_until(lambda: len(done) == 30, 60)
                with pytest.raises(NnrpConnectionLost):
                    async with open_nnrp(place.urls["quic"], attrs.evolve(place.options, open_timeout=0.3)):
                        pass
                everybody.set()
        await place.wait_until(lambda: not place.service.links)
    assert sorted(done) == list(range(30))


async def test_a_client_that_gets_no_answer(tmp_path: Path) -> None:
    """The client's handshake is bounded, and a host where nobody listens is reported at once."""
    options = NnrpOptions(open_timeout=0.3, reconnect=None)
    udp = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with udp:
        await udp.bind(("127.0.0.1", 0))
        with pytest.raises(NnrpConnectionLost):
            async with open_nnrp(f"quic://127.0.0.1:{udp.getsockname()[1]}", options):
                pass


async def test_a_certificate_of_somebody_else(tmp_path: Path) -> None:
    async with serving_everywhere(tmp_path) as place:
        with pytest.raises(NnrpConnectionLost):
            async with open_nnrp(place.urls["quic"], NnrpOptions(open_timeout=5)):
                pass


async def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 5, Listeners: a clear error that names the extra, at the server and at the client."""
    import client.nnrp.quic
    import server.nnrp.quic_library

    made = make_signed_certificate(tmp_path)
    for module in (client.nnrp.quic, server.nnrp.quic_library):
        monkeypatch.setattr(module.importlib, "import_module", _nothing_is_installed)
    with pytest.raises(RuntimeError, match=r"moorline\[quic\]"):
        load_library()
    async with open_service(ServingPolicy(), lambda _: EchoWorker()) as service:
        listen = partial(listen_quic, certificate=str(made.cert), key=str(made.key))
        with pytest.raises(RuntimeError, match=r"moorline\[quic\]"):
            await listen(service, "127.0.0.1", 0)
    with pytest.raises(NnrpConnectionLost, match=r"moorline\[quic\]"):
        async with open_nnrp("quic://127.0.0.1:1"):
            pass


def _nothing_is_installed(name: str) -> Any:
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("alpn", ["nnrp/1", None])
async def test_alpn_can_be_left_out(tmp_path: Path, alpn: str | None) -> None:
    """nnrp-wire 18 item 13: configurable to none, for the peer that offers none."""
    made = make_signed_certificate(tmp_path)

    async def offer_nothing(host: str, port: int) -> bool:
        configuration = QuicConfiguration(is_client=True)
        configuration.load_verify_locations(cafile=str(made.authority))
        try:
            async with connect(host, port, configuration=configuration, create_protocol=Peer) as peer:
                assert isinstance(peer, Peer)
                await greeted(peer)
                return True
        except ConnectionError:
            return False

    policy = ServingPolicy(limits=ConnectionLimits(handshake_timeout=5.0))
    async with open_service(policy, lambda _: EchoWorker()) as service, trio.open_nursery() as nursery:
        listen = partial(listen_quic, certificate=str(made.cert), key=str(made.key), alpn=alpn)
        ((host, port),) = await nursery.start(listen, service, "127.0.0.1", 0)
        assert await in_asyncio(offer_nothing, host, port) is (alpn is None)
        nursery.cancel_scope.cancel()
