"""The client against the real server in memory, on every transport (client-sdk 7.7, tests 6 to 10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from client import (
    DaemonClient,
    DaemonPromptQueueFullError,
    DaemonSessionClient,
    DaemonTurnError,
    ReconnectPolicy,
    SessionRequest,
    negotiate_transport,
)
from client.acp_transport import AcpTransport
from client.http import HttpLink
from client.open_transport import TransportOptions
from protocol.acp import SESSION_REPLY_METHODS
from protocol.sse import SseDecoder
from scripts.simulate import quiet
from server.config import Config
from server.testing import BASE_URL, Turn, World, open_world
from tests.support.fake_daemon import ALL_TRANSPORTS, eventually

Clock = trio.testing.MockClock


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    quiet()


def words(chunks: int = 3, pause: float = 0.0, *, ask: bool = False, fail: bool = False) -> str:
    return Turn("t", chunks=chunks, pause=pause, ask=ask, fail=fail).words()


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_a_whole_conversation(transport: str, autojump_clock: Clock) -> None:
    """client-sdk 7.7 test 12 for this client: create, subscribe, prompt, vote, fail, cancel, list, close."""
    async with open_world(seed=3) as world, world.client(transport) as client:
        assert (await client.capabilities()).max_pending_prompts_per_session == 5
        await client.health()
        session = await DaemonSessionClient.create_or_attach(client, SessionRequest(scope="thread"))
        kinds: list[str] = []
        async with session.events() as events, trio.open_nursery() as nursery:
            outcome: list[str] = []

            async def prompt() -> None:
                outcome.append((await session.prompt(words(ask=True))).stop_reason)

            nursery.start_soon(prompt)
            async for event in events:
                kinds.append(event.update_kind or event.type)
                if event.type == "permission_request":
                    assert await session.vote(event.request_id or "", "yes")
                if event.type == "turn_complete":
                    break
        await eventually(lambda: outcome == ["end_turn"])
        assert kinds.count("user_message_chunk") == 1
        assert kinds.count("agent_message_chunk") >= 3
        assert "permission_resolved" in kinds
        with pytest.raises(DaemonTurnError):
            await session.prompt(words(fail=True))
        with trio.move_on_after(2):
            await session.prompt(words(chunks=50, pause=1.0))
        await eventually(lambda: world.harbour.statistics().active_prompts == 0, within=20)
        listed = await client.list_sessions("/simulated")
        assert session.session_id in [entry.session_id for entry in listed.sessions]
        beat = await session.heartbeat()
        assert beat.last_seen_at > 0
        await session.close()
        await eventually(lambda: world.harbour.statistics().sessions == 0)


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_a_full_queue(transport: str, autojump_clock: Clock) -> None:
    """CLI-014, CLI-039: the sixth prompt is refused by the server, in the same words on every transport."""
    async with (
        open_world(seed=4) as world,
        world.client(transport, max_pending_prompts_per_session=None) as client,
        trio.open_nursery() as nursery,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        for _ in range(5):
            nursery.start_soon(session.prompt, words(chunks=1, pause=1000.0))
        await eventually(lambda: len(world.harbour.find(session.session_id).operations) == 5)
        with pytest.raises(DaemonPromptQueueFullError) as caught:
            await session.prompt(words())
        assert (caught.value.limit, caught.value.pending_count) == (5, 5)
        assert caught.value.session_id == session.session_id
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_every_connection_lost_again_and_again(transport: str, autojump_clock: Clock) -> None:
    """client-sdk 7.7 tests 6 and 7: in mid-turn, once a second; the text is complete, nothing twice, and the prompt's
    outcome arrives. The WebSocket resumes as well, because it asked to (issue 3)."""
    async with open_world(seed=5) as world, world.client(transport) as client, trio.open_nursery() as nursery:
        session = await DaemonSessionClient.create_or_attach(client)

        async def cut() -> None:
            for _ in range(8):
                await trio.sleep(1.3)
                for link in list(world.network.links):
                    link.cut()

        texts: list[str] = []
        ids: list[int] = []
        outcomes: list[str] = []

        async def prompt() -> None:
            outcomes.append((await session.prompt(words(chunks=40, pause=0.3))).stop_reason)

        async with session.events() as events:
            nursery.start_soon(prompt)
            nursery.start_soon(cut)
            async for event in events:
                if event.id is not None:
                    ids.append(event.id)
                if event.update_kind == "agent_message_chunk":
                    texts.append(event.text)
                if event.type == "turn_complete":
                    break
            await eventually(lambda: bool(outcomes))
        assert outcomes == ["end_turn"]
        assert ids == list(range(1, len(ids) + 1))
        assert len(texts) == 40
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_calls_inside_the_loop(transport: str, autojump_clock: Clock) -> None:
    """C-106, client-sdk 7.7 test 9: against the real server too."""
    async with open_world(seed=6) as world, world.client(transport) as client, trio.open_nursery() as nursery:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events() as events:
            nursery.start_soon(session.prompt, words(chunks=5))
            async for event in events:
                if event.update_kind == "agent_message_chunk":
                    with trio.fail_after(2):
                        await session.heartbeat()
                        await session.prompt(words(chunks=1))
                    break
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def texts_of(link: HttpLink, headers: dict[str, str]) -> AsyncIterator[list[bytes]]:
    """The data of every frame of one stream, collected in the background."""
    stream = await link.open_event_stream("/acp", headers=headers)
    collected: list[bytes] = []

    async def collect() -> None:
        decoder = SseDecoder()
        while chunk := await stream.read():
            collected.extend(event.data.encode() for event in decoder.receive_data(chunk))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect)
        yield collected
        nursery.cancel_scope.cancel()
    await stream.aclose()


async def test_the_reply_methods_are_the_servers(autojump_clock: Clock) -> None:
    """CLI-033, ACP-100, ACP-104: the shared set is what the server advertises and how it really routes replies."""
    async with open_world(seed=7) as world:
        async with world.client("acp-http") as client:
            await client.list_sessions("/simulated")
            assert isinstance(client.transport, AcpTransport)
            assert client.transport.offer.reply_methods == SESSION_REPLY_METHODS
        link = HttpLink(BASE_URL, connect=world.network.connect)
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
        opened = await link.request("POST", "/acp", body=hello)
        headers = {"Acp-Connection-Id": opened.headers["acp-connection-id"]}
        async with texts_of(link, headers) as connection_texts:
            await link.request("POST", "/acp", headers=headers, body=rpc(1, "session/new"))
            await eventually(lambda: bool(connection_texts))
            session_id = msgspec.json.decode(connection_texts[0])["result"]["sessionId"]
            async with texts_of(link, headers | {"Acp-Session-Id": session_id}) as session_texts:
                methods = [*sorted(SESSION_REPLY_METHODS), "session/list", "_qwen/session/heartbeat", "session/resume"]
                for number, method in enumerate(methods, start=100):
                    params = {"sessionId": session_id, "prompt": [{"type": "text", "text": words()}]}
                    await link.request("POST", "/acp", headers=headers, body=rpc(number, method, params))
                expected = dict(enumerate(methods, start=100))
                await eventually(lambda: len(answered(session_texts)) + len(answered(connection_texts)) >= 9)
                by_session = {expected[number] for number in answered(session_texts)}
                by_connection = {expected[number] for number in answered(connection_texts) if number >= 100}
        assert by_session == SESSION_REPLY_METHODS
        assert by_connection == set(methods) - SESSION_REPLY_METHODS
        await link.aclose()


def rpc(number: int, method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def answered(texts: list[bytes]) -> list[int]:
    """Ids of the responses among them."""
    messages = [msgspec.json.decode(text) for text in texts]
    return [message["id"] for message in messages if "method" not in message]


async def test_negotiation_with_the_real_server(autojump_clock: Clock) -> None:
    """CLI-040: what the server lists is what is chosen."""
    for listed, chosen in ((("rest",), "rest"), (("rest", "acp-http"), "acp-http"), (("acp-ws", "rest"), "acp-ws")):
        async with open_world(seed=8, config=Config(transports=listed)) as world, trio.open_nursery() as nursery:
            options = TransportOptions(nursery, connect=world.network.connect)
            transport = await negotiate_transport(BASE_URL, nursery=nursery, options=options)
            assert transport.kind.value == chosen
            await transport.aclose()


async def leave(world: World) -> None:
    """Let everything the client left behind expire."""
    await trio.sleep(60)
    assert world.harbour.statistics().subscribers == 0


@pytest.mark.parametrize("transport", ALL_TRANSPORTS)
async def test_nothing_is_left_on_the_server(transport: str, autojump_clock: Clock) -> None:
    """CLI-001, C-100: after the client closed there is no subscriber and no connection."""
    async with open_world(seed=9) as world:
        async with world.client(transport) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            for _ in range(10):
                async with session.events():
                    pass
            await session.prompt(words())
        await leave(world)
        assert not world.network.links


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
async def test_a_client_that_closes_says_goodbye(transport: str, autojump_clock: Clock) -> None:
    """ACP-239, issue 3: only a socket that is lost gets a grace; a client that was closed is gone, and so are its prompts."""
    async with open_world(seed=9) as world:
        async with world.client(transport) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            served = world.harbour.find(session.session_id)
            assert served.clients
        # Less than any grace.
        await trio.sleep(1)
        assert not served.clients


class Outage:
    """A network that can be down for a while."""

    def __init__(self, world: World) -> None:
        self.lasts = False
        self._connect = world.network.connect

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        if self.lasts:
            raise OSError("no route")
        return await self._connect(host, port)


async def test_a_gap_on_a_shared_socket_is_told_to_the_right_session(autojump_clock: Clock) -> None:
    """Issue 3: two sessions on one resumable socket and a small ring: the notice names its session, so that counting goes
    on at the right number."""
    async with (
        open_world(seed=10, config=Config(event_ring_size=16)) as world,
        trio.open_nursery() as nursery,
        DaemonClient(
            BASE_URL,
            nursery=nursery,
            transport="acp-ws",
            connect=(outage := Outage(world)).connect,
            reconnect=ReconnectPolicy(base=0.5, maximum=1.0),
            reload_on_resync=False,
        ) as client,
    ):
        busy = await DaemonSessionClient.create_or_attach(client)
        quiet_one = await DaemonSessionClient.create_or_attach(client)
        async with busy.events() as busy_events, quiet_one.events() as quiet_events:
            nursery.start_soon(quiet_one.prompt, words(chunks=1))
            nursery.start_soon(busy.prompt, words(chunks=60, pause=0.1))
            seen = [await anext(busy_events) for _ in range(10)]
            outage.lasts = True
            world.network.cut_all()
            await trio.sleep(4)
            outage.lasts = False
            while seen[-1].type != "turn_complete":
                seen.append(await anext(busy_events))
            ring = world.harbour.find(busy.session_id).ring
            gap = next(event for event in seen if event.type == "state_resync_required")
            after = seen[seen.index(gap) + 1 :]
            assert gap.session_id == busy.session_id
            assert next(event.id for event in after if event.id is not None) == gap.data["earliestAvailableId"]
            assert seen[-1].id == next(event.id for event in ring.read(0, ring.head) if event.type == "turn_complete")
            others = [await anext(quiet_events) for _ in range(3)]
            assert "state_resync_required" not in [event.type for event in others]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("transport", ["acp-http", "acp-ws"])
async def test_away_for_longer_than_the_grace(transport: str, autojump_clock: Clock) -> None:
    """ACP-143, ACP-153, C-066: the session is closed meanwhile; the client loads it again by itself and goes on, with nothing
    lost of what was said before and no end in between."""
    config = Config(session_grace_ms=1000, connection_grace_ms=1000, ws_grace_ms=1000)
    async with (
        open_world(seed=11, config=config) as world,
        trio.open_nursery() as nursery,
        DaemonClient(
            BASE_URL,
            nursery=nursery,
            transport=transport,
            connect=(outage := Outage(world)).connect,
            reconnect=ReconnectPolicy(base=0.5, maximum=1.0),
        ) as client,
    ):
        session = await DaemonSessionClient.create_or_attach(client)
        kinds: list[str] = []
        async with session.events() as events:
            assert (await session.prompt(words(chunks=2))).stop_reason == "end_turn"
            outage.lasts = True
            world.network.cut_all()
            await trio.sleep(20)
            assert world.harbour.sessions == []
            outage.lasts = False
            await trio.sleep(20)
            assert [each.id for each in world.harbour.sessions] == [session.session_id]
            assert (await session.prompt(words(chunks=2))).stop_reason == "end_turn"
            while kinds.count("turn_complete") < 2:
                kinds.append((await anext(events)).type)
        assert "session_closed" not in kinds
        nursery.cancel_scope.cancel()
