"""NNRP over WebSocket, on the HTTP port and on a port of its own (nnrp-extensions, WebSocket). The peer is the `websockets`
library, which shares no code with us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
import trio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from client.nnrp import NnrpOptions, open_nnrp
from client.nnrp.dialling import dial
from protocol.nnrp.enums import ErrorCode, MessageType
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.messages import Error, Ping
from protocol.nnrp.packet import Packet, decode_packet, encode_packet
from server.application import Application
from server.config import Config
from server.nnrp.policy import ServingPolicy, token_check
from server.nnrp.service import NnrpService, open_service
from server.nnrp.websocket_listener import listen_websocket
from server.nnrp.workers.echo import EchoWorker
from server.security import Policy
from server.serve import serve
from tests.support.nnrp import HELLO, OPEN, Peer, raw, submit_packet, text_of
from tests.support.nnrp_transports import in_asyncio
from tests.support.serving import carrier

WHERE = pytest.mark.parametrize("where", ["http", "own port"])


@attrs.frozen
class Place:
    service: NnrpService
    url: str

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(20):
            while not condition():  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.005)


@asynccontextmanager
async def serving(where: str, directory: Path, *, token: str | None = None, **more: Any) -> AsyncIterator[Place]:
    if where == "http":
        config = Config(workspace=(str(directory),), port=0, nnrp_runner="echo", token=token, **more)
        application = Application(config, announce=lambda _: None)
        async with trio.open_nursery() as nursery:
            (url,) = await nursery.start(partial(serve, config, application=application))
            assert application.nnrp is not None
            yield Place(application.nnrp.service, url.replace("http", "ws") + "/nnrp")
            nursery.cancel_scope.cancel()
        return
    policy = ServingPolicy(
        authenticate=token_check(token), hello=HelloPolicy(max_body_bytes=1 << 20), limits=ConnectionLimits()
    )
    async with open_service(policy, lambda _: EchoWorker()) as service, trio.open_nursery() as nursery:
        listen = partial(listen_websocket, security=Policy(token=token))
        ((host, port),) = await nursery.start(listen, service, "127.0.0.1", 0)
        yield Place(service, f"ws://{host}:{port}/nnrp")
        nursery.cancel_scope.cancel()


async def receive(socket: ClientConnection) -> Packet:
    """The next message, which must be exactly one packet."""
    message = await asyncio.wait_for(socket.recv(), 10)
    assert isinstance(message, bytes)
    return decode_packet(message, strict=True)


def opened(url: str, **more: Any) -> connect:
    return connect(url, max_size=None, compression=None, open_timeout=10, proxy=None, **more)


async def converse(url: str) -> list[Any]:
    seen: list[Any] = []
    async with opened(url) as socket:
        await socket.send(encode_packet(HELLO))
        seen.append((await receive(socket)).kind)
        await socket.send(encode_packet(OPEN))
        seen.append((await receive(socket)).kind)
        await socket.send(submit_packet(1, b"partial=2;ab"))
        seen += [text_of(await receive(socket)) for _ in range(2)]
        # One packet may come in fragments of a message, as small as the peer likes.
        packet = submit_packet(2, b"in fragments")
        await socket.send([packet[at : at + 7] for at in range(0, len(packet), 7)])
        seen.append(text_of(await receive(socket)))
        await socket.send(encode_packet(Ping(), session_id=3))
        seen.append((await receive(socket)).kind)
    seen.append(socket.close_code)
    return seen


@WHERE
async def test_an_independent_client(tmp_path: Path, where: str) -> None:
    """Issue 5, Done when: every message is one packet both ways; closing is answered."""
    async with serving(where, tmp_path) as place:
        seen = await in_asyncio(converse, place.url)
        await place.wait_until(lambda: not place.service.links)
    assert seen == [
        MessageType.SERVER_HELLO_ACK,
        MessageType.SESSION_OPEN_ACK,
        b"partia",
        b"l=2;ab",
        b"in fragments",
        MessageType.PONG,
        1000,
    ]
    assert place.service.violations == 0


BAD = {
    "text": ("hello", 1003, None),
    "empty": (b"", 1002, ErrorCode.MALFORMED_BODY),
    "two packets": (encode_packet(Ping()) * 2, 1002, ErrorCode.MALFORMED_BODY),
    "a byte more": (encode_packet(Ping()) + b"x", 1002, ErrorCode.MALFORMED_BODY),
    "half a header": (encode_packet(Ping())[:20], 1002, ErrorCode.MALFORMED_BODY),
    "no magic": (b"XXXX" + encode_packet(Ping())[4:], 1002, ErrorCode.MALFORMED_HEADER),
}


async def misbehave(url: str, message: str | bytes) -> tuple[list[ErrorCode], int | None]:
    errors: list[ErrorCode] = []
    async with opened(url) as bad, opened(url) as good:
        await bad.send(encode_packet(HELLO))
        await receive(bad)
        await bad.send(message)
        try:
            while True:
                packet = await receive(bad)
                assert isinstance(packet.metadata, Error)
                errors.append(ErrorCode(packet.metadata.error_code))
        except ConnectionClosed:
            pass
        await good.send(encode_packet(Ping()))
        assert (await receive(good)).kind is MessageType.PONG
    return errors, bad.close_code


@WHERE
@pytest.mark.parametrize("name", list(BAD))
async def test_bad_messages(tmp_path: Path, where: str, name: str) -> None:
    """nnrp-extensions, WebSocket: the ERROR of LengthMismatch and 1002; text gets 1003; others are not concerned."""
    message, code, error = BAD[name]
    async with serving(where, tmp_path) as place:
        errors, closed = await in_asyncio(misbehave, place.url, message)
    assert closed == code
    assert errors == ([] if error is None else [error])


@WHERE
async def test_a_message_over_the_limit(tmp_path: Path, where: str) -> None:
    """nnrp-extensions, WebSocket: above 40 + 4096 + max_body_bytes the close is 1009; nothing is collected for it. The limit
    on the HTTP port is NNRP's, not that of request bodies."""

    async def send_sizes(url: str, fine: int, over: int) -> int | None:
        async with opened(url) as socket:
            await socket.send(encode_packet(HELLO))
            await receive(socket)
            await socket.send(encode_packet(OPEN))
            await receive(socket)
            await socket.send(submit_packet(1, bytes(fine)))
            assert len(text_of(await receive(socket))) == fine
            try:
                await socket.send(bytes(over))
                await socket.recv()
            except ConnectionClosed:
                pass
        return socket.close_code

    async with serving(where, tmp_path) as place:
        fine = 11 * 2**20 if where == "http" else 2**20 - 4096
        limit = place.service.policy.hello.max_body_bytes
        assert await in_asyncio(send_sizes, place.url, fine, limit + 40 + 4096 + 1) == 1009


async def status_of(url: str, **more: Any) -> int:
    try:
        async with opened(url, **more):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


@WHERE
async def test_who_may_connect(tmp_path: Path, where: str) -> None:
    """C-072; nnrp-extensions, WebSocket: Host, Origin, token and subprotocol carrier as ACP-240 to 242, 252, 253."""
    evil = {"origin": "https://evil.example"}
    bearer = {"additional_headers": {"Authorization": "Bearer s3cret"}}
    async with serving(where, tmp_path, token="s3cret") as place:
        asked = [
            ({}, 401),
            ({"additional_headers": {"Authorization": "Bearer wrong"}}, 401),
            (bearer, 101),
            ({"subprotocols": [carrier("s3cret")]}, 101),
            ({**bearer, **evil}, 403),
            (evil, 403),
        ]
        for more, status in asked:
            assert await in_asyncio(partial(status_of, **more), place.url) == status, more
        port = int(place.url.rpartition(":")[2].partition("/")[0])
        rebound = partial(status_of, **bearer, host="127.0.0.1", port=port)
        assert await in_asyncio(rebound, f"ws://evil.example:{port}/nnrp") == 403
        if where != "http":
            assert await in_asyncio(partial(status_of, **bearer), place.url + "/else") == 404


async def test_upgrades_that_do_not_come(tmp_path: Path) -> None:
    """Issue 5, Bad input: half a request, garbage and a hang-up cost the listener nothing, and end in time."""
    policy = ServingPolicy(limits=ConnectionLimits(handshake_timeout=1.5))
    async with open_service(policy, lambda _: EchoWorker()) as service, trio.open_nursery() as nursery:
        listen = partial(listen_websocket, security=Policy())
        ((host, port),) = await nursery.start(listen, service, "127.0.0.1", 0)

        async def loiter(start: bytes, hang_up: bool) -> None:
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(start)
                if hang_up:
                    return
                with trio.fail_after(20):
                    try:
                        while await stream.receive_some(4096):
                            pass
                    except trio.BrokenResourceError:
                        pass

        async with trio.open_nursery() as loiterers:
            for start in (b"GET /nnrp HTTP/1.1\r\nHost: 127", b"\x00" * 300, raw(HELLO), b"x"):
                for hang_up in (False, True):
                    loiterers.start_soon(loiter, start, hang_up)
        assert await in_asyncio(status_of, f"ws://{host}:{port}/nnrp") == 101
        nursery.cancel_scope.cancel()


async def test_the_guard_holds(tmp_path: Path) -> None:
    """Bytes behind the upgrade, which end an unguarded server, cost one connection here too."""
    async with serving("http", tmp_path) as place:
        parts = urlsplit(place.url)
        assert parts.port is not None
        for behind in (b"\x00", b"\xff" * 500, b"GET / HTTP/1.1\r\n\r\n"):
            async with await trio.open_tcp_stream("127.0.0.1", parts.port) as stream:
                await stream.send_all(
                    b"GET /nnrp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                    % parts.port
                    + behind
                )
                with trio.fail_after(20):
                    try:
                        while await stream.receive_some(4096):
                            pass
                    except trio.BrokenResourceError:
                        pass
        assert await in_asyncio(status_of, place.url) == 101
        await place.wait_until(lambda: not place.service.links)


async def test_a_peer_of_the_http_port_that_never_reads(tmp_path: Path) -> None:
    """Issue 5, Bad input: bounded and dropped after --send-timeout-ms; another client works meanwhile."""
    async with serving("http", tmp_path, send_timeout_ms=600) as place, trio.open_nursery() as nursery:
        stream = await dial(place.url, NnrpOptions(), nursery)
        deaf = Peer(stream)
        await deaf.send(HELLO)
        await deaf.receive(MessageType.SERVER_HELLO_ACK)
        await deaf.open(OPEN.replace(max_in_flight_operations=24))
        (link,) = place.service.links
        with trio.move_on_after(20):
            try:
                for number in range(1, 25):
                    await stream.send_all(submit_packet(number, b"sleep=400;" + bytes(2**20)))
            except trio.BrokenResourceError:
                # Dropped already, on a slow machine.
                pass
        highest = 0
        async with open_nnrp(place.url) as connection:
            session = await connection.open_session()
            with trio.fail_after(30):
                while not link.machine.closed:
                    assert (await session.request(b"x")).data == b"x"
                    highest = max(highest, link.writer.size)
        assert highest <= 3 * 2**20
        await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()
