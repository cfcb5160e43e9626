"""The methods over HTTP: what they take, what they answer, and on which stream (acp-http 3.1, 8, 9)."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from protocol.acp import SESSION_REPLY_METHODS
from server.routes.acp.errors import ENGINE_ERRORS, rpc_error_of
from sessions import Capabilities, Operation, TurnResult, errors
from sessions.errors import AgentStartError, AgentStartTimeout, RunnerError
from tests.support.acp import AcpClient, Place, acp_place, prompt_params
from tests.support.engine import said, terminals
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession

FOREIGN = "00000000-0000-4000-8000-00000000dead"


async def test_session_new(autojump_clock: MockClock) -> None:
    """session/new; client-sdk section 5: enriched results; ACP-190: always a distinct session."""
    async with acp_place() as place:
        client = await place.connect()
        result = await client.result("session/new", {"cwd": "/tmp", "mcpServers": []})
        session = place.session(result["sessionId"])
        assert result["workspaceCwd"] == "/tmp"
        assert result["attached"] is False
        assert result["clientId"] in session.clients
        assert result["eventEpoch"] == session.ring.epoch
        assert result["lastEventId"] == 0
        assert result["createdAt"].endswith("Z")
        assert result["modes"] == {"currentModeId": "default", "availableModes": [{"id": "default", "name": "Default"}]}
        assert await client.new_session() != result["sessionId"]


async def test_model_entries_please_both_dialects(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """ACP-191."""
    models = {"currentModelId": "m", "availableModels": [{"modelId": "m", "name": "M"}, {"id": "n"}]}
    monkeypatch.setattr(FakeSession, "state", lambda self: {"models": models})
    async with acp_place() as place:
        client = await place.connect()
        result = await client.result("session/new", {})
        assert result["models"]["availableModels"] == [
            {"modelId": "m", "name": "M", "id": "m"},
            {"id": "n", "modelId": "n", "name": "n"},
        ]


@pytest.mark.parametrize(
    ("params", "data"),
    [
        ({"cwd": "relative"}, None),
        ({"cwd": 5}, None),
        ({"cwd": "/somewhere/else"}, None),
        ({"mcpServers": {}}, None),
        ({"sourceType": ""}, None),
        ({"_meta": {"qwen-code/sessionId": "zz"}}, {"httpStatus": 400, "errorKind": "invalid_session_id"}),
        ({"_meta": []}, None),
    ],
)
async def test_session_new_refusals(autojump_clock: MockClock, params: Any, data: Any) -> None:
    """acp-http 9: parameter validation, workspace mismatch, invalid caller id."""
    async with acp_place() as place:
        client = await place.connect()
        error = await client.error("session/new", params)
        assert error["code"] == -32602
        assert error.get("data") == data
        assert place.harbour.sessions == []


async def test_caller_chosen_id(autojump_clock: MockClock) -> None:
    """session/new with _meta["qwen-code/sessionId"]; in use: 409."""
    async with acp_place() as place:
        client = await place.connect()
        wanted = "11111111-2222-4333-8444-555555555555"
        params = {"_meta": {"qwen-code/sessionId": wanted.upper()}}
        assert (await client.result("session/new", params))["sessionId"] == wanted
        error = await client.error("session/new", params)
        assert error["code"] == -32602
        assert error["data"]["errorKind"] == "session_id_conflict"
        assert error["data"]["httpStatus"] == 409
        assert error["data"]["sessionId"] == wanted


async def test_openers_are_ignored_as_notifications(autojump_clock: MockClock) -> None:
    """ACP-190."""
    async with acp_place() as place:
        client = await place.connect()
        for method in ("session/new", "session/load", "session/resume", "session/fork", "session/list"):
            await client.notify(method, {"sessionId": FOREIGN})
        await wait_all_tasks_blocked()
        assert place.harbour.sessions == []


async def test_reply_streams(autojump_clock: MockClock) -> None:
    """ACP-100: exactly the five methods answer on the session stream, everything else on the connection stream."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        calls: dict[str, dict[str, Any]] = {
            "authenticate": {},
            "session/list": {},
            "session/load": {"sessionId": session_id},
            "session/resume": {"sessionId": session_id},
            "session/fork": {"sessionId": session_id},
            "session/permission": {"sessionId": session_id},
            "session/prompt": prompt_params(session_id, "hello"),
            "session/cancel": {"sessionId": session_id},
            "session/set_mode": {"sessionId": session_id, "modeId": "default"},
            "session/set_model": {"sessionId": session_id, "modelId": "small"},
            "session/set_config_option": {"sessionId": session_id, "configId": "mode", "value": "default"},
            "_qwen/session/heartbeat": {"sessionId": session_id},
            "_qwen/session/context": {"sessionId": session_id},
            "_qwen/session/update_metadata": {"sessionId": session_id, "displayName": "x"},
            "session/close": {"sessionId": session_id},
        }
        seen: dict[str, str] = {}
        async with client.listen() as connection, client.listen(session_id) as session:
            for method, params in calls.items():
                id = await client.call(method, params)
                feed = session if method in SESSION_REPLY_METHODS else connection
                await feed.until_kind(f"reply:{id}")
                seen[method] = "session" if feed is session else "connection"
        assert {method for method, stream in seen.items() if stream == "session"} == SESSION_REPLY_METHODS


async def test_validation_errors_of_the_five_are_on_the_session_stream(autojump_clock: MockClock) -> None:
    """acp-http 3.1, T03: and what cannot be told there is told on the connection stream (ACP-101)."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        about = {"sessionId": session_id}
        text = "`prompt` is required and must be a non-empty array of content blocks"
        async with client.listen(session_id) as feed:
            for prompt in ([], "x", None, ["x"], [{}, 5]):
                await client.call("session/prompt", {**about, "prompt": prompt})
                assert (await anext(feed)).message["error"] == {"code": -32602, "message": text}
            await client.call("session/set_mode", {**about, "modeId": "bogus"})
            assert (await anext(feed)).message["error"] == {
                "code": -32602,
                "message": 'invalid modeId "bogus" (expected one of: default)',
            }
            await client.call("session/set_config_option", {**about, "configId": "colour", "value": "x"})
            assert (await anext(feed)).message["error"] == {
                "code": -32602,
                "message": "ConfigId not supported by this transport: colour (supported: model, mode)",
            }
            for params in ({"configId": "mode"}, {"configId": "mode", "value": 5}, {"value": "x"}):
                await client.call("session/set_config_option", {**about, **params})
                assert (await anext(feed)).message["error"]["code"] == -32602
        for method in sorted(SESSION_REPLY_METHODS):
            assert await client.error(method, {}) == {"code": -32602, "message": "`sessionId` is required"}


async def test_settings(autojump_clock: MockClock) -> None:
    """session/set_mode, set_model, set_config_option: the event first, then the reply (T03, T15)."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        about = {"sessionId": session_id}
        async with client.listen(session_id) as feed:
            await client.call("session/set_mode", {**about, "modeId": "default"}, id=1)
            assert [frame.kind for frame in await feed.take(2)] == ["approval_mode_changed", "reply:1"]
            await client.call("session/set_model", {**about, "modelId": "large"}, id=2)
            assert [frame.kind for frame in await feed.take(2)] == ["model_switched", "reply:2"]
            await client.call("session/set_model", {**about, "modelId": "unknown"}, id=3)
            switch, answer = await feed.take(2)
            assert switch.kind == "model_switch_failed"
            assert answer.message["error"] == {
                "code": -32603,
                "message": "Internal error",
                "data": {"errorKind": "internal", "details": "no such model"},
            }
            await client.call("session/set_config_option", {**about, "configId": "model", "value": "x"}, id=4)
            frames = await feed.until_kind("reply:4")
            assert frames[-1].message["result"] == {"configOptions": [{"id": "model", "currentValue": "x"}]}


async def test_set_config_option_through_an_older_agent(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """acp-http 8: where the agent does not know the method, each option goes by the call there was before for it."""

    async def unknown(session: FakeSession, config_id: str, value: str) -> None:
        await trio.lowlevel.checkpoint()
        raise RunnerError("Method not found", -32601)

    monkeypatch.setattr(FakeSession, "set_config_option", unknown)
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            for number, (option, value, event) in enumerate(
                (("model", "large", "model_switched"), ("mode", "default", "approval_mode_changed"))
            ):
                params = {"sessionId": session_id, "configId": option, "value": value}
                await client.call("session/set_config_option", params, id=number)
                switched, answer = await feed.take(2)
                assert switched.kind == event
                assert answer.message["result"] == {"configOptions": []}
        assert (place.runner.sessions[0].model, place.runner.sessions[0].mode) == ("large", "default")


@pytest.mark.parametrize(
    "source", [{}, {"sourceType": "ide"}, {"sourceId": "x"}, {"sourceType": "ide", "sourceId": "x"}]
)
async def test_the_source_of_a_session(source: dict[str, str], autojump_clock: MockClock) -> None:
    """acp-http 8: ``sourceType`` and ``sourceId`` are kept, and nothing in place of one that is not given."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session(**source)
        assert place.session(session_id).source == source


async def test_owners_keep_their_client_id(autojump_clock: MockClock) -> None:
    """REST-004, ACP-122: loading again changes nothing, but for an id that is not known any more: it is replaced, and the
    session can be used again."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        (first,) = session.clients
        assert (await client.result("session/load", {"sessionId": session_id}))["clientId"] == first
        assert list(session.clients) == [first]
        session.drop_client(first)
        second = (await client.result("session/resume", {"sessionId": session_id}))["clientId"]
        assert second != first
        assert list(session.clients) == [second]
        beat = await client.result("_qwen/session/heartbeat", {"sessionId": session_id})
        assert beat["clientId"] == second
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hello", id=9)
            assert (await feed.until_kind("reply:9"))[-1].message["result"] == {"stopReason": "end_turn"}


async def test_cancel(autojump_clock: MockClock) -> None:
    """ACP-195, C-060: the running prompt only, at once; with nothing running it succeeds; as a request and as a notification."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.call("session/cancel", {"sessionId": session_id}, id=1)
            assert (await anext(feed)).message == {"jsonrpc": "2.0", "id": 1, "result": {}}
            await client.prompt(session_id, "hold", id=2)
            await client.prompt(session_id, "second", id=3)
            await feed.until_kind("user_message_chunk")
            await client.notify("session/cancel", {"sessionId": session_id})
            frames = await feed.until_kind("reply:3")
            replies = {frame.message["id"]: frame.message["result"] for frame in frames if frame.method is None}
            assert replies[2]["stopReason"] == "cancelled"
            assert replies[2]["_meta"]["qwen.promptCancelled"]["elapsedMs"] >= 0
            assert replies[3] == {"stopReason": "end_turn"}


async def test_failing_prompt(autojump_clock: MockClock) -> None:
    """ACP-220, ACP-213: the agent's text only in data.details; the next prompt is not poisoned."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "fail", id=1)
            await client.prompt(session_id, "crash", id=2)
            await client.prompt(session_id, "fine", id=3)
            frames = await feed.until_kind("reply:3")
            replies = {frame.message["id"]: frame.message for frame in frames if frame.method is None}
            assert replies[1]["error"] == {
                "code": -32603,
                "message": "Internal error",
                "data": {"errorKind": "internal", "details": "400 upstream failure"},
            }
            assert replies[2]["error"] == {
                "code": -32603,
                "message": "Internal error",
                "data": {"errorKind": "internal"},
            }
            assert replies[3]["result"] == {"stopReason": "end_turn"}


async def test_deadline(autojump_clock: MockClock) -> None:
    """ACP-215: the deadline ends an accepted prompt; its kind is told."""
    async with acp_place(prompt_deadline_ms=2000) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hold", id=1)
            answer = (await feed.until_kind("reply:1"))[-1].message
            assert answer["error"]["data"]["errorKind"] == "prompt_deadline_exceeded"


async def test_queue_full(autojump_clock: MockClock) -> None:
    """ACP-216, ACP-217, T08, C-024: the sixth is refused on the session stream; the five go on; the connection is usable."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            for number in range(1, 7):
                await client.prompt(session_id, "hold" if number == 1 else f"p{number}", id=number)
            refused = (await feed.until_kind("reply:6"))[-1].message
            assert refused["error"] == {
                "code": -32603,
                "message": f'Prompt queue full for session "{session_id}" (5/5 pending)',
                "data": {"errorKind": "prompt_queue_full", "sessionId": session_id, "limit": 5, "pendingCount": 5},
            }
            assert place.session(session_id).prompts.count == 5
            await client.notify("session/cancel", {"sessionId": session_id})
            frames = await feed.until_kind("reply:5")
            order = [frame.kind for frame in frames if frame.kind.startswith("reply")]
            # FIFO, and nobody was hurt by the refusal (section 13 #3).
            assert order == ["reply:1", "reply:2", "reply:3", "reply:4", "reply:5"]
            assert said(place.session(session_id)) == ["p2", "p3", "p4", "p5"]


async def test_unlimited_queue(autojump_clock: MockClock) -> None:
    """ACP-211: 0 disables the limit."""
    async with acp_place(max_pending_prompts_per_session=0) as place:
        client = await place.connect()
        session_id = await client.new_session()
        for number in range(20):
            await client.prompt(session_id, "hold", id=number)
        assert place.session(session_id).prompts.count == 20


async def test_ids_are_echoed_as_they_came(autojump_clock: MockClock) -> None:
    """C-049: seven ids in flight together, type and value kept."""
    async with acp_place(max_pending_prompts_per_session=0) as place:
        client = await place.connect()
        session_id = await client.new_session()
        ids: list[Any] = [0, "0", 1, "1", "", -7, 9007199254740991]
        async with client.listen(session_id) as feed:
            for id in ids:
                await client.prompt(session_id, "hello", id=id)
            answered: list[Any] = []
            while len(answered) < len(ids):
                frame = await anext(feed)
                if frame.method is None:
                    answered.append(frame.message["id"])
        assert answered == ids
        assert [type(id) for id in answered] == [type(id) for id in ids]


async def test_two_clients_with_the_same_ids(autojump_clock: MockClock) -> None:
    """C-050."""
    async with acp_place() as place:
        clients = [await place.connect() for _ in range(2)]
        texts = ["one", "two"]
        sessions = [await client.new_session() for client in clients]
        assert len(set(sessions)) == 2
        for client, session_id, text in zip(clients, sessions, texts, strict=True):
            async with client.listen(session_id) as feed:
                await client.prompt(session_id, text, id=3)
                frames = await feed.until_kind("turn_complete")
                assert [frame.kind for frame in frames].count("reply:3") == 1
                assert said(place.session(session_id)) == [text]


async def test_messages_of_one_connection_run_side_by_side(autojump_clock: MockClock) -> None:
    """ACP-052: a slow one holds up nothing."""
    async with acp_place(FakeRunner(start_delay=5.0)) as place:
        client = await place.connect(protocolVersion=1)
        async with client.listen() as feed:
            await client.call("session/new", {}, id=1)
            await client.call("authenticate", {}, id=2)
            assert [frame.kind for frame in await feed.take(2)] == ["reply:2", "reply:1"]


async def test_a_second_connection_stream_takes_over(autojump_clock: MockClock) -> None:
    """ACP-124: the first ends, the second gets the replies."""
    async with acp_place() as place:
        client = await place.connect()
        async with client.listen() as first, client.listen() as second:
            assert await first.rest() == []
            id = await client.call("authenticate", {})
            assert (await anext(second)).kind == f"reply:{id}"


async def test_frames_for_the_sdk_and_for_generic_clients(autojump_clock: MockClock) -> None:
    """ACP-180, ACP-181, ACP-182, ACP-184: both shapes, bare payloads, nothing of the envelope."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hello", id=1)
            frames = await feed.until_kind("turn_complete")
        for frame in frames:
            assert frame.message["jsonrpc"] == "2.0"
            assert set(frame.message) <= {"jsonrpc", "id", "method", "params", "result"}
        updates = [frame.message["params"] for frame in frames if frame.method == "session/update"]
        assert all(set(params) == {"sessionId", "update"} for params in updates)
        assert frames[-1].message["params"]["kind"] == "turn_complete"
        assert frames[-1].message["params"]["data"]["stopReason"] == "end_turn"


async def test_the_stream_comes_after_the_load(autojump_clock: MockClock) -> None:
    """ACP-194: a session stream before session/load is 403."""
    async with acp_place() as place:
        owner, client = await place.connect(), await place.connect()
        session_id = await owner.new_session()
        assert (await client.try_listen(session_id)).status == 403
        await client.result("session/load", {"sessionId": session_id})
        async with client.listen(session_id):
            pass


# Ownership


async def test_foreign_sessions(autojump_clock: MockClock) -> None:
    """ACP-121, C-073, T05: refused with the same words as for a random id; the owner is not disturbed."""
    async with acp_place() as place:
        owner, stranger = await place.connect(), await place.connect()
        session_id = await owner.new_session()
        calls: dict[str, dict[str, Any]] = {
            "session/prompt": {"prompt": [{"type": "text", "text": "x"}]},
            "session/cancel": {},
            "session/close": {},
            "session/fork": {},
            "session/set_mode": {"modeId": "default"},
            "session/set_model": {"modelId": "small"},
            "session/set_config_option": {"configId": "mode", "value": "default"},
            "_qwen/session/heartbeat": {},
            "_qwen/session/detach": {},
            "_qwen/session/context": {},
        }
        async with stranger.listen() as feed:
            for method, params in calls.items():
                answers = []
                for target in (session_id, FOREIGN):
                    await stranger.call(method, {"sessionId": target, **params})
                    error = (await anext(feed)).message["error"]
                    answers.append({**error, "message": error["message"].replace(target, "ID")})
                assert (
                    answers[0]
                    == answers[1]
                    == {
                        "code": -32602,
                        "message": "Session ID is not owned by this connection",
                    }
                )
            for method in ("session/cancel", "session/close"):
                await stranger.notify(method, {"sessionId": session_id})
        for target in (session_id, FOREIGN):
            assert (await stranger.try_listen(target)).status == 403
        assert await owner.result("_qwen/session/heartbeat", {"sessionId": session_id})


async def test_co_ownership(autojump_clock: MockClock) -> None:
    """ACP-122, T05: both owners see the events, only the asker gets the reply."""
    async with acp_place() as place:
        a, b = await place.connect(), await place.connect()
        session_id = await a.new_session()
        loaded = await b.result("session/load", {"sessionId": session_id, "cwd": "/tmp", "mcpServers": []})
        assert loaded["attached"] is True
        assert loaded["sessionId"] == session_id
        async with a.listen(session_id) as at_a, b.listen(session_id) as at_b:
            await b.prompt(session_id, "hello", id=26)
            # The snapshot of an empty session is nothing; its end is still said.
            seen_b = [frame.kind for frame in await at_b.until_kind("turn_complete")]
            seen_a = [frame.kind for frame in await at_a.until_kind("turn_complete")]
        assert seen_a == ["user_message_chunk", "agent_message_chunk", "turn_complete"]
        assert [kind for kind in seen_b if kind != "replay_complete"] == [
            "user_message_chunk",
            "agent_message_chunk",
            "reply:26",
            "turn_complete",
        ]


async def test_load_unknown(autojump_clock: MockClock) -> None:
    """acp-http 9, T05: -32602 on the connection stream; a path is no id."""
    async with acp_place(FakeRunner(answers=Capabilities())) as place:
        client = await place.connect()
        for session_id in (FOREIGN, "../../etc/passwd", "a" * 200):
            error = await client.error("session/load", {"sessionId": session_id})
            assert error == {"code": -32602, "message": f'No session with id "{session_id}"'}
        assert (await client.error("session/load", {}))["code"] == -32602


async def test_close_and_load_again(autojump_clock: MockClock) -> None:
    """ACP-196, ACP-193, T15: closed, 403, loaded with its history, closed, resumed without."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hello", id=1)
            await feed.until_kind("turn_complete")
        assert await client.result("session/close", {"sessionId": session_id}) == {}
        assert (await client.try_listen(session_id)).status == 403
        assert "not owned" in (await client.error("session/cancel", {"sessionId": session_id}))["message"]
        loaded = await client.result("session/load", {"sessionId": session_id})
        assert loaded["attached"] is False
        async with client.listen(session_id) as feed:
            frames = await feed.until_kind("replay_complete")
            assert [frame.kind for frame in frames] == [
                "user_message_chunk",
                "agent_message_chunk",
                "turn_complete",
                "replay_complete",
            ]
            assert frames[-1].message["params"]["data"]["replayedCount"] == 0
        await client.result("session/close", {"sessionId": session_id})
        await client.result("session/resume", {"sessionId": session_id})
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "again", id=2)
            assert (await anext(feed)).kind == "user_message_chunk"


async def test_close_order(autojump_clock: MockClock) -> None:
    """ACP-096, ACP-196, issue 3: the cancelled prompt, session_closed, whole frames; the reply is out before the end."""
    async with acp_place() as place:
        client, other = await place.connect(), await place.connect()
        session_id = await client.new_session()
        await other.result("session/load", {"sessionId": session_id})
        log: list[str] = []

        async def follow(name: str, who: AcpClient, session: str | None) -> None:
            async with who.listen(session) as feed:
                async for frame in feed:
                    log.append(f"{name} {frame.kind}")
                    if session is None and frame.kind == "reply:9":
                        return
                log.append(f"{name} end")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, "session", client, session_id)
            nursery.start_soon(follow, "other", other, session_id)
            nursery.start_soon(follow, "connection", client, None)
            await wait_all_tasks_blocked()
            await client.prompt(session_id, "hold", id=3)
            await wait_all_tasks_blocked()
            await client.call("session/close", {"sessionId": session_id}, id=9)
        mine = [line for line in log if line.startswith("session")]
        assert mine[-4:] == ["session reply:3", "session turn_complete", "session session_closed", "session end"]
        assert log.index("connection reply:9") < log.index("session end")
        assert "other session_closed" in log
        assert "other end" in log
        with pytest.raises(errors.SessionNotFound):
            place.session(session_id)


async def test_close_without_a_connection_stream_ends_the_session_stream_soon(autojump_clock: MockClock) -> None:
    """The reply cannot be sent, so the stream does not wait for it for ever."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.call("session/close", {"sessionId": session_id}, id=9)
            before = trio.current_time()
            assert [frame.kind for frame in await feed.rest()] == ["session_closed"]
            assert trio.current_time() - before <= 1.1


async def test_delete_is_immediate(autojump_clock: MockClock) -> None:
    """ACP-080, ACP-081, C-017."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        async with client.listen(session_id) as feed, client.listen() as connection:
            await client.prompt(session_id, "hold", id=1)
            await feed.until_kind("user_message_chunk")
            assert (await client.delete()).status == 202
            await feed.rest()
            await connection.rest()
        assert list(terminals(session).values()) == [["cancelled"]]
        assert (await client.try_listen()).status == 404


@pytest.mark.parametrize("end", ["close", "delete", "rest"])
async def test_an_end_during_the_grace_is_immediate(end: str, autojump_clock: MockClock) -> None:
    """C-017, ACP-145, REST-050: a long grace keeps nothing that was closed on purpose; every door to it is shut at once."""
    async with acp_place(session_grace_ms=60_000) as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "hold", id=1)
            await feed.until_kind("user_message_chunk")
        await trio.sleep(1)
        assert session.prompts.count == 1
        path = f"/session/{session_id}"
        async with client.listen() as connection:
            begun = trio.current_time()
            match end:
                case "close":
                    await client.call("session/close", {"sessionId": session_id}, id=2)
                    await connection.until_kind("reply:2")
                case "delete":
                    await client.delete()
                case "rest":
                    assert (await place.driver.request("DELETE", path)).status == 204
            await wait_all_tasks_blocked()
            assert trio.current_time() - begun < 2
            assert list(terminals(session).values()) == [["cancelled"]]
            assert place.harbour.statistics().sessions == 0
            assert (await place.driver.request("GET", f"{path}/status")).status == 404
            assert (await client.try_listen(session_id)).status == (404 if end == "delete" else 403)
            if end != "delete":
                await client.prompt(session_id, "late", id=3)
                assert (await connection.until_kind("reply:3"))[-1].message["error"]["code"] == -32602


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_wall_clock_that_jumps(jump: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-019: neither the grace of a lost stream nor the heartbeat of another session's moves with it; only labels do."""
    offset = 0.0
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + offset)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(offset * 1e9))
    async with acp_place(session_grace_ms=5000, connection_grace_ms=60_000, heartbeat_ms=1000) as place:
        client = await place.connect()
        session_id, other = await client.new_session(), await client.new_session()
        session = place.session(session_id)
        async with client.listen(other) as beside:
            async with client.listen(session_id) as feed:
                await client.prompt(session_id, "hold", id=1)
                await feed.until_kind("user_message_chunk")
            before = session.updated_at
            await trio.sleep(1)
            offset = jump
            await trio.sleep(2)
            async with client.listen(session_id, cursor=0) as feed:
                await feed.until_kind("replay_complete")
                assert session.prompts.count == 1
                assert beside.raw == b""
                session.update({"sessionUpdate": "plan", "entries": []})
                assert abs(session.updated_at - before) > 3_000_000
            await trio.sleep(4.5)
            assert session.prompts.count == 1
            await trio.sleep(1)
            assert session.prompts.count == 0
            place.session(other).update({"sessionUpdate": "plan", "entries": []})
            await beside.until_kind("plan")
            assert beside.raw.count(b": hb\n\n") == 8


async def test_heartbeat_and_vendor_methods(autojump_clock: MockClock) -> None:
    """acp-http 8: _qwen/session/..."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        about = {"sessionId": session_id}
        beat = await client.result("_qwen/session/heartbeat", about)
        assert beat["sessionId"] == session_id
        assert beat["clientId"] in session.clients
        assert beat["lastSeenAt"] == session.clients[beat["clientId"]]
        context = await client.result("_qwen/session/context", about)
        assert (context["v"], context["workspaceCwd"]) == (1, "/tmp")
        assert context["state"]["modes"]["currentModeId"] == "default"
        session.update({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "x"}]})
        commands = await client.result("_qwen/session/supported_commands", about)
        assert commands["availableCommands"] == [{"name": "x"}]
        named = await client.result("_qwen/session/update_metadata", {**about, "displayName": "mine"})
        assert named == {"sessionId": session_id, "displayName": "mine"}
        assert await client.result("_qwen/session/update_metadata", about) == named
        error = await client.error("_qwen/session/update_metadata", {**about, "displayName": "\x00"})
        assert error["code"] == -32602


async def test_detach(autojump_clock: MockClock) -> None:
    """_qwen/session/detach: the session is left at once; what runs goes on for the length of the grace."""
    async with acp_place() as place:
        client = await place.connect()
        idle, busy = await client.new_session(), await client.new_session()
        await client.prompt(busy, "hold", id=50)
        await wait_all_tasks_blocked()
        session = place.session(busy)
        for session_id in (idle, busy):
            assert await client.result("_qwen/session/detach", {"sessionId": session_id}) == {"ok": True}
            assert place.session(session_id).clients == {}
        assert (await client.try_listen(idle)).status == 403
        assert session.prompts.count == 1
        async with client.listen():
            await trio.sleep(10.5)
        assert session.prompts.count == 0
        assert (await client.try_listen(busy)).status == 403


async def test_list(autojump_clock: MockClock) -> None:
    """session/list: both names of the filter, pages, live and closed together, newest first."""
    async with acp_place() as place:
        client = await place.connect()
        ids = [await client.new_session() for _ in range(5)]
        await client.result("session/close", {"sessionId": ids[0]})
        for params in ({}, {"cursor": None}, {"workspaceCwd": "/tmp"}, {"cwd": "/tmp"}):
            result = await client.result("session/list", params)
            assert {each["sessionId"] for each in result["sessions"]} == set(ids)
            assert "nextCursor" not in result
        entry = result["sessions"][0]
        assert entry["cwd"] == entry["workspaceCwd"] == "/tmp"
        seen: list[str] = []
        cursor = None
        while True:
            page = await client.result("session/list", {"_meta": {"size": 2}, "cursor": cursor})
            seen += [each["sessionId"] for each in page["sessions"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        assert sorted(seen) == sorted(ids)
        assert len(seen) == 5
        assert (await client.result("session/list", {"archiveState": "archived"}))["sessions"] == []
        for params in ({"cursor": "x"}, {"cursor": 5}, {"_meta": {"size": 0}}, {"cwd": "relative"}, {"cwd": "/else"}):
            assert (await client.error("session/list", params))["code"] == -32602


async def test_fork(autojump_clock: MockClock) -> None:
    """ACP-214: waits in the FIFO, takes no slot; a runner that cannot says so."""

    async with acp_place(FakeRunner(answers=Capabilities(fork_session=True))) as place:
        client = await place.connect()
        session_id = await client.new_session()
        for number in range(5):
            await client.prompt(session_id, "hold" if number == 0 else "x", id=number)
        async with client.listen() as feed:
            await client.call("session/fork", {"sessionId": session_id, "name": "branch"}, id=77)
            await wait_all_tasks_blocked()
            await client.notify("session/cancel", {"sessionId": session_id})
            forked = (await feed.until_kind("reply:77"))[-1].message["result"]
        assert place.session(forked["sessionId"]).display_name == "branch"
        async with client.listen(forked["sessionId"]):
            pass
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        error = await client.error("session/fork", {"sessionId": session_id})
        assert error["data"]["errorKind"] == "unsupported"


# Errors


@pytest.mark.parametrize(
    ("problem", "code", "data"),
    [
        (errors.SessionNotFound("s"), -32602, None),
        (errors.WorkspaceMismatch("/a", "/b"), -32602, None),
        (errors.UnknownClient("s", "c"), -32602, None),
        (
            errors.SessionLimitExceeded(32, "workspace"),
            -32603,
            {"errorKind": "session_limit_exceeded", "limit": 32, "scope": "workspace", "retryable": True},
        ),
        (
            errors.SessionRestoreTimeout("s", "load", 60),
            -32603,
            {
                "code": "session_restore_timeout",
                "errorKind": "restore_timeout",
                "httpStatus": 504,
                "retryable": True,
                "retryAfterSeconds": 5,
                "sessionId": "s",
                "action": "load",
                "timeoutMs": 60000,
            },
        ),
        (
            errors.AgentStartTimeout(10),
            -32603,
            {
                "code": "init_timeout",
                "errorKind": "init_timeout",
                "httpStatus": 504,
                "retryable": True,
                "retryAfterSeconds": 5,
                "timeoutMs": 10000,
            },
        ),
        (
            errors.RestoreInProgress("s"),
            -32603,
            {"errorKind": "restore_in_progress", "httpStatus": 409, "retryable": True, "retryAfterSeconds": 5},
        ),
        (
            errors.RunnerLost("secret text"),
            -32603,
            {"errorKind": "acp_channel_unavailable", "httpStatus": 503, "retryable": True},
        ),
        (errors.HarbourDraining(), -32603, {"errorKind": "daemon_draining"}),
        (errors.RunnerError("secret text", -32000), -32603, {"errorKind": "internal"}),
        (ValueError("secret text"), -32603, {"errorKind": "internal"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_error_table(problem: Exception, code: int, data: Any) -> None:
    """acp-http section 9, ACP-220."""
    error = rpc_error_of(problem)
    assert (error.code, error.data) == (code, data)
    assert "secret" not in error.message


def test_every_engine_error_is_in_the_table_or_cannot_reach_it() -> None:
    """New conditions must be given an answer."""
    elsewhere = {
        "SessionError",  # the base
        "PromptAborted",  # no signal on /acp
        "PromptNotFound",  # no method names a prompt
        "IdempotencyKeyReused",  # no keys on /acp
        "SubscriberLimitExceeded",  # ACP-183
        "UnknownOperation",  # NNRP
        "WrongPhase",  # a defect
        "InvalidOption",  # ACP-175
        "VoteForbidden",  # ACP-175
    }
    known = {each.__name__ for each in ENGINE_ERRORS}
    assert {name for name in errors.__all__ if name not in known} == elsewhere


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (AgentStartTimeout(10), "init_timeout"),
        (AgentStartError("no such program"), "acp_channel_unavailable"),
        (RunnerError("Internal error", -32603, {"details": "bad key"}), "internal"),
        (RuntimeError("a defect"), "internal"),
    ],
    ids=["timeout", "start", "agent", "defect"],
)
async def test_a_session_that_cannot_start(autojump_clock: MockClock, failure: Exception, kind: str) -> None:
    """acp-http 9, C-069: answered on the connection stream, nothing is left."""
    async with acp_place(FakeRunner(start_error=failure)) as place:
        client = await place.connect()
        error = await client.error("session/new", {})
        assert error["code"] == -32603
        assert error["data"]["errorKind"] == kind
        assert place.harbour.sessions == []


async def test_session_limit(autojump_clock: MockClock) -> None:
    async with acp_place(max_sessions=1) as place:
        client = await place.connect()
        await client.new_session()
        error = await client.error("session/new", {})
        assert error["data"] == {
            "errorKind": "session_limit_exceeded",
            "limit": 1,
            "scope": "workspace",
            "retryable": True,
        }


async def test_a_connection_destroyed_while_its_session_starts(autojump_clock: MockClock) -> None:
    """ACP-120: nothing is left."""
    async with acp_place(FakeRunner(start_delay=5.0)) as place:
        client = await place.connect()
        await client.call("session/new", {})
        await trio.sleep(1)
        await client.delete()
        await trio.sleep(20)
        assert place.harbour.sessions == []
        assert all(session.closed for session in place.runner.sessions)


async def test_a_session_its_client_never_heard_of(autojump_clock: MockClock) -> None:
    """ACP-120: it is there, and its reply waits for a stream; the connection ends first, and it goes with it."""
    async with acp_place() as place:
        client = await place.connect()
        await client.call("session/new", {})
        await wait_all_tasks_blocked()
        assert len(place.harbour.sessions) == 1
        await client.delete()
        await wait_all_tasks_blocked()
        assert place.harbour.sessions == []


async def test_a_result_that_cannot_be_sent(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """ACP-221."""

    def state(self: FakeSession) -> Any:
        return {"modes": {"currentModeId": object()}}

    monkeypatch.setattr(FakeSession, "state", state)
    async with acp_place() as place:
        client = await place.connect()
        error = await client.error("session/new", {})
        assert error == {"code": -32603, "message": "Response delivery failed"}


# Adoption over the wire


async def _stranded(place: Place) -> tuple[AcpClient, str]:
    """A client with a running prompt, request 3, that has just lost its streams."""
    client = await place.connect()
    async with client.listen() as connection:
        id = await client.call("session/new", {})
        session_id = (await connection.until_kind(f"reply:{id}"))[-1].message["result"]["sessionId"]
        async with client.listen(session_id) as feed:
            await client.prompt(session_id, "slow", id=3)
            await feed.until_kind("user_message_chunk")
    return client, session_id


async def slow(session: FakeSession, operation: Operation) -> TurnResult | None:
    await trio.sleep(30)
    session.say("at last")
    return None


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_adoption(autojump_clock: MockClock, method: str) -> None:
    """Issue 3: replies survive a lost connection; the outcome comes there exactly once and stays pollable by REST."""
    async with acp_place(FakeRunner(scripts={**SCRIPTS, "slow": slow})) as place:
        _, session_id = await _stranded(place)
        again = await place.connect()
        again.last_id = 10
        answer = await again.result(method, {"sessionId": session_id})
        (adopted,) = answer["_meta"]["moorline"]["adoptedPrompts"]
        assert (adopted["requestId"], adopted["repliedAs"]) == (3, "response")
        async with again.listen(session_id, cursor=1) as feed:
            frames = await feed.until_kind("turn_complete")
            assert [frame.kind for frame in frames] == [
                "replay_complete",
                "agent_message_chunk",
                "reply:3",
                "turn_complete",
            ]
            reply = await place.driver.request("GET", f"/session/{session_id}/prompts/{adopted['promptId']}")
            assert (reply.status, reply.json()["state"]) == (200, "completed")
        assert list(terminals(place.session(session_id)).values()) == [["end_turn"]]


async def test_after_the_grace_there_is_nothing_to_adopt(autojump_clock: MockClock) -> None:
    """ACP-143: 10 s later the prompt is aborted."""
    async with acp_place(FakeRunner(scripts={**SCRIPTS, "slow": slow})) as place:
        _, session_id = await _stranded(place)
        await trio.sleep(10.1)
        again = await place.connect()
        again.last_id = 10
        answer = await again.result("session/resume", {"sessionId": session_id})
        assert "moorline" not in answer["_meta"]
        assert list(terminals(place.session(session_id)).values()) == [["cancelled"]]


async def test_resume_on_the_same_connection_repairs_lost_ownership(autojump_clock: MockClock) -> None:
    """client-sdk K3."""
    async with acp_place() as place:
        client = await place.connect()
        async with client.listen():
            session_id = (await _new(client, place)) or ""
            async with client.listen(session_id):
                pass
            await trio.sleep(11.5)
            assert (await client.try_listen(session_id)).status == 403
        await client.result("session/resume", {"sessionId": session_id})
        async with client.listen(session_id):
            pass


async def _new(client: AcpClient, place: Place) -> str | None:
    before = {each.id for each in place.harbour.sessions}
    await client.call("session/new", {})
    await wait_all_tasks_blocked()
    return next((each.id for each in place.harbour.sessions if each.id not in before), None)
