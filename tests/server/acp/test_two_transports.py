"""One message, two transports: what HTTP and the WebSocket answer to bad input differs only where a rule says so."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.acp import AcpClient, Feed, Frame, Talker, acp_place
from tests.support.http import Reply

DEEP = "[" * 10_000 + "]" * 10_000
FOREIGN = "00000000-0000-4000-8000-000000000000"
LONG = f'"{"x" * 10_000}"'

IDS = r"""null true false [] [1] {} 0 -0 -1 1.5 1.0 1e3 1e308 1e999 -1e999 "" " " "1" "\ud800" "\u0000" "é漢🙂"
NaN Infinity 01 +1 .5 1. '1' undefined 9007199254740993 9223372036854775808 18446744073709551616
-9223372036854775809""".replace('" "', '"\\u0020"').split()
IDS += [LONG, "9" * 30, "9" * 400]
PARAMS = ["null", "[]", "[1]", '"x"', "1", "true", "1e999", '{"a":1e999}', '{"a":NaN}', r'{"a":"\ud800"}', DEEP]
PARAMS += ["{}", '{"":1,"":2}', "9" * 400, '{"sessionId":"$S","sessionId":1}', '{"sessionId":1,"sessionId":"$S"}']
NO_SESSIONS = ["null", "true", "0", "1e999", "[]", "{}", '""', '" "', r'"\ud800"', r'"\u0000"', '"../x"', LONG, DEEP]
SESSIONS = [*NO_SESSIONS, f'"{FOREIGN}"', '" $S"', '"$S "']
METHODS = [
    r"session/list",
    r"session/prompt",
    r"session/cancel",
    r"session/close",
    r"session/set_mode",
    r"session/set_config_option",
    r"session/load",
    r"session/resume",
    r"session/new",
    r"session/permission",
    r"session/fork",
    r"authenticate",
    r"_qwen/session/heartbeat",
    r"_moorline/nothing",
    r"$/cancel_request",
    r"initialized",
    r"fs/read_text_file",
    r"\ud800",
    r"\u0000",
]
METHODS += ["", "x" * 10_000]


def filled(template: str, values: list[str]) -> list[str]:
    return [template.replace("%", value) for value in values]


SHAPES = ["", " ", "{", "}", "null", "true", "1", '"x"', "{}", "[]", "[{}]", "[1", "{}{}", "{} x", "\ufeff{}", DEEP]
SHAPES += [
    '{"jsonrpc":"2.0"}',
    '{"jsonrpc":"2.0","id":1}',
    '{"jsonrpc":"2.0","id":1,"result":1}',
    '{"jsonrpc":"2.0","id":1,"error":1}',
    '{"jsonrpc":"2.0","id":1,"result":1,"error":{}}',
    '{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
    '{"jsonrpc":"2.0","result":1}',
    '{"jsonrpc":"2.0","id":{},"result":1}',
    '{"jsonrpc":"2.0","id":1,"method":"x","result":1}',
    '{"jsonrpc":"2.0","id":1,"id":2,"method":"x","method":"y"}',
    '{"jsonrpc":"2.0","id":1 /**/}',
    '{"jsonrpc":"2.0",}',
    '{"id":1,"method":"x"}',
    "{'jsonrpc':'2.0'}",
]
MESSAGES = [
    *SHAPES,
    *filled('{"jsonrpc":%,"id":1,"method":"x"}', ["null", "2.0", '"1.0"', '"2"', "[]", '"2.0 "']),
    *filled('{"jsonrpc":"2.0","id":1,"method":%}', ["null", "1", "[]", "{}", "true", "1e999", DEEP]),
    *filled('{"jsonrpc":"2.0","id":%,"method":"nothing"}', IDS),
    *filled('{"jsonrpc":"2.0","id":%,"result":{}}', IDS),
    *filled('{"jsonrpc":"2.0","id":1,"method":"authenticate","params":%}', PARAMS),
    *filled('{"jsonrpc":"2.0","id":1,"method":"session/set_mode","params":%}', PARAMS),
    *filled('{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":%}}', SESSIONS),
    *filled('{"jsonrpc":"2.0","id":1,"method":"session/load","params":{"sessionId":%}}', NO_SESSIONS),
    *filled('{"jsonrpc":"2.0","id":1,"method":"%","params":[]}', METHODS),
    *filled('{"jsonrpc":"2.0","method":"%","params":[]}', METHODS),
    *filled('{"jsonrpc":"2.0","method":"%"}', METHODS),
    *filled(
        '{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"$S","prompt":%}}',
        ["null", "[]", "{}", '"x"', "[null]", "[[]]", '["x"]', "[{},1]", '[{"a":1e999}]', DEEP],
    ),
    *filled(
        '{"jsonrpc":"2.0","id":1,"method":"session/new","params":{%}}',
        ['"cwd":1', '"cwd":"x"', r'"cwd":"/\u0000"', '"cwd":"/elsewhere"', '"_meta":[]', '"mcpServers":{}'],
    ),
    *filled(
        '{"jsonrpc":"2.0","id":1,"method":"session/permission","params":{%}}',
        ["", '"requestId":1', '"requestId":"x"', '"requestId":"x","outcome":{"outcome":"selected"}'],
    ),
]


class Http:
    """A connection with both of its streams open."""

    def __init__(self, client: AcpClient, session_id: str, streams: tuple[Feed, Feed]) -> None:
        self._client = client
        self._session_id = session_id
        self._streams = streams

    async def answers(self, text: str) -> list[Any]:
        reply = await self._client.post(text.encode())
        if reply.status != 202:
            return [in_json_rpc(reply)]
        await wait_all_tasks_blocked()
        marks = [
            await self._client.call("authenticate", {}, id="end"),
            await self._client.call("session/cancel", {"sessionId": self._session_id}, id="end"),
        ]
        frames = [await feed.until_kind(f"reply:{mark}") for feed, mark in zip(self._streams, marks, strict=True)]
        return replies([frame.message for taken in frames for frame in taken])


class Socket:
    """The same over a WebSocket."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker

    async def answers(self, text: str) -> list[Any]:
        self._talker.say(text)
        await wait_all_tasks_blocked()
        self._talker.call("authenticate", {}, id="end")
        return replies([frame.message for frame in await self._talker.until(is_end)])


def is_end(frame: Frame) -> bool:
    # A complaint about a batch is no JSON-RPC and has no id (ACP-236).
    return frame.message.get("id") == "end"


def replies(messages: list[dict[str, Any]]) -> list[Any]:
    found = [message for message in messages if "method" not in message and message.get("id") != "end"]
    return sorted(found, key=msgspec.json.encode)


def in_json_rpc(reply: Reply) -> Any:
    """What a WebSocket says instead of a status (ACP-041, ACP-043 and ACP-044 against ACP-236)."""
    body = reply.json()
    if reply.status == 400 and body == {"error": "Invalid JSON in request body"}:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
    if reply.status == 501 and body == {"error": "Batch JSON-RPC requests are not supported"}:
        return {"error": "Batch JSON-RPC not supported"}
    assert reply.status == 400, reply
    assert body["error"]["code"] == -32600, body
    return body


async def test_the_same_answer_to_bad_input(autojump_clock: MockClock) -> None:
    """ACP-041, ACP-043, ACP-044, ACP-050, ACP-053, ACP-236, issue 3: and each transport is well after all of it."""
    async with acp_place() as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen() as control, client.listen(session_id) as events, place.socket() as talker:
            http, socket = Http(client, session_id, (control, events)), Socket(talker)
            await talker.result("session/load", {"sessionId": session_id})
            differing = {}
            for template in MESSAGES:
                text = template.replace("$S", session_id)
                over_http, over_socket = await http.answers(text), await socket.answers(text)
                if canonical(over_http) != canonical(over_socket):
                    differing[template[:200]] = over_http, over_socket
            assert differing == {}
            assert await client_is_well(client, control)
            assert await talker.result("authenticate", {}) == {}


def canonical(answers: list[Any]) -> str:
    """Ids of new sessions are new each time."""
    return re.sub(r'"sessionId":"[0-9a-f-]{36}"', '"sessionId":"…"', msgspec.json.encode(answers).decode())


async def client_is_well(client: AcpClient, control: Feed) -> bool:
    id = await client.call("authenticate", {})
    return (await control.until_kind(f"reply:{id}"))[-1].message["result"] == {}


@pytest.mark.parametrize("params", PARAMS)
async def test_the_same_answer_to_initialize(params: str, autojump_clock: MockClock) -> None:
    """ACP-232: the result is the same as over HTTP (ACP-060 to ACP-062), and so is the refusal; a socket then ends."""
    text = '{"jsonrpc":"2.0","id":"i","method":"initialize","params":%}'.replace("%", params)
    async with acp_place() as place:
        reply = await AcpClient(place.driver).post(text.encode())
        async with place.driver.websocket("/acp") as socket:
            await socket.answer()
            talker = Talker(socket)
            talker.say(text)
            answer = (await talker.next()).message
            if reply.status == 400:
                assert reply.json() == {"error": "Invalid JSON in request body"}
                assert answer["error"] == {"code": -32600, "message": "First message must be initialize"}
            else:
                assert reply.status == 200
                assert canonical_offer(answer) == canonical_offer(reply.json())
            if "error" in answer:
                assert await talker.close_code() == (1002, "Protocol error")
            else:
                assert await talker.result("authenticate", {}) == {}


@pytest.mark.parametrize(
    "version", ["null", "true", "[]", "{}", '"1"', "0", "-1", "1.5", "2", "1e308", "-1e308", "9" * 400, "1e999"]
)
async def test_the_same_version(version: str, autojump_clock: MockClock) -> None:
    """ACP-061, ACP-232: whatever is asked for."""
    text = '{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":%}}'.replace("%", version)
    async with acp_place() as place, place.driver.websocket("/acp") as socket:
        reply = await AcpClient(place.driver).post(text.encode())
        await socket.answer()
        talker = Talker(socket)
        talker.say(text)
        answer = (await talker.next()).message
        assert canonical_offer(answer) == canonical_offer(reply.json())
        assert ("result" in answer) == (version != "1e999")


def canonical_offer(answer: dict[str, Any]) -> dict[str, Any]:
    """Two connections have two ids."""
    found: dict[str, Any] = msgspec.json.decode(
        re.sub(rb'"connectionId":"[0-9a-f-]{36}"', b'"connectionId":"..."', msgspec.json.encode(answer))
    )
    return found
