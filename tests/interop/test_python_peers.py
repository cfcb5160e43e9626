"""Python clients nobody here wrote: `httpx-sse`, and the HTTP and WebSocket clients of `agent-client-protocol`.

They run on asyncio, each test in a loop of its own; the server is another process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import acp
import httpx
import pytest
from acp import schema
from acp.http import create_http_stream
from acp.ws import create_websocket_stream
from httpx_sse import ServerSentEvent, aconnect_sse

from tests.interop.conftest import Moorline
from tests.interop.rest import Rest, text_of

pytestmark = pytest.mark.process

_LIMIT_S = 20.0


async def read_until(
    client: httpx.AsyncClient, url: str, headers: dict[str, str], wanted: Callable[[Any], bool]
) -> list[ServerSentEvent]:
    """What httpx-sse yields, up to and including the first event whose data `wanted` accepts."""
    events = []
    async with asyncio.timeout(_LIMIT_S), aconnect_sse(client, "GET", url, headers=headers) as source:
        async for event in source.aiter_sse():
            events.append(event)
            if event.data and wanted(event.json()):
                return events
    raise AssertionError("the stream ended early")


def test_httpx_sse_resumes_the_rest_stream(moorline_server: Moorline) -> None:
    """REST-081, 084, 085: `retry`, `id` and `event` as the parser gives them; a second stream continues from the id."""
    rest = Rest(moorline_server.url)
    session = rest.create()
    rest.submit(session, "slow long=10")
    url = f"{moorline_server.url}/session/{session}/events"

    async def main() -> list[ServerSentEvent]:
        async with httpx.AsyncClient() as client:
            first = await read_until(client, url, {"Last-Event-ID": "0"}, lambda event: event.get("id") == 4)
            cursor = first[-1].id
            rest_of_it = await read_until(
                client, url, {"Last-Event-ID": cursor}, lambda event: event["type"] == "turn_complete"
            )
            return first + rest_of_it

    events = asyncio.run(main())
    assert 3000 in {event.retry for event in events}
    published = [event for event in events if event.data and "id" in event.json()]
    assert [int(event.id) for event in published] == list(range(1, len(published) + 1))
    assert all(event.event == event.json()["type"] for event in published)
    numbers = [int(number) for number in re.findall(r"\d+", text_of([event.json() for event in published]))]
    assert numbers == list(range(numbers[0], numbers[0] + 10))


def test_httpx_sse_resumes_a_session_stream(moorline_server: Moorline) -> None:
    """ACP-093, 134, 137: bus frames carry an id, the reply does not, and it comes after the replayed content."""
    url = f"{moorline_server.url}/acp"

    async def main() -> list[ServerSentEvent]:
        async with httpx.AsyncClient() as client:

            async def post(number: int, method: str, params: object) -> httpx.Response:
                message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                answer = await client.post(url, json=message, headers=connection)
                return answer.raise_for_status()

            connection: dict[str, str] = {}
            opened = await post(1, "initialize", {"protocolVersion": 1})
            connection = {"Acp-Connection-Id": opened.headers["Acp-Connection-Id"]}
            await post(2, "session/new", {})
            replies = await read_until(client, url, connection, lambda message: message.get("id") == 2)
            session = replies[-1].json()["result"]["sessionId"]
            stream = {**connection, "Acp-Session-Id": session}
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "slow long=10"}]}
            await post(3, "session/prompt", prompt)
            first = await read_until(
                client, url, {**stream, "Last-Event-ID": "0"}, lambda message: message.get("method") == "session/update"
            )
            await asyncio.sleep(1.0)
            second = await read_until(
                client, url, {**stream, "Last-Event-ID": first[-1].id}, lambda message: message.get("id") == 3
            )
            return first + second

    events = [event for event in asyncio.run(main()) if event.data]
    bus = [event for event in events if event.id]
    numbers = list(dict.fromkeys(int(event.id) for event in bus))
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1].json()["result"]["stopReason"] == "end_turn"
    kinds = [event.json().get("params", {}).get("kind") for event in events]
    assert "replay_complete" in kinds[:-1]


class Client:
    """The client half of the library's protocol this test needs."""

    def __init__(self) -> None:
        self.text = ""
        self.asked: list[list[schema.PermissionOption]] = []

    def on_connect(self, conn: acp.Agent) -> None:
        """Nothing to remember."""

    async def session_update(self, session_id: str, update: Any, **extra: Any) -> None:
        if isinstance(update, schema.AgentMessageChunk) and isinstance(update.content, schema.TextContentBlock):
            self.text += update.content.text

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[schema.PermissionOption], **extra: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(options)
        chosen = next(option.option_id for option in options if option.kind == "allow_once")
        outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen)
        return schema.RequestPermissionResponse(outcome=outcome)


async def over_http(url: str) -> Any:
    return create_http_stream(f"{url}/acp")


async def over_websocket(url: str) -> Any:
    return await create_websocket_stream(f"{url.replace('http', 'ws', 1)}/acp")


@pytest.mark.parametrize("transport", [over_http, over_websocket], ids=["http", "websocket"])
def test_official_python_client(moorline_server: Moorline, transport: Callable[[str], Awaitable[Any]]) -> None:
    """initialize, new, prompts, permission, cancel, close (ACP-062, 103, 121, 174, 195, 196)."""

    async def main() -> Client:
        client = Client()
        connection = acp.connect_to_agent(client, await transport(moorline_server.url))  # type: ignore[arg-type]  # see Client
        async with asyncio.timeout(_LIMIT_S):
            opened = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            assert opened.agent_capabilities is not None
            assert opened.agent_capabilities.load_session is True
            session = await connection.new_session(cwd=str(moorline_server.workspace), mcp_servers=[])
            # This client opens the session stream beside its next call and does not wait: content before it is not for it.
            await asyncio.sleep(0.3)
            answer = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("long=5")])
            assert answer.stop_reason == "end_turn"
            await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("permission")])
            held = asyncio.ensure_future(
                connection.prompt(session_id=session.session_id, prompt=[acp.text_block("hold")])
            )
            await asyncio.sleep(0.3)
            await connection.cancel(session_id=session.session_id)
            assert (await held).stop_reason == "cancelled"
            await connection.close_session(session_id=session.session_id)
        await connection.close()
        return client

    client = asyncio.run(main())
    assert len(client.asked) == 1
    assert re.findall(r"\d+", client.text)
