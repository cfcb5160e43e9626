"""What REST says is not changed by ``/acp`` being used on the same session, nor by an agent's own words."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from sessions import Operation, TurnResult
from sessions.errors import RunnerError
from tests.support.acp import AcpClient, Place, acp_place, prompt_params
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession

KNOWN_KINDS = [
    "missing_binary",
    "blocked_egress",
    "auth_env_error",
    "init_timeout",
    "restore_timeout",
    "protocol_error",
    "missing_file",
    "parse_error",
    "budget_exhausted",
    "mcp_budget_would_exceed",
    "mcp_server_spawn_failed",
    "invalid_config",
    "prompt_deadline_exceeded",
    "writer_idle_timeout",
    "model_stream_interrupted",
    "loop_detected",
]


async def resumed_over_and_over(client: AcpClient, session_id: str) -> None:
    """Streams of ``/acp`` come and go, with cursors good and bad; each of them replays."""
    await client.result("session/load", {"sessionId": session_id})
    for cursor in ("0", "2", "1000", "nonsense"):
        async with client.listen(session_id, cursor=cursor, X_Qwen_Event_Epoch="another") as feed:
            await anext(feed)


async def rest_words(place: Place, acp: AcpClient | None) -> list[bytes]:
    """Every answer of a REST client that creates, prompts, streams and resumes, without what is new each time."""
    driver = place.driver
    created = await driver.request("POST", "/session", body=b'{"sessionScope":"thread"}')
    session_id = created.json()["sessionId"]
    path = f"/session/{session_id}"
    words = [created.body]
    for text in ("one", "fail", "two"):
        body = msgspec.json.encode({"prompt": [{"type": "text", "text": text}]})
        accepted = await driver.request("POST", f"{path}/prompt", body=body)
        words.append(accepted.body)
        if acp is not None:
            await resumed_over_and_over(acp, session_id)
        await place.session(session_id).prompt(accepted.json()["promptId"]).wait_settled()
    for cursor in ("0", "4", "1000", "nonsense"):
        headers = [("Last-Event-ID", cursor), ("Accept", "text/event-stream")]
        async with driver.stream("GET", f"{path}/events", headers=headers) as stream:
            head = await stream.head()
            words.append(repr(sorted({*head.headers} - {"x-qwen-sse-stream-id"})).encode())
            read = await stream.read()
            while cursor.isdigit() and b"replay_complete" not in read:
                read += await stream.read()
            words.append(read)
    words.append((await driver.request("GET", "/capabilities")).body)
    words.append((await driver.request("POST", f"{path}/cancel")).body)
    words.append((await driver.request("DELETE", path)).body)
    return [without_news(each) for each in words]


def without_news(text: bytes) -> bytes:
    text = re.sub(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", b"UUID", text)
    text = re.sub(rb'"eventEpoch":"[^"]+"', b'"eventEpoch":"E"', text)
    return re.sub(rb'"(serverTimestamp|createdAt|queuedAt)":("[^"]*"|\d+)', rb'"\1":0', text)


async def test_resuming_on_acp_changes_nothing_on_rest(autojump_clock: MockClock) -> None:
    """REST-007, ACP-001, ACP-002: the same bytes, the same ids, with and without ``/acp`` resuming all the time."""
    async with acp_place() as place:
        alone = await rest_words(place, None)
    async with acp_place() as place:
        beside = await rest_words(place, await place.connect())
    assert beside == alone
    assert len(alone) == 15


@pytest.mark.parametrize("kind", [*KNOWN_KINDS, "a_kind_of_the_agents_own"])
async def test_error_kinds_pass_unchanged(kind: str, autojump_clock: MockClock) -> None:
    """REST-093: what clients know arrives under that very name, on each surface; others are allowed."""

    async def fail(session: FakeSession, operation: Operation) -> TurnResult | None:
        raise RunnerError("no", -32603, error_kind=kind)

    async with acp_place(FakeRunner(scripts={**SCRIPTS, "fail": fail})) as place:
        client = await place.connect()
        session_id = await client.new_session()
        async with client.listen(session_id) as feed:
            await client.call("session/prompt", prompt_params(session_id, "fail"), id=5)
            frames = await feed.until_kind("turn_error")
        told = {frame.kind: frame.message for frame in frames}
        assert told["reply:5"]["error"]["data"]["errorKind"] == kind
        assert told["turn_error"]["params"]["data"]["errorKind"] == kind
        assert await rest_error_kind(place, session_id) == kind


async def rest_error_kind(place: Place, session_id: str) -> Any:
    async with place.driver.stream("GET", f"/session/{session_id}/events", Last_Event_ID="0") as stream:
        read = b""
        while b"replay_complete" not in read:
            read += await stream.read()
    (data,) = re.findall(rb"event: turn_error\ndata: (.*)\n", read)
    return msgspec.json.decode(data)["data"]["errorKind"]
