"""``/acp`` over HTTP on real sockets: dead peers, stuck peers, cuts."""

from __future__ import annotations

import random
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from sessions import Operation, TurnResult
from tests.support.acp import Feed
from tests.support.acp_sockets import ServedPlace, acp_sockets
from tests.support.certificates import make_certificate
from tests.support.engine import said, terminals
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession
from tests.support.http import open_raw
from tests.support.http2 import Http2
from tests.support.serving import wait_until


def reset(raw: Any) -> None:
    """End a TCP connection with RST."""
    raw.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def say(place: ServedPlace, session_id: str, count: int, size: int = 1) -> None:
    session = place.session(session_id)
    for _ in range(count):
        session.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * size}})


async def flood(session: FakeSession, operation: Operation) -> TurnResult | None:
    """``flood N``: N numbered words."""
    for number in range(int(operation.request.text().split(" ")[1])):
        session.say(f"{number} ")
        if number % 8 == 0:
            await trio.lowlevel.checkpoint()
    return None


def flooding() -> FakeRunner:
    return FakeRunner(scripts={**SCRIPTS, "flood": flood})


async def test_a_whole_turn() -> None:
    """T03 on sockets: 202 with an empty body, the reply between content and turn_complete."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hello", id=3)
            assert [frame.kind for frame in await feed.until_kind("turn_complete")] == [
                "user_message_chunk",
                "agent_message_chunk",
                "reply:3",
                "turn_complete",
            ]
        reply = await client.post({"jsonrpc": "2.0", "method": "x"})
        assert (reply.status, reply.body, reply.headers["content-length"]) == (202, b"", "0")
        assert "content-type" not in reply.headers


async def test_the_old_socket_dies_first() -> None:
    """ACP-146, T04, C-003: what was written to a dead socket is replayed; the deferred reply comes once, last."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hold", id=9)
            await feed.until_kind("user_message_chunk")
            say(place, session_id, 2)
            assert [frame.id for frame in await feed.take(2)] == [2, 3]
            # In the kernel's buffers, for a client that reads no more.
            say(place, session_id, 3)
            await trio.sleep(0.1)
            reset(feed.stream.raw)  # type: ignore[attr-defined]  # a SocketStream
        say(place, session_id, 2)
        place.session(session_id).cancel_prompt()
        await trio.sleep(0.1)
        async with client.listen(session_id, cursor=3) as feed:
            frames = await feed.until_kind("reply:9")
            assert [frame.id for frame in frames if frame.id is not None] == list(range(4, 11))
            assert [frame.kind for frame in frames[-2:]] == ["replay_complete", "reply:9"]


async def test_random_cuts_under_load() -> None:
    """C-004: 50 cuts while 2000 events come; every id once and in order, and the text is whole."""
    rng = random.Random(4)
    async with acp_sockets(flooding(), max_queued_events=4000) as place:
        client = await place.connect()
        session_id = await client.new_session()
        seen: list[int] = []
        text: list[str] = []
        cuts = 0
        replies = 0
        first = True
        done = False
        while not done:
            async with client.listen(session_id, cursor=seen[-1] if seen else 0) as feed:
                if first:
                    first = False
                    await client.prompt(session_id, "flood 2000", id=7)
                quota = rng.randrange(1, 60) if cuts < 50 else 10_000
                async for frame in feed:
                    if frame.id is not None:
                        seen.append(frame.id)
                    if frame.kind == "agent_message_chunk":
                        text.append(frame.message["params"]["update"]["content"]["text"])
                    replies += frame.kind == "reply:7"
                    # The turn's end may come before its reply, when that had to wait for a replay.
                    done = replies > 0 and len(seen) == 2002
                    quota -= 1
                    if done or quota <= 0:
                        break
                # What was received and not looked at is lost with the connection, a reply too: this is no goodbye.
                reset(feed.stream.raw)  # type: ignore[attr-defined]  # a SocketStream
            cuts += 1
        assert cuts > 50
        assert seen == list(range(1, 2003))
        assert "".join(text) == "".join(f"{number} " for number in range(2000))
        assert replies == 1


@pytest.mark.parametrize("scoped", [False, True], ids=["connection", "session"])
async def test_a_goodbye_that_crosses_a_reply(scoped: bool) -> None:
    """Issue 3, replies survive: a peer that closes in good order does not read what is sent to it at that moment."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        where: dict[str, Any] = {"session_id": session_id, "cursor": 0} if scoped else {}
        method = "session/cancel" if scoped else "authenticate"
        for turns in range(30):
            async with open_raw(place.port) as raw:
                async with client.listen(**where) as feed:
                    if scoped:
                        await feed.until_kind("replay_complete")
                    message = {"jsonrpc": "2.0", "id": turns, "method": method, "params": {"sessionId": session_id}}
                    headers: dict[str, Any] = dict(client.headers(Content_Type="application/json"))
                    await raw.request("POST", "/acp", msgspec.json.encode(message), **headers)
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    feed.stream.raw.stream.socket.close()  # type: ignore[attr-defined]  # a SocketStream
                assert (await raw.reply()).status == 202
            async with client.listen(**where) as feed:
                await feed.until_kind(f"reply:{turns}")


async def test_an_http2_stream_that_is_reset_leaves_doubt() -> None:
    """Issue 3, replies survive: a reset is the only way to leave a response over HTTP/2, so it proves nothing."""
    async with acp_sockets() as place, open_raw(place.port) as raw:
        client = await place.connect()
        http2 = Http2(raw)
        await http2.start()
        about = {"accept": "text/event-stream", "acp_connection_id": client.connection_id}
        with trio.fail_after(15):
            first = http2.open_stream("GET", "/acp", **about)
            await http2.flush()
            asked = await client.call("authenticate")
            told = f'"id":{asked}'.encode()
            while told not in http2.bodies.get(first, b""):
                await http2.step()
            http2.connection.reset_stream(first)
            await http2.flush()
            second = http2.open_stream("GET", "/acp", **about)
            await http2.flush()
            while told not in http2.bodies.get(second, b""):
                await http2.step()


async def test_supersede_while_the_old_stream_is_stuck() -> None:
    """C-012: 200 with its replay at once; the stuck socket is closed by the server within seconds; the turn goes on."""
    async with acp_sockets(max_queued_events=100_000, max_queued_bytes=2**30) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id, window=4096) as stuck:
            await client.prompt(session_id, "hold", id=1)
            await stuck.until_kind("user_message_chunk")
            say(place, session_id, 50, 100_000)
            await trio.sleep(0.3)
            async with client.listen(session_id, cursor=1) as feed:
                assert (await anext(feed)).id == 2
                with trio.fail_after(6):
                    await stuck.drain()
                await feed.until(lambda frame: frame.id == 51)
                assert place.session(session_id).prompts.count == 1
                say(place, session_id, 1)
                assert (await feed.until(lambda frame: frame.id == 52))[-1].id == 52
                await wait_until(lambda: place.session(session_id).ring.subscribers == 1)


async def test_eviction_closes_a_stuck_socket_and_the_turn_goes_on() -> None:
    """C-026, ACP-097, ACP-144: closed within 3 s; reading what is left leads to the end; the cursor works."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id, window=4096) as stuck:
            await client.prompt(session_id, "hold", id=1)
            await stuck.until_kind("user_message_chunk")
            for _ in range(30):
                say(place, session_id, 20, 20_000)
                await trio.sleep(0.01)
            await wait_until(lambda: place.session(session_id).ring.subscribers == 0, 4.0)
            with trio.fail_after(5):
                last = await stuck.drain()
        async with client.listen(session_id, cursor=last) as feed:
            assert (await anext(feed)).id == last + 1
        assert place.session(session_id).prompts.count == 1


async def test_loss_of_the_post_connection_after_the_202() -> None:
    """C-018: the turn runs, once."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            body = msgspec.json.encode(
                {
                    "jsonrpc": "2.0",
                    "id": 5,
                    "method": "session/prompt",
                    "params": {"sessionId": session_id, "prompt": [{"type": "text", "text": "hello"}]},
                }
            )
            async with open_raw(place.port) as raw:
                await raw.request(
                    "POST", "/acp", body, Content_Type="application/json", Acp_Connection_Id=client.connection_id
                )
                await raw.until(b"202")
                reset(raw)
            with trio.fail_after(5):
                await feed.until_kind("turn_complete")
        assert said(place.session(session_id)) == ["hello"]


@pytest.mark.parametrize("rude", ["fin", "rst"])
async def test_a_post_that_dies_half_way(rude: str) -> None:
    """Issue 3: half a body is no message, and costs nothing."""
    async with acp_sockets() as place:
        client = await place.connect()
        async with open_raw(place.port) as raw:
            head = raw.head(
                "POST", "/acp", 1000, None, Content_Type="application/json", Acp_Connection_Id=client.connection_id
            )
            await raw.send(head + b'{"jsonrpc":"2.0","id":1,"method":"session/new"')
            await trio.sleep(0.05)
            if rude == "rst":
                reset(raw)
        await trio.sleep(0.1)
        assert place.harbour.sessions == []
        assert await client.new_session()


@pytest.mark.parametrize("rude", ["fin", "rst"])
async def test_a_vanished_reader_starts_the_grace(rude: str) -> None:
    """C-015, C-020, ACP-141, ACP-143: noticed at once on an idle stream; the prompt ends with the grace, not before."""
    async with acp_sockets(session_grace_ms=600) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen():
            async with client.listen(session_id) as feed:
                await client.prompt(session_id, "hold", id=1)
                await feed.until_kind("user_message_chunk")
                if rude == "rst":
                    reset(feed.stream.raw)  # type: ignore[attr-defined]  # a SocketStream
            session = place.session(session_id)
            await wait_until(lambda: session.ring.subscribers == 0, 2.0)
            assert session.prompts.count == 1
            await wait_until(lambda: session.prompts.count == 0, 2.0)
        assert list(terminals(session).values()) == [["cancelled"]]
        assert (await client.try_listen(session_id)).status == 403


async def test_two_hundred_resets_leak_no_place() -> None:
    """C-030 on /acp: streams that are reset before a byte was read."""
    async with acp_sockets(max_connections=0) as place:
        client = await place.connect()
        session_id = await client.new_session()
        for _ in range(200):
            async with open_raw(place.port) as raw:
                headers = {
                    "Accept": "text/event-stream",
                    "Acp_Connection_Id": client.connection_id,
                    "Acp_Session_Id": session_id,
                }
                await raw.request("GET", "/acp", **headers)
                reset(raw)
        session = place.session(session_id)
        await wait_until(lambda: session.ring.subscribers <= 1, 5.0)
        async with client.listen(session_id) as feed:
            say(place, session_id, 1)
            assert (await anext(feed)).id == 1
        await wait_until(lambda: session.ring.subscribers == 0, 5.0)


async def test_close_reply_reaches_the_client_before_the_end_of_the_stream() -> None:
    """Issue 3, for the official client: it gives up a session's requests when the session's stream ends."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        log: list[str] = []

        async def follow(name: str, feed: Feed) -> None:
            async for frame in feed:
                log.append(f"{name} {frame.kind}")
                if frame.kind == "reply:5":
                    return
            log.append(f"{name} end")

        for _ in range(3):
            async with (
                client.listen() as connection,
                client.listen(session_id) as stream,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(follow, "connection", connection)
                nursery.start_soon(follow, "session", stream)
                await client.call("session/close", {"sessionId": session_id}, id=5)
            assert log.index("connection reply:5") < log.index("session end")
            assert "session session_closed" in log
            log.clear()
            await client.result("session/load", {"sessionId": session_id})


async def test_shutdown_tells_and_ends() -> None:
    """C-063 for /acp streams: session_closed, then the end."""
    async with acp_sockets() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen() as connection, client.listen(session_id) as feed:
            await client.prompt(session_id, "hold", id=1)
            await feed.until_kind("user_message_chunk")
            place.served.stop.set()
            with trio.fail_after(8):
                kinds = [frame.kind for frame in await feed.rest()]
                await connection.rest()
        assert kinds[-1] == "session_closed"
        assert "turn_complete" in kinds


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "tls"])
async def test_http2(secure: bool, tmp_path: Path) -> None:
    """Issue 3: /acp over HTTP/2; the 202 is out before the reply, streams and POSTs share one connection."""
    certificate = make_certificate(tmp_path) if secure else None
    settings = {"tls_cert": str(certificate.cert), "tls_key": str(certificate.key)} if certificate else {}
    context = certificate.client_context("h2", "http/1.1") if certificate else None
    async with acp_sockets(**settings) as place, open_raw(place.port, tls=context) as raw:
        client = Http2(raw)
        await client.start()

        def open_stream(method: str, **headers: str) -> int:
            return client.open_stream(method, "/acp", end=method == "GET", **headers)

        async def post(message: dict[str, Any], **headers: str) -> int:
            stream = open_stream("POST", content_type="application/json", **headers)
            client.connection.send_data(stream, msgspec.json.encode(message), end_stream=True)
            await client.flush()
            return stream

        with trio.fail_after(15):
            first = await post({"jsonrpc": "2.0", "id": 0, "method": "initialize"})
            assert await client.status(first) == 200
            await client.end_of(first)
            about = {"acp_connection_id": msgspec.json.decode(client.bodies[first])["result"]["connectionId"]}
            listening = open_stream("GET", accept="text/event-stream", **about)
            await client.flush()
            assert await client.status(listening) == 200
            second = await post({"jsonrpc": "2.0", "id": 1, "method": "session/new"}, **about)
            assert await client.status(second) == 202
            while b'"id":1' not in client.bodies.get(listening, b""):
                await client.step()
            if isinstance(raw.stream, trio.SSLStream):
                assert raw.stream.selected_alpn_protocol() == "h2"
        assert len(place.harbour.sessions) == 1
