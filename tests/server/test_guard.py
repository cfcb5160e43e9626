"""The guard on real sockets: a peer can end its own connection and nothing else (design: the defect table)."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import h2.errors
import h2.events
import hpack
import pytest
import trio

from server.config import Config
from server.guard_protocol import Calm
from server.telemetry import EndReason
from tests.support.http import RawConnection, ask, open_raw
from tests.support.http2 import Http2
from tests.support.serving import UPGRADE, Served, serving, wait_until


async def assert_alive(served: Served) -> None:
    reply = await ask(served.port, "GET", "/health")
    assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


# The two ways to end the process from outside


async def test_websocket_upgrade_with_a_trailing_byte_costs_one_connection() -> None:
    """Defect #225: unguarded, the whole process exits."""
    async with serving() as served:
        async with open_raw(served.port) as other, open_raw(served.port) as connection:
            await other.request("GET", "/try/quiet")
            assert (await other.read_head()).status == 200
            await connection.send(connection.head("GET", "/try/ws", **UPGRADE) + b"x")
            await connection.wait_end(within=3)
            assert served.engine.open_streams == 1
        await assert_alive(served)
        # The application's task ended with it, and not by the backstop.
        await wait_until(lambda: not served.application.guard_policy.connections, 1.0)


async def test_http2_data_after_the_response_costs_nothing() -> None:
    """Defect #329: unguarded, the whole process exits. The connection and its other streams go on."""
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        stream = client.open_stream("POST", "/nowhere", end=False)
        await client.flush()
        with trio.fail_after(3):
            assert (await client.status(stream)) == 404
            assert (await client.end_of(stream)) == "ended"
            # The client had this under way when the answer came.
            client.connection.send_data(stream, b"late", end_stream=False)
            await client.flush()
            second = client.open_stream("GET", "/health")
            await client.flush()
            assert (await client.status(second)) == 200
        await assert_alive(served)


async def test_http2_nonsense_costs_one_connection() -> None:
    async with serving() as served, open_raw(served.port) as raw:
        await raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x09\x00\x00\x00\x00\x00\x07" + b"\xff" * 64)
        await raw.wait_end(within=3)
        await assert_alive(served)


def frame(type: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([type, flags]) + stream.to_bytes(4, "big") + payload


FLOODS = {
    "ping": frame(6, 0, 0, b"12345678"),
    "settings": frame(4, 0, 0),
    "settings that change": frame(4, 0, 0, struct.pack(">HI", 4, 70_000)),
    "windows": frame(8, 0, 0, struct.pack(">I", 1)),
    "empty data": frame(0, 0, 1),
    "data for a stream that is gone": frame(0, 0, 3, b"x"),
    "priorities": frame(2, 0, 1, struct.pack(">IB", 0, 15)),
    "unknown": frame(0x77, 0, 0),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_http2_flood_is_told_to_calm_down(kind: str) -> None:
    """Frames that cost more to answer than to send, and nothing else: GOAWAY with ENHANCE_YOUR_CALM, and the end."""
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        client.open_stream("POST", "/try/echo", end=False)
        gone = client.open_stream("GET", "/health")
        await client.flush()
        assert await client.end_of(gone) == "ended"
        await send_until_closed(raw, FLOODS[kind] * 10_000)
        await client.wait_end(within=5)
        # The end may overtake the goodbye where bytes were still unread.
        assert client.goodbye in (h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, None)
        await assert_alive(served)


async def test_http2_requests_reset_at_once_are_a_flood() -> None:
    """CVE-2023-44487: a request opened and reset costs its sender nothing, and no limit on open streams sees it."""
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        encoder = hpack.Encoder()
        headers = [
            (":method", "GET"),
            (":path", "/health"),
            (":scheme", "http"),
            (":authority", f"127.0.0.1:{raw.port}"),
        ]
        first, others = encoder.encode(headers), encoder.encode(headers)
        requests = (
            frame(1, 5, id, first if id == 1 else others) + frame(3, 0, id, b"\0\0\0\x08") for id in range(1, 40_000, 2)
        )
        await send_until_closed(raw, b"".join(requests))
        await client.wait_end(within=5)
        await assert_alive(served)
        await wait_until(lambda: not served.application.guard_policy.connections, 2.0)


async def send_until_closed(raw: RawConnection, data: bytes) -> None:
    with suppress(trio.BrokenResourceError), trio.fail_after(30):
        await raw.send(data)


def test_what_was_sent_to_a_peer_allows_it_more() -> None:
    """A reader with small windows opens two of them for every 4 KiB, however fast; one that is sent nothing may not."""
    windows = [h2.events.WindowUpdated(stream_id=stream) for stream in (0, 1)]
    reset = h2.events.StreamReset(stream_id=1)
    calm = Calm(0.0)
    for _ in range(100_000):
        calm.earn(4096)
        assert calm.allows(windows, 0, 0.0)
    idle = Calm(0.0)
    assert idle.allows(windows * 2000, 0, 0.0)
    assert not idle.allows(windows, 0, 0.0)
    later = Calm(0.0)
    assert later.allows(windows * 2000, 0, 0.0)
    assert later.allows(windows * 400, 0, 1.0)
    assert not later.allows(windows * 2001, 0, 3600.0)
    assert later.allows([h2.events.DataReceived(stream_id=1, data=b"x")] * 10_000, 0, 1e9)
    assert not later.allows([h2.events.DataReceived(stream_id=1, data=b"")] * 4001, 0, 1e9)
    assert Calm(0.0).allows([reset] * 400, 0, 0.0)
    assert not Calm(0.0).allows([reset] * 401, 0, 0.0)
    assert Calm(0.0).allows([], 4000 * 13, 0.0)
    assert not Calm(0.0).allows([], 4001 * 13, 0.0)


async def test_http2_priorities_are_not_kept() -> None:
    """RFC 9113, 5.3.2: for streams that never come they would fill the library's table, and fail the connection."""
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        await raw.send(b"".join(frame(2, 0, id, struct.pack(">IB", 0, 15)) for id in range(101, 4101, 2)))
        stream = client.open_stream("GET", "/health")
        await client.flush()
        assert await client.status(stream) == 200


async def test_http2_connect_without_a_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """No proxy is offered: its stream is reset, and the others go on."""
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        stream = client.connection.get_next_available_stream_id()
        client.connection.send_headers(
            stream, [(":method", "CONNECT"), (":authority", "elsewhere:80")], end_stream=True
        )
        await client.flush()
        with trio.fail_after(3):
            assert await client.end_of(stream) == "reset"
            second = client.open_stream("GET", "/health")
            await client.flush()
            assert await client.status(second) == 200
    assert "connection_failed" not in caplog.text


async def test_a_failed_connection_logs_nothing_of_what_was_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ACP-257: the library hands over the first bytes of HTTP/2 in an exception; a log line must not repeat them."""

    async def fail(self: object, events: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("server.guard_protocol._Http2._handle_events", fail)
    async with serving() as served, open_raw(served.port) as raw:
        client = Http2(raw)
        client.connection.initiate_connection()
        client.open_stream("GET", "/secret-path")
        await client.flush()
        await raw.wait_end(within=3)
        await assert_alive(served)
    failures = [each for each in caplog.records if each.getMessage().startswith("connection_failed")]
    assert len(failures) == 1
    assert "a defect" in caplog.text
    assert "PRI" not in caplog.text


async def test_a_request_with_two_lengths_is_refused() -> None:
    """RFC 9112, 6.3: a proxy in front may have believed the other, and taken the rest for another request."""
    async with serving() as served, open_raw(served.port) as raw:
        head = raw.head("POST", "/try/echo", Content_Length="6", Transfer_Encoding="chunked")
        await raw.send(head + b"0\r\n\r\n" + raw.head("GET", "/health"))
        assert (await raw.read_head()).status == 400
        assert await raw.wait_end(within=3) == b""


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_garbage_costs_one_connection(data: bytes) -> None:
    async with serving() as served, open_raw(served.port) as raw:
        await raw.send(data)
        await raw.stream.send_eof()
        await raw.wait_end(within=3)
        await assert_alive(served)


async def test_a_crash_in_a_route_is_a_500() -> None:
    async with serving() as served:
        reply = await ask(served.port, "GET", "/try/crash")
        assert (reply.status, reply.json()) == (500, {"error": "Internal error"})
        await assert_alive(served)


# Connections end when they should


async def test_connection_close_is_honoured() -> None:
    """quart-trio cancels itself while the server recycles; the last message is shielded against it."""
    async with serving() as served, open_raw(served.port) as raw:
        await raw.request("GET", "/health", Connection="close")
        assert (await raw.reply()).headers["connection"] == "close"
        assert await raw.wait_end(within=1) == b""


async def test_keep_alive_clock_is_set_again_after_every_response() -> None:
    async with serving(Config(port=0, keep_alive_ms=300)) as served, open_raw(served.port) as raw:
        for _ in range(3):
            await trio.sleep(0.15)
            await raw.request("GET", "/health")
            assert (await raw.reply()).status == 200
        started = trio.current_time()
        await raw.wait_end(within=12)
        assert 0.2 < trio.current_time() - started < 10
        await wait_until(lambda: not served.application.guard_policy.connections)
        assert served.application.guard_policy.ended[EndReason.IDLE] == 1


async def test_idle_sockets_do_not_pile_up() -> None:
    async with serving(Config(port=0, keep_alive_ms=400, request_head_timeout_ms=1500)) as served:
        async with trio.open_nursery() as nursery:

            async def use(mode: int) -> None:
                async with open_raw(served.port) as raw:
                    if mode != 0:
                        await raw.request("GET", "/health")
                        await raw.reply()
                    await raw.wait_end(within=5)

            for number in range(30):
                nursery.start_soon(use, number % 3)
        await wait_until(lambda: not served.application.guard_policy.connections)


async def test_a_peer_that_goes_frees_its_connection_at_once() -> None:
    async with serving() as served:
        async with open_raw(served.port) as raw:
            await raw.request("GET", "/health")
            await raw.reply()
        await wait_until(lambda: not served.application.guard_policy.connections, 1.0)


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_vanished_reader_is_noticed(how: str) -> None:
    """C-020 for HTTP/1.1: FIN and RST on an idle stream."""
    async with serving() as served:
        async with open_raw(served.port) as raw:
            await raw.request("GET", "/try/quiet")
            await raw.read_head()
            assert served.engine.open_streams == 1
            if how == "rst":
                assert isinstance(raw.stream, trio.SocketStream)
                raw.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await wait_until(lambda: served.engine.open_streams == 0, 2.0)


async def test_http2_reset_of_a_stream_is_noticed_and_the_idle_connection_reaped() -> None:
    """C-020 for HTTP/2: RST_STREAM; and the keep-alive clock runs although no response ended."""
    async with serving(Config(port=0, keep_alive_ms=300)) as served, open_raw(served.port) as raw:
        client = Http2(raw)
        await client.start()
        stream = client.open_stream("GET", "/try/quiet")
        await client.flush()
        assert await client.status(stream) == 200
        assert served.engine.open_streams == 1
        client.connection.reset_stream(stream)
        await client.flush()
        await wait_until(lambda: served.engine.open_streams == 0, 2.0)
        await client.wait_end(within=3)


async def test_request_is_cancelled_when_its_peer_leaves() -> None:
    async with serving() as served:
        async with open_raw(served.port) as raw:
            await raw.request("GET", "/try/slow?s=60")
            await trio.sleep(0.05)
        await wait_until(lambda: not served.application.guard_policy.connections, 1.0)


# Slow and greedy peers


async def test_request_head_in_single_bytes_is_served() -> None:
    async with serving() as served, open_raw(served.port) as raw:
        for byte in raw.head("GET", "/health"):
            await raw.send(bytes([byte]))
        assert (await raw.reply()).status == 200


async def test_request_head_that_never_ends_is_cut() -> None:
    async with serving(Config(port=0, request_head_timeout_ms=300)) as served, open_raw(served.port) as raw:

        async def drip() -> None:
            try:
                while True:
                    await raw.send(b"X")
                    await trio.sleep(0.05)
            except trio.BrokenResourceError:
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            await raw.wait_end(within=2)
            nursery.cancel_scope.cancel()
        await wait_until(lambda: served.application.guard_policy.ended[EndReason.SLOW_REQUEST] == 1)


@pytest.mark.parametrize("sent", [8000, 20_000], ids=["a part of it", "all at once"])
async def test_request_head_over_its_bound_is_refused(sent: int) -> None:
    """``--max-header-bytes``: whether the head comes in pieces or in a single read."""
    async with serving(Config(port=0, max_header_bytes=4096)) as served:
        async with open_raw(served.port) as raw:
            await raw.send(raw.head("GET", "/health", X_Long="y" * 10_000)[:sent])
            assert (await raw.reply()).status == 431
            await raw.wait_end(within=2)
        async with open_raw(served.port) as raw:
            await raw.send(raw.head("GET", "/health", X_Long="y" * 3500))
            assert (await raw.reply()).status == 200


async def test_a_reader_that_stops_reading_is_dropped() -> None:
    """The deadline of a send lies inside its shield."""
    config = Config(port=0, send_timeout_ms=400)
    async with serving(config) as served, open_raw(served.port, receive_buffer=4096) as raw:
        await raw.request("GET", "/try/flood")
        await wait_until(lambda: served.application.guard_policy.ended[EndReason.SLOW_READER] == 1, 10.0)
        await wait_until(lambda: served.engine.open_streams == 0)
        await assert_alive(served)
        await raw.wait_end(within=3)


async def test_a_stalled_peer_with_requests_in_line_leaves_nothing_behind() -> None:
    """The reader waits for the end of a response then, not for the socket."""
    async with (
        serving(Config(port=0, send_timeout_ms=300)) as served,
        open_raw(served.port, receive_buffer=4096) as raw,
    ):
        await raw.send(raw.head("GET", "/try/big?n=10000000") * 3)
        await wait_until(lambda: served.application.guard_policy.ended[EndReason.SLOW_READER] == 1, 10.0)
        assert not served.application.guard_policy.connections


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
async def test_what_is_not_acknowledged_ends_the_connection() -> None:
    """C-012, C-015: without a FIN or RST nothing else tells that a reader is gone, and its grace would not begin."""
    async with serving(Config(port=0, send_timeout_ms=700)) as served, open_raw(served.port):
        await wait_until(lambda: bool(served.application.guard_policy.connections))
        (connection,) = served.application.guard_policy.connections
        bound = connection.stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert bound == 1400


async def test_an_overdue_reader_is_dropped_long_before_the_send_deadline() -> None:
    """C-026: eviction closes the socket although the writer is blocked."""
    async with serving() as served, open_raw(served.port, receive_buffer=4096) as raw:
        await raw.request("GET", "/try/flood")
        await wait_until(lambda: len(served.engine.overdue) == 1)
        await trio.sleep(0.3)
        served.engine.overdue[0]()
        started = trio.current_time()
        await wait_until(lambda: served.engine.open_streams == 0, 3.0)
        assert trio.current_time() - started > 1.0
        await raw.wait_end(within=3)


async def test_a_long_response_reaches_a_slow_but_living_reader() -> None:
    """Sends are timed by piece, not as a whole."""
    config = Config(port=0, send_timeout_ms=1500)
    async with serving(config) as served, open_raw(served.port, receive_buffer=8192) as raw:
        await raw.request("GET", "/try/big?n=6000000")
        await raw.read_head()
        received = len(raw.buffer)
        started = trio.current_time()
        while received < 6_000_000:
            data = await raw.stream.receive_some(65536)
            assert data, "the connection was closed"
            received += len(data)
            await trio.sleep(0.004)
        assert trio.current_time() - started > 1.5
        assert received == 6_000_000


async def test_http2_peer_with_a_closed_window_is_dropped_from_its_stream() -> None:
    """A flow-control stall: no transport deadline sees it, and the stream is reset instead of left hanging."""
    config = Config(port=0, send_timeout_ms=400)
    async with serving(config) as served, open_raw(served.port) as raw:
        client = Http2(raw, acknowledge=False)
        await client.start()
        stream = client.open_stream("GET", "/try/flood")
        await client.flush()
        with trio.fail_after(5):
            assert await client.end_of(stream) == "reset"
            await wait_until(lambda: served.engine.open_streams == 0)
            second = client.open_stream("GET", "/health")
            await client.flush()
            assert await client.status(second) == 200
    with trio.fail_after(1):
        await served.ended.wait()


async def test_http2_heartbeats_do_not_keep_a_closed_window_alive() -> None:
    """The deadline of a send counts from its beginning, however often the heart beats meanwhile."""
    config = Config(port=0, send_timeout_ms=500, heartbeat_ms=100)
    async with serving(config) as served, open_raw(served.port) as raw:
        client = Http2(raw, acknowledge=False)
        await client.start()
        stream = client.open_stream("GET", "/try/flood")
        await client.flush()
        with trio.fail_after(5):
            assert await client.end_of(stream) == "reset"


async def test_heartbeats_on_a_real_socket() -> None:
    """ACP-092: on an idle stream and on a busy one."""
    async with serving(Config(port=0, heartbeat_ms=100)) as served:
        async with open_raw(served.port) as raw:
            await raw.request("GET", "/try/quiet")
            await raw.read_head()
            frames = raw.frames()
            assert [await anext(frames) for _ in range(4)] == [b"retry: 3000", b": hb", b": hb", b": hb"]
            await frames.aclose()
        async with open_raw(served.port) as raw:
            await raw.request("GET", "/try/ticks?n=500")
            await raw.read_head()
            found = [frame async for frame in raw.frames()]
            ticks = [frame for frame in found if frame != b": hb"]
            assert ticks[1:] == [b"id: %d\ndata: %d" % (number, number) for number in range(1, 501)]
            assert len(found) - len(ticks) >= 3


async def test_connections_over_the_cap_are_told_and_closed() -> None:
    async with serving(Config(port=0, max_connections=2)) as served:
        async with open_raw(served.port) as one, open_raw(served.port) as two:
            for raw in (one, two):
                await raw.request("GET", "/health")
                await raw.reply()
            async with open_raw(served.port) as three:
                reply = await three.reply()
                assert (reply.status, reply.json()) == (503, {"error": "Too many connections"})
                assert reply.headers["retry-after"] == "5"
        await wait_until(lambda: not served.application.guard_policy.connections)
        await assert_alive(served)
        assert served.application.guard_policy.refused == 1


# Bodies


TOO_LARGE = b'{"error":"Request body too large (max 10 MB)"}'


async def test_declared_body_over_the_limit_is_refused_before_it_is_sent() -> None:
    """REST-001; and the rest of the body is not waited for when the peer has left."""
    async with serving() as served:
        async with open_raw(served.port) as raw:
            await raw.send(raw.head("POST", "/try/size", 10 * 2**20 + 1))
            reply = await raw.reply()
            assert (reply.status, reply.body) == (413, TOO_LARGE)
            assert reply.headers["content-type"] == "application/json; charset=utf-8"
        await wait_until(lambda: not served.application.guard_policy.connections, 1.0)


async def test_refused_body_that_is_sent_anyway_still_sees_the_refusal() -> None:
    """The rest is read and thrown away: closing on unread bytes would reset the connection and lose the answer."""
    async with serving() as served, open_raw(served.port) as raw:
        size = 11 * 2**20
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raw.send, raw.head("POST", "/try/size", size) + bytes(size))
            reply = await raw.reply()
        assert (reply.status, reply.body) == (413, TOO_LARGE)
        assert await raw.wait_end(within=3) == b""


async def test_chunked_body_is_refused_at_the_limit_and_never_held() -> None:
    """The library checks a chunked body only at its end; we count as it comes."""
    config = Config(port=0, max_body_bytes=2**20)
    async with serving(config) as served, open_raw(served.port) as raw:
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        await raw.send(raw.head("POST", "/try/size", Transfer_Encoding="chunked"))
        for _ in range(17):
            await raw.send(piece)
        with trio.fail_after(2):
            reply = await raw.reply()
        assert (reply.status, reply.json()) == (413, {"error": "Request body too large (max 1 MB)"})


async def test_body_of_a_get_is_read_past() -> None:
    """Nobody reads it, and the next request on the connection is not mistaken for it."""
    async with serving() as served, open_raw(served.port) as raw:
        for length in (5, 100_000):
            await raw.send(raw.head("GET", "/health", length) + b"G" * length)
            assert (await raw.reply()).status == 200


async def test_body_at_the_limit_is_read() -> None:
    async with serving(Config(port=0, max_body_bytes=2**20)) as served:
        reply = await ask(served.port, "POST", "/try/size", bytes(2**20))
        assert reply.json() == {"size": 2**20}


async def test_early_answer_reaches_a_peer_that_is_still_sending() -> None:
    async with serving() as served, open_raw(served.port) as raw:
        size = 4 * 2**20
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raw.send, raw.head("POST", "/try/early", size) + bytes(size))
            assert (await raw.reply()).status == 409
        await raw.request("GET", "/health")
        assert (await raw.reply()).status == 200


async def test_body_in_single_bytes_is_served_and_one_that_stops_is_cut() -> None:
    async with serving(Config(port=0, request_body_timeout_ms=400)) as served:
        async with open_raw(served.port) as raw:
            await raw.send(raw.head("POST", "/try/echo", 13))
            for byte in b'{"a":"\xc3\xa9", "b"'[:13]:
                await raw.send(bytes([byte]))
            assert (await raw.reply()).status == 400
        async with open_raw(served.port) as raw:
            await raw.send(raw.head("POST", "/try/echo", 100) + b'{"a"')
            with trio.fail_after(4):
                reply = await raw.reply()
            assert reply.status == 408
