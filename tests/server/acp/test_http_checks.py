"""POST, GET, DELETE: every check in its order, every body (acp-http 2; T02, C-051, C-052)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from server.routes.acp.offer import negotiated_version
from tests.support.acp import AcpClient, acp_place, prompt_params

UNKNOWN = "00000000-0000-4000-8000-000000000000"
LIST = {"jsonrpc": "2.0", "id": 7, "method": "session/list", "params": {}}


def rpc_error(id: Any, message: str, code: int = -32600) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


POSTS: list[tuple[str, bytes, dict[str, str], int, dict[str, Any]]] = [
    ("ACP-040", b"{}", {"Content_Type": "text/plain"}, 415, {"error": "Content-Type must be application/json"}),
    ("ACP-041", b"{bad", {}, 400, {"error": "Invalid JSON in request body"}),
    ("ACP-041 empty", b"", {}, 400, {"error": "Invalid JSON in request body"}),
    ("ACP-041 NaN", b'{"jsonrpc":"2.0","id":NaN,"method":"x"}', {}, 400, {"error": "Invalid JSON in request body"}),
    ("ACP-041 deep", b"[" * 10_000 + b"]" * 10_000, {}, 400, {"error": "Invalid JSON in request body"}),
    (
        "ACP-041 deep params",
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        {},
        400,
        {"error": "Invalid JSON in request body"},
    ),
    ("ACP-041 twice", b"{}{}", {}, 400, {"error": "Invalid JSON in request body"}),
    ("ACP-043", msgspec.json.encode([LIST]), {}, 501, {"error": "Batch JSON-RPC requests are not supported"}),
    ("ACP-044", b'{"hello":1}', {}, 400, rpc_error(None, "Malformed JSON-RPC message")),
    ("ACP-044 a number", b"42", {}, 400, rpc_error(None, "Malformed JSON-RPC message")),
    ("ACP-050 null id", b'{"jsonrpc":"2.0","id":null,"method":"x"}', {}, 400, rpc_error(None, "Malformed JSON-RPC message")),
    ("ACP-050 both", b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', {}, 400, rpc_error(None, "Malformed JSON-RPC message")),
    ("ACP-046", msgspec.json.encode(LIST), {}, 400, rpc_error(7, "Missing Acp-Connection-Id")),
    ("ACP-046 notification", b'{"jsonrpc":"2.0","method":"x"}', {}, 400, rpc_error(None, "Missing Acp-Connection-Id")),
    ("ACP-046 response", b'{"jsonrpc":"2.0","id":"a","result":1}', {}, 400, rpc_error(None, "Missing Acp-Connection-Id")),
    ("ACP-047", msgspec.json.encode(LIST), {"Acp_Connection_Id": UNKNOWN}, 404, rpc_error(7, "Unknown Acp-Connection-Id")),
    (
        "ACP-045 notification",
        b'{"jsonrpc":"2.0","method":"initialize"}',
        {},
        400,
        rpc_error(None, "Missing Acp-Connection-Id"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "body", "headers", "status", "answer"), POSTS, ids=[each[0] for each in POSTS])
async def test_post_refusals(
    autojump_clock: MockClock, rule: str, body: bytes, headers: dict[str, str], status: int, answer: dict[str, Any]
) -> None:
    async with acp_place() as place:
        reply = await AcpClient(place.driver).post(body, **headers)
        assert (reply.status, reply.json()) == (status, answer)
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        assert place.harbour.sessions == []


async def test_too_large(autojump_clock: MockClock) -> None:
    """ACP-042."""
    async with acp_place() as place:
        reply = await AcpClient(place.driver).post(b'"' + b"x" * 10 * 2**20 + b'"')
        assert (reply.status, reply.json()) == (413, {"error": "Request body too large (max 10 MB)"})


async def test_get_and_delete_refusals(autojump_clock: MockClock) -> None:
    """ACP-070, ACP-071, ACP-072, ACP-073, ACP-074, ACP-080, in their order."""
    async with acp_place() as place:
        client = await place.connect()
        nobody = AcpClient(place.driver)
        stranger = AcpClient(place.driver)
        stranger.connection_id = "nope"

        async def get(
            who: AcpClient, session: str | None = None, accept: str = "text/event-stream", **more: str
        ) -> Any:
            headers = who.headers(session, Accept=accept, **more)
            reply = await place.driver.request("GET", "/acp", headers=headers)
            return reply.status, reply.json()

        assert await get(nobody, accept="application/json") == (
            406,
            {"error": "Accept header must include text/event-stream"},
        )
        assert await get(nobody) == (400, {"error": "Missing Acp-Connection-Id"})
        assert await get(stranger, UNKNOWN) == (404, {"error": "Unknown Acp-Connection-Id"})
        foreign = (403, {"error": "Session not owned by this connection"})
        assert await get(client, UNKNOWN) == foreign
        # ACP-075: ownership comes before the cursor.
        assert await get(client, UNKNOWN, Last_Event_ID="-1") == foreign
        reply = await nobody.delete()
        assert (reply.status, reply.json()) == (400, {"error": "Missing Acp-Connection-Id"})
        assert (await stranger.delete()).status == 202
        assert (await client.delete()).status == 202
        assert await get(client) == (404, {"error": "Unknown Acp-Connection-Id"})


async def test_headers_that_occur_twice(autojump_clock: MockClock) -> None:
    """ACP-047, ACP-072, ACP-073, ACP-111, ACP-112: one of two values must not be picked; together they name nothing."""
    async with acp_place() as place:
        client, other = await place.connect(), await place.connect()
        session_id = await client.new_session()
        twice = [*client.headers(), *other.headers()]
        body = msgspec.json.encode(LIST)
        reply = await place.driver.request(
            "POST", "/acp", body=body, headers=[*twice, ("Content-Type", "application/json")]
        )
        assert (reply.status, reply.json()) == (404, rpc_error(7, "Unknown Acp-Connection-Id"))
        accept = ("Accept", "text/event-stream")
        assert (await place.driver.request("GET", "/acp", headers=[*twice, accept])).status == 404
        assert (await place.driver.request("DELETE", "/acp", headers=twice)).status == 202
        sessions = [*client.headers(session_id), ("Acp-Session-Id", UNKNOWN), accept]
        assert (await place.driver.request("GET", "/acp", headers=sessions)).status == 403
        cursors = [*client.headers(session_id), ("Last-Event-ID", "0"), ("Last-Event-ID", "1"), accept]
        async with place.driver.stream("GET", "/acp", headers=cursors) as stream:
            assert (await stream.head()).status == 200
            assert await stream.read() == b"retry: 3000\n\n"
            assert await stream.read() == b": hb\n\n"


@pytest.mark.parametrize("verb", ["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT"])
async def test_other_verbs(autojump_clock: MockClock, verb: str) -> None:
    """acp-http 2.5: other verbs are 404; HEAD does not take the place of the client's stream."""
    async with acp_place() as place:
        client = await place.connect()
        async with client.listen() as feed:
            reply = await place.driver.request(verb, "/acp", headers=client.headers(Accept="text/event-stream"))
            assert reply.status == 404
            id = await client.call("authenticate", {})
            assert (await anext(feed)).message == {"jsonrpc": "2.0", "id": id, "result": {}}


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "application/json; charset=utf-8"},
        {"Content_Type": "APPLICATION/JSON"},
        {"content_type": "application/json"},
    ],
)
async def test_lenient_content_types(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    """C-052."""
    async with acp_place() as place:
        client = AcpClient(place.driver)
        body = '  {"jsonrpc":"2.0","id":"é漢🙂","method":"initialize","params":{}}'.encode()
        headers = {"Content_Type": "", **headers} if "Content_Type" in headers else headers
        reply = await place.driver.request("POST", "/acp", body=body, headers=client.headers(**headers))
        assert reply.status == 200
        assert reply.json()["id"] == "é漢🙂"


async def test_lenient_accept(autojump_clock: MockClock) -> None:
    """C-052."""
    async with acp_place() as place:
        client = await place.connect()
        headers = client.headers(Accept="text/event-stream;q=0.9, */*;q=0.1")
        async with place.driver.stream("GET", "/acp", headers=headers) as stream:
            assert (await stream.head()).status == 200


async def test_stream_headers(autojump_clock: MockClock) -> None:
    """ACP-014, ACP-074, ACP-090, ACP-091, ACP-092, C-031: headers, retry hint and heartbeat on an idle stream."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        headers = client.headers(session_id, Accept="text/event-stream", Accept_Encoding="gzip, br")
        async with place.driver.stream("GET", "/acp", headers=headers) as stream:
            head = await stream.head()
            assert head.headers["content-type"] == "text/event-stream"
            assert head.headers["cache-control"] == "no-cache, no-transform"
            assert head.headers["x-accel-buffering"] == "no"
            assert head.headers["x-qwen-event-epoch"] == place.session(session_id).ring.epoch
            assert "content-length" not in head.headers
            assert "content-encoding" not in head.headers
            assert await stream.read() == b"retry: 3000\n\n"
            assert await stream.read() == b": hb\n\n"


async def test_initialize(autojump_clock: MockClock) -> None:
    """ACP-060, ACP-062, ACP-104, issue 3."""
    async with acp_place() as place:
        reply = await AcpClient(place.driver).post(
            {"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": {"protocolVersion": 99}}
        )
        assert reply.status == 200
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        body = reply.json()
        assert body["id"] == "init"
        result = body["result"]
        meta = result["agentCapabilities"]["_meta"]
        connection_id = reply.headers["acp-connection-id"]
        assert result["connectionId"] == meta["qwen"]["connectionId"] == connection_id
        assert result["protocolVersion"] == 1
        assert result["authMethods"] == []
        assert result["agentInfo"]["name"] == "moorline"
        assert result["agentCapabilities"]["loadSession"] is True
        assert result["agentCapabilities"]["sessionCapabilities"] == {"list": {}, "resume": {}, "close": {}}
        assert result["agentCapabilities"]["mcpCapabilities"] == {"http": False, "sse": False}
        assert meta["qwen"]["workspaceCwd"] == "/tmp"
        assert meta["moorline"]["sessionReplyMethods"] == [
            "session/cancel",
            "session/prompt",
            "session/set_config_option",
            "session/set_mode",
            "session/set_model",
        ]
        assert place.runner.sessions == []


@pytest.mark.parametrize("requested", [None, "2", 0, -5, 1, 2, 99, 1.7, 1e300, True, {}, []])
def test_version(requested: object) -> None:
    """ACP-061."""
    assert negotiated_version(requested) == 1


async def test_what_is_advertised_is_served(autojump_clock: MockClock) -> None:
    """ACP-199: a server lists only what it serves."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        for method in client.offer["agentCapabilities"]["_meta"]["qwen"]["methods"]:
            if method != "_qwen/session/detach":
                assert await client.result(method, {"sessionId": session_id})
        assert await client.result("_qwen/session/detach", {"sessionId": session_id}) == {"ok": True}


async def test_a_second_initialize_is_another_connection(autojump_clock: MockClock) -> None:
    """ACP-045, ACP-065, T15."""
    async with acp_place() as place:
        client = await place.connect()
        reply = await client.post({"jsonrpc": "2.0", "id": 1, "method": "initialize"})
        assert reply.status == 200
        assert reply.headers["acp-connection-id"] != client.connection_id


async def test_connection_cap(autojump_clock: MockClock) -> None:
    """ACP-063, issue 3: 64 connections, then the 65th; a place is free again after a DELETE."""
    async with acp_place() as place:
        clients = [await place.connect() for _ in range(64)]
        reply = await AcpClient(place.driver).post({"jsonrpc": "2.0", "id": 9, "method": "initialize"})
        assert reply.status == 503
        assert reply.headers["retry-after"] == "5"
        assert reply.json() == rpc_error(9, "Too many ACP connections; retry later", -32603)
        await clients[0].delete()
        await place.connect()
        assert len({client.connection_id for client in clients}) == 64


@pytest.mark.parametrize("sign", ["request", "notification", "refused GET", "heartbeats", "nothing"])
async def test_signs_of_life(sign: str, autojump_clock: MockClock) -> None:
    """ACP-151, ACP-152: every request that names the connection, and every heartbeat on one of its streams; else it is
    destroyed after 30 min."""
    async with acp_place() as place, trio.open_nursery() as nursery:
        client = await place.connect()
        if sign == "heartbeats":
            nursery.start_soon(listen_for_ever, client)
        for _ in range(5):
            await trio.sleep(20 * 60)
            if sign == "request":
                await client.call("authenticate", {})
            elif sign == "notification":
                await client.notify("nothing")
            elif sign == "refused GET":
                await client.try_listen(UNKNOWN)
        reply = await client.post(LIST)
        assert reply.status == (404 if sign == "nothing" else 202)
        nursery.cancel_scope.cancel()


async def listen_for_ever(client: AcpClient) -> None:
    async with client.listen() as feed:
        await feed.rest()


async def test_graces_are_configured_in_milliseconds(autojump_clock: MockClock) -> None:
    """ACP-140, ACP-150: the session's and the connection's."""
    async with acp_place(session_grace_ms=30_000, connection_grace_ms=50_000) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(), client.listen(session_id):
            await trio.sleep(1)
        await trio.sleep(29.99)
        assert len(place.session(session_id).clients) == 1
        await trio.sleep(0.02)
        assert (await client.try_listen(session_id)).status == 403
        await trio.sleep(19.98)
        assert (await client.post(LIST)).status == 202
        await trio.sleep(0.02)
        assert (await client.post(LIST)).status == 404


async def test_no_cap(autojump_clock: MockClock) -> None:
    """ACP-063: 0 is unlimited."""
    async with acp_place(max_acp_connections=0) as place:
        for _ in range(70):
            await place.connect()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_affinity_cookie(autojump_clock: MockClock, scheme: str) -> None:
    """ACP-258, --affinity-cookie."""
    async with acp_place(affinity_cookie="acp-place", trust_proxy=("127.0.0.1/32",)) as place:
        reply = await AcpClient(place.driver).post(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize"}, X_Forwarded_Proto=scheme, X_Forwarded_For="10.0.0.1"
        )
        cookie = reply.headers["set-cookie"]
        assert cookie.startswith(f"acp-place={reply.headers['acp-connection-id']}; Path=/; HttpOnly")
        assert ("Secure" in cookie) is (scheme == "https")


async def test_no_cookie_by_default(autojump_clock: MockClock) -> None:
    async with acp_place() as place:
        reply = await AcpClient(place.driver).post({"jsonrpc": "2.0", "id": 1, "method": "initialize"})
        assert "set-cookie" not in reply.headers


async def test_cursor_table(autojump_clock: MockClock) -> None:
    """ACP-111, ACP-112, C-008, T06: 0 and leading zeros count, everything odd is live only, nothing is an error."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        for _ in range(10):
            session.update({"sessionUpdate": "plan", "entries": []})
        accepted = {"5": [6, 7, 8, 9, 10], "003": [4, 5, 6, 7, 8, 9, 10], "0": list(range(1, 11)), "10": []}
        for value, ids in accepted.items():
            async with client.listen(session_id, cursor=value) as feed:
                frames = await feed.until_kind("replay_complete")
                assert [frame.id for frame in frames] == [*ids, None], value
        odd = ["abc", "", "-1", "+5", "1.0", "1e1", "0x5", "1_0", "5,6", "\xb2", "9007199254740993", "9" * 23]
        for value in odd:
            async with client.listen(session_id, cursor=value) as feed:
                session.update({"sessionUpdate": "plan", "entries": []})
                assert (await anext(feed)).id == session.ring.head, value


@pytest.mark.parametrize(
    ("cursor", "epoch", "notice"),
    [
        ("999", None, {"reason": "epoch_reset", "lastDeliveredId": 999, "earliestAvailableId": 1}),
        (
            "9007199254740991",
            None,
            {"reason": "epoch_reset", "lastDeliveredId": 9007199254740991, "earliestAvailableId": 1},
        ),
        (
            "1",
            "other",
            {
                "reason": "epoch_reset",
                "lastDeliveredId": 1,
                "earliestAvailableId": 1,
                "detail": "epoch_mismatch",
            },
        ),
        ("1", "not a token!", None),
    ],
)
async def test_resync(autojump_clock: MockClock, cursor: str, epoch: str | None, notice: dict[str, Any] | None) -> None:
    """ACP-015, ACP-114, T06, C-006."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        session = place.session(session_id)
        for _ in range(2):
            session.update({"sessionUpdate": "plan", "entries": []})
        more = {} if epoch is None else {"X_Qwen_Event_Epoch": epoch}
        async with client.listen(session_id, cursor=cursor, **more) as feed:
            frames = await feed.until_kind("replay_complete")
            if notice is None:
                assert [frame.id for frame in frames] == [2, None]
            else:
                assert frames[0].message["params"] == {"kind": "state_resync_required", "data": notice}
                assert [frame.id for frame in frames] == [None, 1, 2, None]
            session.update({"sessionUpdate": "plan", "entries": []})
            assert (await anext(feed)).id == 3


async def test_session_ids_compare_without_case(autojump_clock: MockClock) -> None:
    """ACP-031; an empty header is no header."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id.upper()):
            pass
        async with client.listen("") as feed:
            id = await client.call(
                "_qwen/session/heartbeat", {"sessionId": session_id.upper()}, Acp_Session_Id=session_id
            )
            assert (await anext(feed)).message["id"] == id
            await client.call("authenticate", {}, Acp_Session_Id="")
            assert "result" in (await anext(feed)).message


async def test_header_mismatch(autojump_clock: MockClock) -> None:
    """ACP-030, T03: an error on the connection stream; a notification is dropped."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen() as feed:
            await client.call("session/prompt", prompt_params(session_id, "x"), id=9, Acp_Session_Id=UNKNOWN)
            assert (await anext(feed)).message == rpc_error(
                9, "Acp-Session-Id header does not match params.sessionId", -32602
            )
        await client.post(
            {"jsonrpc": "2.0", "method": "session/close", "params": {"sessionId": session_id}}, Acp_Session_Id=UNKNOWN
        )
        assert place.session(session_id).live


async def test_unknown_methods_and_stray_messages(autojump_clock: MockClock) -> None:
    """ACP-053: -32601 on the connection stream; the rest is dropped."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen() as feed:
            await client.notify("nope")
            await client.respond("nobody-asked", result={})
            await client.respond(None, error={"code": 1, "message": "x"})
            for method in ("session/unheard_of", "session/delete", "logout", "_moorline/session/attach", "initialise"):
                id = await client.call(method, {"sessionId": session_id, "lastEventId": 0})
                assert (await anext(feed)).message == rpc_error(id, f"Unknown method: {method}", -32601)


@pytest.mark.parametrize("params", [[], "x", 5, True])
async def test_params_that_are_no_object(autojump_clock: MockClock, params: Any) -> None:
    async with acp_place() as place:
        client = await place.connect()
        error = await client.error("session/list", params)
        assert error == {"code": -32602, "message": "`params` must be an object"}


async def test_dispatch_waits_for_the_202(autojump_clock: MockClock) -> None:
    """ACP-049, ACP-051, ACP-054: nothing is carried out while the client has not taken its 202."""
    async with acp_place() as place:
        client = await place.connect()
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {}})
        headers = client.headers(Content_Type="application/json")
        async with place.driver.stream("POST", "/acp", body=body, headers=headers, window=1) as stream:
            await trio.testing.wait_all_tasks_blocked()
            assert place.harbour.sessions == []
            assert (await stream.head()).status == 202
            assert await stream.rest() == b""
            await trio.testing.wait_all_tasks_blocked()
            assert len(place.harbour.sessions) == 1


async def test_a_client_gone_before_its_202_was_not_heard(autojump_clock: MockClock) -> None:
    """ACP-054, as REST-064: it cannot know, so nothing has happened."""
    async with acp_place() as place:
        client = await place.connect()
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {}})
        headers = client.headers(Content_Type="application/json")
        async with place.driver.stream("POST", "/acp", body=body, headers=headers, window=0):
            pass
        await trio.sleep(1)
        assert place.harbour.sessions == []


async def test_a_post_that_dies_half_way(autojump_clock: MockClock) -> None:
    """Issue 3, bad input: half a body is no message."""
    async with acp_place() as place:
        client = await place.connect()
        headers = client.headers(Content_Type="application/json", Content_Length="1000")
        scope = place.driver._scope("http", "/acp", headers, {}, {"method": "POST", "scheme": "http"})
        from tests.support.asgi import Stream

        stream = Stream(16)
        stream.push({"type": "http.request", "body": b'{"jsonrpc":"2.0","id":1,', "more_body": True})
        async with place.driver._running(scope, stream):
            pass
        assert place.harbour.sessions == []
        assert await client.new_session()


async def test_deep_but_legal_params(autojump_clock: MockClock) -> None:
    """Issue 3, bad input: as deep as the decoder reads is passed on, and answered."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        deep: Any = "x"
        for _ in range(400):
            deep = [deep]
        async with client.listen(session_id) as feed:
            await client.call(
                "session/prompt", {"sessionId": session_id, "prompt": [{"type": "resource", "deep": deep}]}, id=5
            )
            assert (await feed.until_kind("reply:5"))[-1].message["result"] == {"stopReason": "end_turn"}


async def test_surrogates_and_duplicate_keys(autojump_clock: MockClock) -> None:
    """C-048, issue 3: halves of pairs become U+FFFD, pairs survive, the last of equal keys counts."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            body = (
                rb'{"jsonrpc":"2.0","id":1,"id":8,"method":"session/prompt","params":{"sessionId":"%b","prompt":'
                rb'[{"type":"text","text":"\ud83d|\ud83d\ude42"}]}}' % session_id.encode()
            )
            assert (await client.post(body)).status == 202
            frames = await feed.until_kind("turn_complete")
            said = [f.message["params"]["update"]["content"]["text"] for f in frames if f.kind == "agent_message_chunk"]
            assert said == ["\ufffd|🙂"]
            assert "reply:8" in [frame.kind for frame in frames]
