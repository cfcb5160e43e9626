"""The WebSocket variant, in memory (acp-http 10; T12)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sessions import Operation, TurnResult
from tests.support.acp import Talker, acp_place, prompt_params
from tests.support.engine import said, terminals
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession
from tests.support.http import Reply

SELECT_A = {"outcome": {"outcome": "selected", "optionId": "a"}}


async def test_conversation(autojump_clock: MockClock) -> None:
    """ACP-231, ACP-234, T12: the same messages, no ids, one socket; and the socket stays open after rubbish (ACP-236)."""
    async with acp_place() as place, place.socket() as talker:
        assert talker.offer["protocolVersion"] == 1
        session_id = await talker.new_session()
        talker.call("session/prompt", prompt_params(session_id, "say hello"), id=3)
        frames = await talker.until_kind("turn_complete")
        assert [frame.kind for frame in frames] == [
            "user_message_chunk",
            "agent_message_chunk",
            "reply:3",
            "turn_complete",
        ]
        assert all("_meta" not in frame.message for frame in frames)
        for text, answer in (
            ("not json", {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}),
            ('[{"jsonrpc":"2.0","id":9,"method":"session/list"}]', {"error": "Batch JSON-RPC not supported"}),
            (
                '{"foo":1}',
                {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Malformed JSON-RPC message"}},
            ),
            ("", {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}),
            ("[" * 10_000, {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}),
            (
                '{"jsonrpc":"2.0","id":1,"method":"x","params":NaN}',
                {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}},
            ),
        ):
            talker.say(text)
            assert msgspec.json.decode(await talker.socket.receive_text()) == answer
        for method in ("nope", "initialize"):
            assert await talker.error(method, {}) == {"code": -32601, "message": f"Unknown method: {method}"}
        talker.call("session/close", {"sessionId": session_id}, id=6)
        closing = {(await talker.next()).kind, (await talker.next()).kind}
        assert closing == {"session_closed", "reply:6"}
        assert await talker.new_session()


async def test_binary_frames_are_ignored(autojump_clock: MockClock) -> None:
    """ACP-237, issue 3: also empty ones, also before initialize."""
    async with acp_place() as place, place.driver.websocket("/acp") as socket:
        await socket.answer()
        socket.send_bytes(b"\x00\xff")
        talker = Talker(socket)
        talker.offer = (await talker.answer(talker.call("initialize", {}, id=0)))["result"]
        socket.send_bytes(b"")
        socket.send_bytes(b'{"jsonrpc":"2.0","id":1,"method":"authenticate"}')
        assert await talker.result("authenticate", {}) == {}
        assert [frame.kind for frame in talker.seen] == ["reply:0", "reply:1"]


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}', 1),
        ('{"jsonrpc":"2.0","method":"initialize"}', None),
        ("not json", None),
        ("[]", None),
    ],
)
async def test_first_message(autojump_clock: MockClock, text: str, id: Any) -> None:
    """ACP-232, T12: anything but initialize, then 1002."""
    async with acp_place() as place, place.driver.websocket("/acp") as socket:
        await socket.answer()
        socket.send_text(text)
        talker = Talker(socket)
        error = (await talker.next()).message
        assert error == {
            "jsonrpc": "2.0",
            "id": id,
            "error": {"code": -32600, "message": "First message must be initialize"},
        }
        assert await talker.close_code() == (1002, "Protocol error")


async def test_initialize_timeout(autojump_clock: MockClock) -> None:
    """ACP-232: 30 s."""
    async with acp_place() as place, place.driver.websocket("/acp") as socket:
        await socket.answer()
        before = trio.current_time()
        assert await Talker(socket).close_code() == (1002, "Initialize timeout")
        assert trio.current_time() - before == pytest.approx(30)


async def test_upgrade_headers(autojump_clock: MockClock) -> None:
    """ACP-233, ACP-240, ACP-258: the id on the 101, the first offered subprotocol, the cookie."""
    async with acp_place(affinity_cookie="place") as place:
        async with place.driver.websocket("/acp", subprotocols=["acp.v1", "other"]) as socket:
            head = await socket.answer()
            assert head.status == 101
            assert head.headers["sec-websocket-protocol"] == "acp.v1"
            connection_id = head.headers["acp-connection-id"]
            assert head.headers["set-cookie"].startswith(f"place={connection_id}; Path=/")
            talker = Talker(socket)
            offer = (await talker.answer(talker.call("initialize", {})))["result"]
            assert offer["connectionId"] == connection_id
        async with place.driver.websocket("/acp") as socket:
            assert "sec-websocket-protocol" not in (await socket.answer()).headers


@pytest.mark.parametrize(
    ("subprotocols", "headers", "status", "selected"),
    [
        ([], {}, 401, None),
        ([], {"Authorization": "Bearer wrong"}, 401, None),
        ([], {"Authorization": "Bearer secret"}, 101, None),
        (["qwen-ws", "qwen-bearer.c2VjcmV0"], {}, 101, "qwen-ws"),
        (["qwen-bearer.c2VjcmV0"], {}, 101, None),
        (["qwen-bearer.d3Jvbmc"], {}, 401, None),
        ([], {"Authorization": "Bearer secret", "Origin": "https://evil.example"}, 403, None),
        ([], {"Authorization": "Bearer secret", "Host": "evil.example:4170"}, 403, None),
    ],
)
async def test_who_may_upgrade(
    autojump_clock: MockClock, subprotocols: list[str], headers: dict[str, str], status: int, selected: str | None
) -> None:
    """ACP-240 to ACP-242, C-072: no 101 for a foreign origin, even with the token; a carrier is never echoed."""
    async with acp_place(token="secret") as place:
        async with place.driver.websocket("/acp", subprotocols=subprotocols, **headers) as socket:
            head = await socket.answer()
            assert head.status == status
            assert head.headers.get("sec-websocket-protocol") == selected


async def test_cap(autojump_clock: MockClock) -> None:
    """ACP-238: sockets and HTTP connections share the cap."""
    async with acp_place(max_acp_connections=2) as place:
        await place.connect()
        async with place.socket(), place.driver.websocket("/acp") as socket:
            await socket.answer()
            talker = Talker(socket)
            answer = await talker.answer(talker.call("initialize", {}, id=5))
            assert answer["error"] == {"code": -32603, "message": "Too many connections"}
            assert await talker.close_code() == (1013, "Connection cap")
        await wait_all_tasks_blocked()
        async with place.socket():
            pass


async def test_a_sockets_id_is_nothing_over_http(autojump_clock: MockClock) -> None:
    """ACP-256 goes for the transports too: nobody listens in on a socket by its id."""
    async with acp_place() as place, place.socket() as talker:
        client = await place.connect()
        client.connection_id = talker.offer["connectionId"]
        assert (await client.try_listen()).status == 404
        assert (await client.post({"jsonrpc": "2.0", "id": 1, "method": "session/new"})).status == 404
        assert (await client.delete()).status == 202
        assert await talker.result("authenticate", {}) == {}


async def test_losing_the_socket_aborts_at_once(autojump_clock: MockClock) -> None:
    """ACP-239: no grace."""
    async with acp_place() as place:
        async with place.socket() as talker:
            session_id = await talker.new_session()
            session = place.session(session_id)
            talker.call("session/prompt", prompt_params(session_id, "hold"))
            await talker.until_kind("user_message_chunk")
            before = trio.current_time()
        await wait_all_tasks_blocked()
        assert trio.current_time() == before
        assert list(terminals(session).values()) == [["cancelled"]]
        assert session.clients == {}


async def test_a_running_prompt_blocks_nothing(autojump_clock: MockClock) -> None:
    """ACP-235, C-060: cancel gets through; so it does behind a fork that waits for its turn."""
    from sessions import Capabilities

    async with acp_place(FakeRunner(answers=Capabilities(fork_session=True))) as place, place.socket() as talker:
        session_id = await talker.new_session()
        talker.call("session/prompt", prompt_params(session_id, "hold"), id=50)
        talker.call("session/fork", {"sessionId": session_id}, id=51)
        talker.call("session/cancel", {"sessionId": session_id}, id=52)
        # Replies of the connection and of the session may come in either order.
        waited_for = {"reply:50", "reply:51", "reply:52"}
        with trio.fail_after(5):
            while waited_for:
                waited_for.discard((await talker.next()).kind)


async def test_order_of_messages(autojump_clock: MockClock) -> None:
    """ACP-235: one after another; what the next one needs is there."""

    async with acp_place(FakeRunner(start_delay=2.0)) as place, place.socket() as talker:
        wanted = "11111111-2222-4333-8444-555555555555"
        talker.call("session/new", {"_meta": {"qwen-code/sessionId": wanted}}, id=1)
        talker.call("session/prompt", prompt_params(wanted, "hello"), id=2)
        frames = await talker.until_kind("reply:2")
        assert frames[-1].message["result"] == {"stopReason": "end_turn"}


async def test_queue_full(autojump_clock: MockClock) -> None:
    """C-024 over the socket."""
    async with acp_place() as place, place.socket() as talker:
        session_id = await talker.new_session()
        for number in range(1, 7):
            talker.call("session/prompt", prompt_params(session_id, "hold"), id=100 + number)
        refused = (await talker.until_kind("reply:106"))[-1].message["error"]
        assert refused["data"] == {
            "errorKind": "prompt_queue_full",
            "sessionId": session_id,
            "limit": 5,
            "pendingCount": 5,
        }
        assert await talker.result("authenticate", {}) == {}


async def test_permission(autojump_clock: MockClock) -> None:
    """ACP-172, ACP-174: string ids, answered on the same socket."""
    async with acp_place() as place, place.socket() as talker:
        session_id = await talker.new_session()
        talker.call("session/prompt", prompt_params(session_id, "ask"))
        request = (await talker.until_kind("session/request_permission"))[-1].message
        assert isinstance(request["id"], str)
        talker.say({"jsonrpc": "2.0", "id": request["id"], "result": SELECT_A})
        await talker.until_kind("turn_complete")
        assert said(place.session(session_id)) == ["answer: a"]


async def test_load_shows_history_after_the_reply(autojump_clock: MockClock) -> None:
    """ACP-193, ACP-234: the events flow from the reply on."""
    async with acp_place() as place, place.socket() as first:
        session_id = await first.new_session()
        first.call("session/prompt", prompt_params(session_id, "hello"))
        await first.until_kind("turn_complete")
        async with place.socket() as second:
            second.call("session/load", {"sessionId": session_id}, id=7)
            frames = await second.until_kind("replay_complete")
            assert [frame.kind for frame in frames] == [
                "reply:7",
                "user_message_chunk",
                "agent_message_chunk",
                "turn_complete",
                "replay_complete",
            ]


async def test_shutdown(autojump_clock: MockClock) -> None:
    """ACP-238: 1012; the session's end is told before."""
    async with acp_place() as place, place.socket() as talker:
        await talker.new_session()
        place.driver.ground.drain.cut()
        assert await talker.close_code() == (1012, "Server shutting down")


async def test_shutdown_before_initialize(autojump_clock: MockClock) -> None:
    async with acp_place() as place, place.driver.websocket("/acp") as socket:
        await socket.answer()
        place.driver.ground.drain.cut()
        assert await Talker(socket).close_code() == (1012, "Server shutting down")


async def test_a_flood_of_messages(autojump_clock: MockClock) -> None:
    """Issue 3, bad input: more than may wait while one message takes its time: 1013, and nothing grows without end."""
    async with acp_place(FakeRunner(start_delay=60.0)) as place, place.socket() as talker:
        talker.call("session/new", {})
        for _ in range(1100):
            talker.call("authenticate", {})
        assert await talker.close_code() == (1013, "Resource limit")


async def test_a_flood_of_short_calls_is_served(autojump_clock: MockClock) -> None:
    """One that keeps reading is not punished."""
    async with acp_place() as place, place.socket() as talker:

        async def talk() -> None:
            for number in range(3000):
                talker.call("authenticate", {}, id=number)
                if number % 100 == 0:
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            await talker.until_kind("reply:2999")
        assert len(talker.seen) == 3001


async def test_a_peer_that_does_not_read(autojump_clock: MockClock) -> None:
    """ACP-131: what waits is bounded; the connection goes."""
    async with acp_place() as place, place.socket() as talker:
        for round_ in range(12):
            for number in range(100):
                talker.call("authenticate", {}, id=round_ * 100 + number)
            await wait_all_tasks_blocked()
        code, reason = await talker.close_code()
        assert (code, reason) == (1013, "Resource limit")


async def test_eviction_and_going_on(autojump_clock: MockClock) -> None:
    """ACP-019, ACP-144: told, then detached; the next request naming the session makes the events flow again (ACP-234)."""

    async def flood(session: FakeSession, operation: Operation) -> TurnResult | None:
        await trio.lowlevel.checkpoint()
        for number in range(600):
            session.say(str(number))
        return None

    async with acp_place(FakeRunner(scripts={**SCRIPTS, "flood": flood})) as place, place.socket() as talker:
        session_id = await talker.new_session()
        talker.call("session/prompt", prompt_params(session_id, "flood"), id=5)
        await talker.until_kind("client_evicted")
        talker.call("session/set_mode", {"sessionId": session_id, "modeId": "default"}, id=6)
        kinds = [frame.kind for frame in await talker.until_kind("reply:6")]
        assert "reply:5" in kinds
        assert terminals(place.session(session_id))


# Resuming (issue 3)


async def slow(session: FakeSession, operation: Operation) -> TurnResult | None:
    await trio.sleep(3)
    session.say("one")
    await trio.sleep(3)
    session.say("two")
    return None


async def test_resume_without_loss(autojump_clock: MockClock) -> None:
    """Issue 3: {} first, then the replay, replay_complete, and the replies that waited, with the ids the client knows."""
    async with acp_place(FakeRunner(scripts={**SCRIPTS, "slow": slow})) as place:
        async with place.socket(detach=True) as talker:
            ours = talker.offer["agentCapabilities"]["_meta"]["moorline"]
            assert (ours["detach"], ours["graceMs"]) == (True, 10000)
            assert ours["methods"] == ["_moorline/session/attach"]
            opened = await talker.result("session/new", {})
            session_id, cursor = opened["sessionId"], opened["lastEventId"]
            talker.call("session/prompt", prompt_params(session_id, "slow"), id=3)
            await talker.until_kind("user_message_chunk")
            cursor += 1
        await trio.sleep(9)
        async with place.socket(detach=True) as talker:
            params = {"sessionId": session_id, "lastEventId": cursor, "epoch": opened["eventEpoch"]}
            talker.call("_moorline/session/attach", params, id=20)
            frames = await talker.until_kind("reply:3")
            assert [frame.kind for frame in frames] == [
                "reply:20",
                "agent_message_chunk",
                "agent_message_chunk",
                "turn_complete",
                "replay_complete",
                "reply:3",
            ]
            assert frames[0].message["result"] == {}
            assert frames[-1].message["result"] == {"stopReason": "end_turn"}
            # The session is this socket's now.
            talker.call("session/prompt", prompt_params(session_id, "hello"), id=21)
            assert (await talker.until_kind("reply:21"))[-1].message["result"] == {"stopReason": "end_turn"}


async def test_resume_in_mid_turn(autojump_clock: MockClock) -> None:
    """The turn goes on over the new socket, and is not aborted when the old grace would have ended."""
    async with acp_place(FakeRunner(scripts={**SCRIPTS, "slow": slow})) as place:
        async with place.socket(detach=True) as talker:
            session_id = await talker.new_session()
            talker.call("session/prompt", prompt_params(session_id, "slow"), id=3)
            await talker.until_kind("user_message_chunk")
        await trio.sleep(4)
        async with place.socket(detach=True) as talker:
            talker.call("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 1}, id=20)
            kinds = [frame.kind for frame in await talker.until_kind("turn_complete")]
            assert kinds == [
                "reply:20",
                "agent_message_chunk",
                "replay_complete",
                "agent_message_chunk",
                "reply:3",
                "turn_complete",
            ]
            await trio.sleep(20)
            assert await talker.result("_qwen/session/heartbeat", {"sessionId": session_id})


async def test_attach_on_the_same_socket(autojump_clock: MockClock) -> None:
    """The client starts to count at the reply: nothing of the former flow comes after it."""
    async with acp_place() as place, place.socket(detach=True) as talker:
        session_id = await talker.new_session()
        session = place.session(session_id)
        for _ in range(3):
            session.update({"sessionUpdate": "plan", "entries": []})
        talker.call("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 1}, id=9)
        frames = await talker.until_kind("replay_complete")
        start = [frame.kind for frame in frames].index("reply:9")
        assert [frame.kind for frame in frames[start:]] == ["reply:9", "plan", "plan", "replay_complete"]
        session.publish("operation_state", {"sessionId": session_id, "operationId": 1, "state": "running"})
        # A client that counts must see every event.
        assert (await talker.next()).kind == "operation_state"


async def test_pending_question_over_a_lost_socket(autojump_clock: MockClock) -> None:
    """ACP-148, ACP-171: asked again with the id the client knows."""
    async with acp_place() as place:
        async with place.socket(detach=True) as talker:
            session_id = await talker.new_session()
            talker.call("session/prompt", prompt_params(session_id, "ask"), id=3)
            first = (await talker.until_kind("session/request_permission"))[-1].message
        async with place.socket(detach=True) as talker:
            talker.call("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0}, id=4)
            again = (await talker.until_kind("session/request_permission"))[-1].message
            assert again["id"] == first["id"]
            talker.say({"jsonrpc": "2.0", "id": again["id"], "result": SELECT_A})
            await talker.until_kind("reply:3")
        assert said(place.session(session_id)) == ["answer: a"]


async def test_attach_takes_over_from_every_lost_socket(autojump_clock: MockClock) -> None:
    """Issue 3: a client that lost two sockets before it got through is told the outcome of what it sent on either."""
    async with acp_place() as place:
        async with place.socket(detach=True) as first, place.socket(detach=True) as second:
            session_id = await first.new_session()
            first.call("session/prompt", prompt_params(session_id, "hold"), id=3)
            await first.until_kind("user_message_chunk")
            second.call("session/load", {"sessionId": session_id, "mcpServers": []}, id=5)
            await second.answer(5)
            second.call("session/prompt", prompt_params(session_id, "echo two"), id=6)
            await wait_all_tasks_blocked()
        async with place.socket(detach=True) as third:
            third.call("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0}, id=9)
            await third.until_kind("replay_complete")
            third.say({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session_id}})
            replies = [each.kind for each in await third.until_kind("reply:6") if each.kind.startswith("reply:")]
        assert replies == ["reply:3", "reply:6"]


@pytest.mark.parametrize("case", ["unknown", "foreign", "expired", "plain", "http"])
async def test_attach_refused(autojump_clock: MockClock, case: str) -> None:
    """Issue 3: unknown, foreign or expired: -32602, in the same words."""
    async with acp_place() as place:
        session_id = "00000000-0000-4000-8000-00000000dead"
        async with place.socket(detach=case != "plain") as first:
            if case != "unknown":
                session_id = await first.new_session()
            if case == "foreign":
                async with place.socket(detach=True) as other:
                    error = await other.error("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0})
                    assert error == {
                        "code": -32602,
                        "message": f"Session {session_id} is not owned by this connection",
                    }
                return
        if case == "expired":
            await trio.sleep(10.1)
        if case == "http":
            client = await place.connect()
            session_id = await client.new_session()
            async with client.listen(session_id):
                pass
        async with place.socket(detach=True) as other:
            error = await other.error("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0})
            assert error == {"code": -32602, "message": f"Session {session_id} is not owned by this connection"}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"sessionId": "s"},
        {"sessionId": "s", "lastEventId": -1},
        {"sessionId": "s", "lastEventId": "5"},
        {"sessionId": "s", "lastEventId": 2**53},
        {"sessionId": "s", "lastEventId": True},
        {"sessionId": "s", "lastEventId": 1, "epoch": "no token!"},
        {"sessionId": "s", "lastEventId": 1, "epoch": 5},
    ],
)
async def test_attach_parameters(autojump_clock: MockClock, params: dict[str, Any]) -> None:
    async with acp_place() as place, place.socket(detach=True) as talker:
        error = await talker.error("_moorline/session/attach", params)
        assert error["code"] == -32602
        assert "not owned" not in error["message"]


async def test_no_grace_when_it_is_switched_off(autojump_clock: MockClock) -> None:
    """--ws-grace-ms 0: as plain clients (ACP-239)."""
    async with acp_place(ws_grace_ms=0) as place:
        async with place.socket(detach=True) as talker:
            assert "detach" not in talker.offer["agentCapabilities"]["_meta"]["moorline"]
            session_id = await talker.new_session()
            session = place.session(session_id)
            talker.call("session/prompt", prompt_params(session_id, "hold"))
            await talker.until_kind("user_message_chunk")
        await wait_all_tasks_blocked()
        assert list(terminals(session).values()) == [["cancelled"]]


async def test_ws_grace_is_configurable(autojump_clock: MockClock) -> None:
    """--ws-grace-ms."""
    async with acp_place(ws_grace_ms=60_000) as place:
        async with place.socket(detach=True) as talker:
            session_id = await talker.new_session()
        await trio.sleep(59)
        async with place.socket(detach=True) as talker:
            assert await talker.result("_moorline/session/attach", {"sessionId": session_id, "lastEventId": 0}) == {}


async def test_a_session_nobody_was_told_of_does_not_outlive_its_socket(autojump_clock: MockClock) -> None:
    """ACP-120 over a resumable socket: the reply was never written."""
    async with acp_place(FakeRunner(start_delay=5.0)) as place:
        async with place.socket(detach=True) as talker:
            talker.call("session/new", {})
            await trio.sleep(1)
        await trio.sleep(30)
        assert place.harbour.sessions == []


async def test_one_queue_for_both_surfaces(autojump_clock: MockClock) -> None:
    """REST-066, ACP-210: what one wire has queued counts on the other, and both refuse the sixth in their own words."""
    async with acp_place() as place, place.socket() as talker:
        session_id = await talker.new_session()
        body = msgspec.json.encode({"prompt": [{"type": "text", "text": "hold"}]})

        async def post() -> Reply:
            return await place.driver.request(
                "POST", f"/session/{session_id}/prompt", body=body, content_type="application/json"
            )

        for number in range(3):
            talker.call("session/prompt", prompt_params(session_id, "hold"), id=10 + number)
        await wait_all_tasks_blocked()
        assert [(await post()).status for _ in range(3)] == [202, 202, 503]
        error = await talker.error("session/prompt", prompt_params(session_id, "hold"))
        assert error["data"]["errorKind"] == "prompt_queue_full"
        assert place.session(session_id).prompts.count == 5
