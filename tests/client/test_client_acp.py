"""The /acp transports: CLI-030 to CLI-039, C-106."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from client import (
    DaemonConnectionError,
    DaemonHttpError,
    DaemonSessionClient,
    DaemonStreamEndedError,
    JsonRpcError,
    SessionRequest,
    TransportKind,
)
from client.acp_transport import AgentOffer
from protocol.acp import SESSION_REPLY_METHODS
from protocol.sse import acp_frame
from tests.support.fake_daemon import (
    ALL_TRANSPORTS,
    SESSION_ROUTED,
    FakeDaemon,
    Turn,
    client_of,
    eventually,
    fake_daemon,
    wait_for_cancel,
)
from tests.support.scripted_server import Exchange

Clock = trio.testing.MockClock
ACP = ("acp-http", "acp-ws")


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_the_same_objects_on_every_transport(transport: str, autojump_clock: Clock) -> None:
    """CLI-039: close, detach, heartbeat and health work on each, and every answer has the same shape."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        await client.health()
        assert (await client.capabilities()).workspace_cwd == "/work"
        created = await client.create_session(SessionRequest(session_id="11111111-1111-4111-8111-111111111111"))
        assert created.session_id == "11111111-1111-4111-8111-111111111111"
        session = DaemonSessionClient(client, created, cursor=0)
        result = await session.prompt("hello")
        assert (result.stop_reason, result.meta) == ("end_turn", {})
        beat = await session.heartbeat()
        assert (beat.session_id, beat.last_seen_at) == (session.session_id, 7)
        await session.set_mode("plan")
        await session.set_model("m")
        await session.cancel()
        page = await client.list_sessions("/work", size=5, cursor="c")
        assert [entry.session_id for entry in page.sessions] == [session.session_id]
        assert page.next_cursor == "next"
        await session.detach()
        again = await DaemonSessionClient.resume(client, created.session_id)
        await again.close()
        assert daemon.sessions == {}
        await client.close_session(created.session_id)


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_the_same_events_on_every_transport(transport: str, autojump_clock: Clock) -> None:
    """CLI-039: type and data of an event do not depend on the wire."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events() as events, trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "hello")
            seen = []
            async for event in events:
                if event.type != "replay_complete":
                    seen.append(event)
                if event.type == "turn_complete":
                    break
        assert [event.type for event in seen] == ["session_update", "session_update", "turn_complete"]
        assert [event.update_kind for event in seen[:2]] == ["user_message_chunk", "agent_message_chunk"]
        assert [event.text for event in seen[:2]] == ["hello", "hello"]
        assert {event.session_id for event in seen} == {session.session_id}
        assert seen[2].data["stopReason"] == "end_turn"
        assert seen[2].prompt_id == seen[2].data["promptId"]


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_calls_inside_the_event_loop(transport: str, autojump_clock: Clock) -> None:
    """C-106, CLI-031, client-sdk 7.7 test 9: mode, cancel and a second prompt from inside the loop; nothing is lost."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        texts = []
        async with session.events() as events, trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "first")
            async for event in events:
                if event.text:
                    texts.append(event.text)
                if texts == ["first"]:
                    texts.append("|")
                    with trio.fail_after(2):
                        await session.set_mode("plan")
                        await session.cancel()
                        assert (await session.prompt("second")).stop_reason == "end_turn"
                if texts.count("second") == 2:
                    break
        assert texts == ["first", "|", "first", "second", "second"]


@pytest.mark.parametrize("transport", ["rest", "acp-http", "acp-ws"])
async def test_a_full_queue_holds_up_nothing(transport: str, autojump_clock: Clock) -> None:
    """CLI-032: a call made while far too many events wait is answered, and the events are fetched again afterwards."""

    async def flood(turn: Turn) -> str:
        for number in range(500):
            turn.say(f"{number},")
        return "end_turn"

    async with fake_daemon(flood) as daemon:
        daemon.moorline = {"detach": True} if transport == "acp-ws" else None
        async with client_of(daemon, transport) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            text = ""
            async with session.events(max_events=16) as events, trio.open_nursery() as nursery:
                nursery.start_soon(session.prompt, "go")
                first = await anext(events)
                while first.text != "go":
                    first = await anext(events)
                await trio.sleep(1)
                with trio.fail_after(2):
                    await session.set_mode("plan")
                async for event in events:
                    text += event.text
                    if event.type == "turn_complete":
                        break
            assert text == "".join(f"{number}," for number in range(500))


async def test_bytes_bound_the_queue_too(autojump_clock: Clock) -> None:
    """CLI-032: one event is always admitted, a second large one waits on the server."""

    async def large(turn: Turn) -> str:
        for number in range(10):
            turn.say(f"{number}" * 5000)
        return "end_turn"

    async with fake_daemon(large) as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        texts = []
        async with session.events(max_bytes=6000) as events:
            await session.prompt("go")
            queue = session.link._queue
            assert queue is not None
            assert queue._bytes <= 6000
            async for event in events:
                if event.update_kind == "agent_message_chunk":
                    texts.append(event.text[:1])
                if event.type == "turn_complete":
                    break
            assert queue.overflows > 0
        assert texts == [str(number) for number in range(10)]


async def test_a_gap_on_a_plain_socket_is_told(autojump_clock: Clock) -> None:
    """CLI-032, CLI-038: without ids nothing can be fetched again, so the consumer is told that events are missing."""

    async def flood(turn: Turn) -> str:
        for number in range(100):
            turn.say(f"{number}")
        return "end_turn"

    async with fake_daemon(flood) as daemon, client_of(daemon, "acp-ws") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events(max_events=10) as events:
            await session.prompt("go")
            await trio.sleep(1)
            kinds = [(await anext(events)).type for _ in range(11)]
        assert kinds == ["session_update"] * 10 + ["state_resync_required"]


async def test_the_waiter_is_there_before_the_post(autojump_clock: Clock) -> None:
    """CLI-030: an answer that comes before the 202 does is not lost."""

    async def reply_first(exchange: Exchange) -> None:
        message = exchange.json()
        if message.get("method") != "session/set_mode":
            return await daemon._acp(exchange)
        connection = daemon.connections[exchange.headers["acp-connection-id"]]
        connection.reply(
            message["params"]["sessionId"], {"jsonrpc": "2.0", "id": message["id"], "result": {"early": 1}}
        )
        await trio.sleep(5)
        return await exchange.answer(202)

    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.overrides["POST /acp"] = reply_first
        assert await session.set_mode("plan") == {"early": 1}


async def test_an_answer_in_the_post_itself(autojump_clock: Clock) -> None:
    """client-sdk K1: JSON in the POST's own answer is accepted."""

    async def inline(exchange: Exchange) -> None:
        message = exchange.json()
        if message.get("method") != "session/list":
            return await daemon._acp(exchange)
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"sessions": [{"sessionId": "x"}]}}
        return await exchange.answer(200, answer)

    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        daemon.overrides["POST /acp"] = inline
        assert [entry.session_id for entry in (await client.list_sessions("/work")).sessions] == ["x"]


async def test_replies_are_accepted_on_either_stream(autojump_clock: Clock) -> None:
    """CLI-034: a session method answered on the connection stream, a connection method on the session stream."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        await eventually(lambda: f"stream {session.session_id}" in daemon.log)

        async def swapped(exchange: Exchange) -> None:
            message = exchange.json()
            await exchange.answer(202)
            stream = "" if message["method"] in SESSION_ROUTED else session.session_id
            connection = daemon.connections[exchange.headers["acp-connection-id"]]
            connection.reply(stream, {"jsonrpc": "2.0", "id": message["id"], "result": {"swapped": message["method"]}})

        daemon.overrides["POST /acp"] = swapped
        with trio.fail_after(2):
            assert await session.set_mode("plan") == {"swapped": "session/set_mode"}
            assert (await session.heartbeat()).client_id is None


@pytest.mark.parametrize("transport", ACP)
async def test_lost_ownership_is_taken_back(transport: str, autojump_clock: Clock) -> None:
    """CLI-034, ACP-101: the ownership error comes on the connection stream; the call is repeated after a resume."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        await eventually(lambda: transport == "acp-ws" or f"stream {session.session_id}" in daemon.log)
        error = {"code": -32602, "message": f"Session {session.session_id} is not owned by this connection"}
        daemon.refusals["session/prompt"] = [error]
        daemon.refusals["session/set_mode"] = [error]
        await session.set_mode("plan")
        assert (await session.prompt("x")).stop_reason == "end_turn"
        restored = daemon.calls("rpc session/resume") + daemon.calls("rpc session/load")
        assert restored == 2


async def test_a_session_stream_is_left_with_its_connection(autojump_clock: Clock) -> None:
    """CLI-034: the old stream may be alive, but the answers of the next connection never come on it."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http", idle_timeout=float("inf")) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        (former,) = daemon.connections
        async with session.events():
            await eventually(lambda: f"stream {session.session_id}" in daemon.log)
            del daemon.connections[former]
            with trio.fail_after(60):
                await session.heartbeat()
                await session.set_mode("plan")


def test_reply_methods_come_from_the_server() -> None:
    """CLI-033, ACP-104: the server's list if it gives one, else the built-in set."""
    assert AgentOffer().reply_methods == SESSION_REPLY_METHODS
    meta = {"moorline": {"sessionReplyMethods": ["session/prompt"]}}
    assert AgentOffer({"agentCapabilities": {"_meta": meta}}).reply_methods == {"session/prompt"}
    broken = {"moorline": {"sessionReplyMethods": [1]}}
    assert AgentOffer({"agentCapabilities": {"_meta": broken}}).reply_methods == SESSION_REPLY_METHODS


async def test_a_session_stays_open_without_a_consumer(autojump_clock: Clock) -> None:
    """CLI-035, K3: half an hour between two prompts without a subscription, and the second one works."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http", idle_timeout=float("inf")) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        await session.prompt("one")
        opened = daemon.calls(f"stream {session.session_id}")
        await trio.sleep(1800)
        await session.prompt("two")
        assert daemon.calls(f"stream {session.session_id}") == opened == 1
        assert daemon.streams == 2
        await session.aclose()
        await eventually(lambda: daemon.streams == 1)


async def test_the_role_of_the_stream_is_said(autojump_clock: Clock) -> None:
    """Issue 3, ACP-178: a stream without a consumer says so; subscribing opens one that does not, and back."""
    async with fake_daemon() as daemon:
        daemon.moorline = {"sessionReplyMethods": sorted(SESSION_REPLY_METHODS)}
        async with client_of(daemon, "acp-http") as client:
            session = await DaemonSessionClient.create_or_attach(client)
            await session.prompt("x")
            async with session.events():
                pass
            await trio.sleep(0.1)
            roles = [
                request.headers.get("x-moorline-stream-role")
                for request in daemon.requests
                if request.method == "GET" and "acp-session-id" in request.headers
            ]
            assert roles == ["replies", None, "replies"]


@pytest.mark.parametrize("transport", ACP)
async def test_the_subscription_is_open_before_the_first_call(transport: str, autojump_clock: Clock) -> None:
    """CLI-036: inside the block the server has a consumer, and the whole history arrives."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events() as events:
            if transport == "acp-http":
                assert daemon.calls(f"stream {session.session_id}") >= 1
                assert any("last-event-id" in request.headers for request in daemon.requests)
            await session.prompt("hello")
            texts = [event.text async for event in take(events, 3)]
        assert "hello" in texts


async def take(events, count):  # type: ignore[no-untyped-def]  # a two-line helper
    for _ in range(count):
        yield await anext(events)


@pytest.mark.parametrize("transport", ["acp-http"])
async def test_the_daemon_forgot_the_connection(transport: str, autojump_clock: Clock) -> None:
    """CLI-026: 404 on a call or a stream: initialise, resume the session, go on from the cursor."""
    async with fake_daemon() as daemon, client_of(daemon, transport) as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        async with session.events() as events:
            await session.prompt("one")
            while (await anext(events)).type != "turn_complete":
                pass
            cursor = session.cursor
            daemon.connections.clear()
            fake.publish("session_update", {"sessionId": fake.id, "update": {"sessionUpdate": "plan"}})
            assert (await session.prompt("two")).stop_reason == "end_turn"
            seen = []
            async for event in events:
                seen.append(event.id)
                if event.type == "turn_complete":
                    break
        assert next(number for number in seen if number is not None) == (cursor or 0) + 1
        assert daemon.calls("rpc initialize") == 2
        assert daemon.calls("rpc session/resume") >= 1


async def test_a_prompt_whose_answer_died_with_the_connection(autojump_clock: Clock) -> None:
    """CLI-027: after a lost connection the end of the only outstanding prompt's turn is its outcome."""

    async def slow(turn: Turn) -> str:
        await trio.sleep(20)
        return "max_tokens"

    async with fake_daemon(slow) as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with trio.open_nursery() as nursery, session.events() as events:
            results = []

            async def prompt() -> None:
                results.append(await session.prompt("x"))

            nursery.start_soon(prompt)
            while not (await anext(events)).text:
                pass
            lose_connections(daemon)
            await eventually(lambda: bool(results))
        assert results[0].stop_reason == "max_tokens"


async def test_a_prompt_that_is_lost_fails(autojump_clock: Clock) -> None:
    """CLI-027: if neither an answer nor an end is seen, it fails instead of hanging."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def lose() -> None:
            await trio.sleep(3)
            daemon.sessions[session.session_id].turns.clear()
            lose_connections(daemon)

        daemon.nursery.start_soon(lose)
        with trio.fail_after(30), pytest.raises(DaemonStreamEndedError):
            await session.prompt("x")
        assert client.counters.count(session.session_id) == 0


def lose_connections(daemon: FakeDaemon) -> None:
    """Forget every connection and end its streams, as a destroyed connection does."""
    daemon.connections.clear()
    for exchange in daemon.requests:
        if exchange.chunked:
            daemon.nursery.start_soon(trio.aclose_forcefully, exchange.stream)


async def test_other_calls_fail_with_the_connection(autojump_clock: Clock) -> None:
    """CLI-001, C-108: a call that may have been executed is not repeated; its caller hears about it."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.gates["_qwen/session/heartbeat"] = trio.Event()

        async def lose() -> None:
            await trio.sleep(1)
            lose_connections(daemon)

        daemon.nursery.start_soon(lose)
        with trio.fail_after(30), pytest.raises(DaemonConnectionError) as caught:
            await session.heartbeat()
        assert caught.value.maybe_sent
        assert daemon.calls("rpc _qwen/session/heartbeat") == 1


async def test_errors_carry_the_same_status_as_rest(autojump_clock: Clock) -> None:
    """CLI-003, CLI-039: code, message and data of the JSON-RPC error, and the status it stands for."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        daemon.refusals["session/load"] = [
            {"code": -32603, "message": "busy", "data": {"errorKind": "session_archived", "sessionId": "s"}}
        ]
        with pytest.raises(JsonRpcError) as caught:
            await client.load_session("s")
        assert isinstance(caught.value, DaemonHttpError)
        assert (caught.value.rpc_code, caught.value.status, caught.value.code) == (-32603, 409, "session_archived")


async def test_requests_of_the_server_are_answered(autojump_clock: Clock) -> None:
    """ACP-198: a request nobody here understands is refused, so that the agent does not wait for ever."""
    answers = []

    async def note(exchange: Exchange) -> None:
        if "error" in exchange.json():
            answers.append(exchange.json())
        await daemon._acp(exchange)

    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        await session.prompt("x")
        daemon.overrides["POST /acp"] = note
        connection = next(iter(daemon.connections.values()))
        connection.reply("", {"jsonrpc": "2.0", "id": 0, "method": "fs/read_text_file", "params": {}})
        await eventually(lambda: bool(answers))
        assert (answers[0]["id"], answers[0]["error"]["code"]) == (0, -32601)


async def test_closing_gives_the_connection_back(autojump_clock: Clock) -> None:
    """CLI-001: the daemon is told; nothing stays open, no task is left in the caller's nursery."""
    async with fake_daemon() as daemon:
        async with trio.open_nursery() as nursery:
            from client import DaemonClient

            client = DaemonClient(
                "http://daemon", nursery=nursery, transport=TransportKind.ACP_HTTP, connect=daemon.network.connect
            )
            session = await DaemonSessionClient.create_or_attach(client)
            await session.prompt("x")
            await client.aclose()
            await client.aclose()
        assert daemon.connections == {}
        assert daemon.network.open == []


async def test_frames_of_any_shape(autojump_clock: Clock) -> None:
    """CLI-020: on /acp an unterminated last frame counts only if it is complete JSON; a dangling id line never."""
    params = {"sessionId": "s", "update": {"sessionUpdate": "agent_message_chunk"}}
    frame = acp_frame(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode(), 1)
    endings = [frame[:-2], frame[:-9], b"id: 9\n", frame.replace(b"id: 1", b"id: 2")]
    cursors = []

    async def stream(exchange: Exchange) -> None:
        await exchange.open_sse()
        if "acp-session-id" not in exchange.headers:
            await exchange.wait_gone()
            return
        cursors.append(exchange.headers.get("last-event-id"))
        if endings:
            await exchange.send(endings.pop(0))
            await exchange.finish()
            return
        await exchange.wait_gone()

    async with fake_daemon() as daemon, client_of(daemon, "acp-http") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        daemon.overrides["GET /acp"] = stream
        async with session.events() as events:
            assert (await anext(events)).id == 1
            assert (await anext(events)).id == 2
        assert cursors[:4] == ["0", "1", "1", "1"]
