"""``/acp`` over WebSockets on real sockets: framing, limits, silence, resume."""

from __future__ import annotations

import socket as sockets
import struct
import tracemalloc
from typing import Any

import pytest
import trio
import trio_websocket
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from sessions import Operation, TurnResult
from tests.support.acp import prompt_params
from tests.support.acp_sockets import acp_sockets
from tests.support.engine import said, terminals
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession
from tests.support.http import open_raw
from tests.support.raw_websocket import RawSocket, open_socket
from tests.support.serving import UPGRADE, wait_until

MIB = 2**20


async def new_session(socket: RawSocket) -> str:
    session_id: str = (await socket.result("session/new", {}))["sessionId"]
    return session_id


async def test_an_ordinary_client() -> None:
    """ACP-230 to ACP-234 with trio-websocket: a whole turn, an orderly close, and nothing is left."""
    import msgspec

    async with acp_sockets() as place:
        async with trio_websocket.open_websocket_url(f"ws://127.0.0.1:{place.port}/acp") as socket:

            async def ask(id: int, method: str, params: Any) -> Any:
                await socket.send_message(
                    msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).decode()
                )
                while True:
                    message = msgspec.json.decode(await socket.get_message())
                    if message.get("id") == id:
                        return message["result"]

            assert (await ask(1, "initialize", {}))["protocolVersion"] == 1
            session_id = (await ask(2, "session/new", {}))["sessionId"]
            assert await ask(3, "session/prompt", prompt_params(session_id, "hello")) == {"stopReason": "end_turn"}
            session = place.session(session_id)
        await wait_until(lambda: session.ring.subscribers == 0)
        assert session.clients == {}


async def test_many_calls_in_one_segment() -> None:
    """Each is carried out in its turn; they do not count as a peer that sends faster than it is served."""
    import msgspec

    calls = [
        msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": "authenticate", "params": {}})
        for number in range(100, 2100)
    ]
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:
        async with trio.open_nursery() as nursery:
            frames = b"".join(b"\x81" + bytes([0x80 | len(call)]) + bytes(4) + call for call in calls)
            nursery.start_soon(socket.raw.send, frames)
            answered = [(await socket.next())["id"] for _ in calls]
        assert answered == list(range(100, 2100))


async def test_no_compression() -> None:
    """A frame must not unpack to a thousand times its size: the offer is not taken."""
    async with acp_sockets() as place:
        async with open_socket(place.port, Sec_WebSocket_Extensions="permessage-deflate") as socket:
            assert "sec-websocket-extensions" not in socket.head.headers


async def test_oversized_message(caplog: pytest.LogCaptureFixture) -> None:
    """C-053, ACP-237: 1009, what still comes is thrown away, the log has it, and nobody else notices."""
    async with acp_sockets(max_body_bytes=MIB) as place:
        async with open_socket(place.port, initialize={}) as other, open_socket(place.port, initialize={}) as socket:
            session_id = await new_session(other)
            await socket.send(TextMessage(data="x" * (MIB + 1), message_finished=False))
            for _ in range(40):
                try:
                    await socket.send(TextMessage(data="x" * MIB, message_finished=False))
                except trio.BrokenResourceError:
                    break
            assert (await socket.end() or (0, ""))[0] == 1009
            (said,) = [each.getMessage() for each in caplog.records if "too_large" in each.getMessage()]
            assert said.startswith("websocket_message_too_large ")
            assert f"limit={MIB}" in said
            await other.call("session/prompt", prompt_params(session_id, "hello"), id=5)
            assert (await other.until("reply:5"))[-1]["result"] == {"stopReason": "end_turn"}


async def test_one_byte_over_and_exactly_at_the_limit() -> None:
    """ACP-237: the limit counts bytes, also of characters that take several."""
    async with acp_sockets(max_body_bytes=MIB) as place:
        frame = '{"jsonrpc":"2.0","id":5,"method":"authenticate","params":{"x":"%s"}}'
        room = MIB - len(frame % "")
        async with open_socket(place.port, initialize={}) as socket:
            await socket.say(frame % ("x" * room))
            assert (await socket.until("reply:5"))[-1]["result"] == {}
            await socket.say(frame % ("é" * (room // 2) + "x" * (room % 2)))
            assert (await socket.until("reply:5"))[-1]["result"] == {}
            await socket.say(frame % ("é" * (room // 2 + 1)))
            assert (await socket.end() or (0, ""))[0] == 1009


async def test_fragmented_messages() -> None:
    """Issue 3: any number of fragments, pings in between, characters cut between them."""
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:
        session_id = await new_session(socket)
        import msgspec

        message = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "session/prompt",
            "params": prompt_params(session_id, "é漢🙂" * 50),
        }
        text = msgspec.json.encode(message).decode()
        for index, character in enumerate(text):
            await socket.send(TextMessage(data=character, message_finished=index == len(text) - 1))
            if index % 50 == 0:
                await socket.send(Ping(payload=b"x"))
        await socket.until("reply:5")
        assert said(place.session(session_id)) == ["é漢🙂" * 50]


async def test_many_small_fragments_cost_no_more_than_their_bytes() -> None:
    """ACP-237: the largest message in pieces of one character each is not a hundred times as large in memory."""
    pieces = 15_000
    message = b"\x01\x81" + bytes(4) + b'"' + (b"\x00\x83" + bytes(4) + "漢".encode()) * pieces
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await socket.raw.send(message)
            # The answer to a ping says that the server has read so far.
            await socket.raw.send(b"\x89\x80" + bytes(4))
            await socket.pump()
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held < 400_000
        await socket.raw.send(b"\x80\x81" + bytes(4) + b'"')
        assert (await socket.next())["error"]["code"] == -32600


async def test_binary_and_empty_frames() -> None:
    """ACP-237, issue 3."""
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:
        for _ in range(20):
            await socket.send(BytesMessage(data=b""))
            await socket.send(BytesMessage(data=b"\x00" * 1000))
        assert await socket.result("authenticate", {}) == {}
        await socket.send(TextMessage(data=""))
        assert (await socket.next())["error"]["code"] == -32700


async def test_text_that_is_not_utf8() -> None:
    """RFC 6455: 1007, and only this connection."""
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:
        await socket.raw.send(b"\x81\x84\x00\x00\x00\x00\xff\xff\xff\xff")
        assert (await socket.end() or (0, ""))[0] == 1007
        async with open_socket(place.port, initialize={}):
            pass


async def test_broken_framing() -> None:
    """RFC 6455: an unmasked frame of a client, a reserved opcode: 1002."""
    async with acp_sockets() as place:
        for rubbish in (b"\x81\x02{}", b"\x83\x80\x00\x00\x00\x00"):
            async with open_socket(place.port, initialize={}) as socket:
                await socket.raw.send(rubbish)
                assert (await socket.end() or (0, ""))[0] == 1002


async def test_ping_flood() -> None:
    """Issue 3: answered, and work goes on."""
    async with acp_sockets() as place, open_socket(place.port, initialize={}) as socket:

        async def flood() -> None:
            for _ in range(5000):
                await socket.send(Ping(payload=b"x" * 100))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            session_id = await new_session(socket)
            await socket.call("session/prompt", prompt_params(session_id, "hello"), id=5)
            await socket.until("reply:5")


async def test_ping_flood_by_a_peer_that_does_not_read() -> None:
    """Its own connection fills up, and nothing else."""
    async with acp_sockets(send_timeout_ms=500) as place:
        async with open_raw(place.port, receive_buffer=4096) as raw:
            await raw.request("GET", "/acp", **UPGRADE)
            assert (await raw.read_head()).status == 101
            ping = b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125
            with trio.move_on_after(4):
                try:
                    while True:
                        await raw.send(ping * 500)
                except trio.BrokenResourceError:
                    pass
        async with open_socket(place.port, initialize={}) as socket:
            assert await socket.result("authenticate", {}) == {}


async def test_upgrade_with_trailing_bytes() -> None:
    """Issue 3, stack: costs at most that connection."""
    async with acp_sockets() as place:
        async with open_socket(place.port, initialize={}) as other:
            for trailing in (b"x", b"\x81\x80\x00\x00\x00\x00" * 10, b"x" * 70_000):
                async with open_raw(place.port) as raw:
                    await raw.send(raw.head("GET", "/acp", **UPGRADE) + trailing)
                    await raw.wait_end(within=4)
            assert await other.result("authenticate", {}) == {}
        await wait_until(lambda: not place.served.application.guard_policy.connections, 6.0)


async def test_silence_is_noticed_and_patience_rewarded() -> None:
    """ACP-237, C-099: a peer that answers no ping is dropped at the next tick; one that only answers lives on."""
    async with acp_sockets(heartbeat_ms=300) as place:
        async with (
            open_socket(place.port, initialize={}) as healthy,
            open_socket(place.port, initialize={}, answers=False) as silent,
        ):
            session_id = await new_session(silent)
            session = place.session(session_id)

            async def live() -> None:
                while healthy.pings < 6:
                    assert await healthy.pump()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(live)
                started = trio.current_time()
                await silent.end(within=12)
                assert trio.current_time() - started < 10
            assert silent.pings == 1
            await wait_until(lambda: session.ring.subscribers == 0)
            assert await healthy.result("authenticate", {}) == {}


async def test_reset_aborts_at_once() -> None:
    """ACP-239: a plain client has no grace."""
    async with acp_sockets() as place:
        async with open_socket(place.port, initialize={}) as socket:
            session_id = await new_session(socket)
            await socket.call("session/prompt", prompt_params(session_id, "hold"))
            await socket.until("user_message_chunk")
            session = place.session(session_id)
        await wait_until(lambda: session.prompts.count == 0, 1.0)


DETACH = {"_meta": {"moorline": {"detach": True}}}


async def slow(session: FakeSession, operation: Operation) -> TurnResult | None:
    for number in range(10):
        await trio.sleep(0.05)
        session.say(str(number))
    return None


@pytest.mark.parametrize("rude", ["fin", "rst"])
async def test_resume_after_a_loss(rude: str) -> None:
    """Issue 3: nothing lost, nothing twice, the reply with its id; whatever way the socket died."""
    async with acp_sockets(FakeRunner(scripts={**SCRIPTS, "slow": slow})) as place:
        async with open_socket(place.port, initialize=DETACH) as socket:
            opened = await socket.result("session/new", {})
            session_id = opened["sessionId"]
            await socket.call("session/prompt", prompt_params(session_id, "slow"), id=7)
            seen = await socket.until("user_message_chunk")
            seen += [await socket.next() for _ in range(3)]
            cursor = opened["lastEventId"] + len(seen)
            if rude == "rst":
                socket.raw.stream.socket.setsockopt(  # type: ignore[attr-defined]  # a SocketStream
                    sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0)
                )
        await trio.sleep(0.2)
        async with open_socket(place.port, initialize=DETACH) as socket:
            params = {"sessionId": session_id, "lastEventId": cursor, "epoch": opened["eventEpoch"]}
            await socket.call("_moorline/session/attach", params, id=20)
            rest = await socket.until("turn_complete")
            if not any(each.get("id") == 7 for each in rest):
                rest += await socket.until("reply:7")
            assert rest[0] == {"jsonrpc": "2.0", "id": 20, "result": {}}
            words = [
                each["params"]["update"]["content"]["text"]
                for each in seen + rest
                if each.get("method") == "session/update"
            ]
            assert words == ["slow", *map(str, range(10))]
            assert [each["result"] for each in rest if each.get("id") == 7] == [{"stopReason": "end_turn"}]


async def test_an_orderly_close_is_the_end() -> None:
    """A resumable client that says goodbye (1000) does not come back: its prompts end at once."""
    async with acp_sockets() as place:
        async with open_socket(place.port, initialize=DETACH) as socket:
            session_id = await new_session(socket)
            await socket.call("session/prompt", prompt_params(session_id, "hold"))
            await socket.until("user_message_chunk")
            await socket.send(CloseConnection(code=1000))
            await socket.end()
        session = place.session(session_id)
        await wait_until(lambda: session.prompts.count == 0, 1.0)
        assert list(terminals(session).values()) == [["cancelled"]]


async def test_a_stuck_socket_is_given_up() -> None:
    """C-026 for sockets: evicted, hurried, and the session waits for its client."""
    async with acp_sockets(ws_grace_ms=10_000) as place:
        async with open_raw(place.port, receive_buffer=4096) as raw:
            await raw.request("GET", "/acp", **UPGRADE)
            stuck = RawSocket(raw, await raw.read_head(), answers=True)
            await stuck.call("initialize", DETACH, id=0)
            await stuck.until("reply:0")
            session_id = await new_session(stuck)
            session = place.session(session_id)
            await stuck.call("session/prompt", prompt_params(session_id, "hold"))
            await stuck.until("user_message_chunk")
            for _ in range(40):
                for _ in range(20):
                    session.update(
                        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * 20_000}}
                    )
                await trio.sleep(0.01)
            await wait_until(lambda: session.ring.subscribers == 0, 5.0)
        assert session.prompts.count == 1
        async with open_socket(place.port, initialize=DETACH) as socket:
            await socket.call("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0}, id=9)
            assert (await socket.until("reply:9"))[-1]["result"] == {}


async def test_shutdown() -> None:
    """ACP-238, C-063: the session's end is told, then 1012."""
    async with acp_sockets() as place:
        async with open_socket(place.port, initialize={}) as socket:
            session_id = await new_session(socket)
            await socket.call("session/prompt", prompt_params(session_id, "hold"))
            await socket.until("user_message_chunk")
            place.served.stop.set()
            messages = await socket.until("session_closed")
            assert messages[-1]["params"]["data"]["reason"] == "shutdown"
            assert await socket.end(within=8) == (1012, "Server shutting down")
