"""Which transport, and what happens when it is gone: CLI-040 to CLI-043."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from client import (
    AutoReconnectTransport,
    DaemonClient,
    DaemonHttpError,
    DaemonSessionClient,
    DaemonTransportClosedError,
    SessionInfo,
    StreamRequest,
    Transport,
    TransportKind,
    TransportOptions,
    make_transport,
    negotiate_transport,
)
from client.environment import default_token
from tests.support.fake_daemon import FakeDaemon, client_of, fake_daemon
from tests.support.scripted_server import Cut, Exchange

Clock = trio.testing.MockClock


async def refuse(exchange: Exchange) -> None:
    await exchange.answer(403, {"error": "no"})


async def silence(exchange: Exchange) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("listed", "websocket", "chosen"),
    [
        (["rest", "acp-http", "acp-ws"], None, TransportKind.ACP_WS),
        (["acp-ws", "acp-http"], refuse, TransportKind.ACP_HTTP),
        (["acp-ws", "acp-http"], silence, TransportKind.ACP_HTTP),
        (["acp-ws"], refuse, TransportKind.REST),
        (["acp-http"], None, TransportKind.ACP_HTTP),
        (["rest"], None, TransportKind.REST),
        (["carrier-pigeon"], None, TransportKind.REST),
        ([], None, TransportKind.REST),
        (None, None, TransportKind.REST),
        ("acp-ws", None, TransportKind.REST),
    ],
)
async def test_order_and_fallbacks(
    listed: object, websocket: object, chosen: TransportKind, autojump_clock: Clock
) -> None:
    """CLI-040, client-sdk 7.7 test 11: acp-ws if it works, acp-http if it is listed, else rest; others are ignored."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        daemon.capabilities["transports"] = listed
        if websocket is not None:
            daemon.overrides["GET /acp"] = websocket  # type: ignore[assignment]  # one of the handlers above
        options = TransportOptions(nursery, connect=daemon.network.connect)
        begun = trio.current_time()
        transport = await negotiate_transport("http://daemon", options=options, nursery=nursery)
        assert transport.kind is chosen
        assert trio.current_time() - begun <= 10
        await transport.aclose()
        assert daemon.network.open == []


@pytest.mark.parametrize("override", [refuse, silence])
async def test_no_capabilities_means_rest(override: object, autojump_clock: Clock) -> None:
    """CLI-040: the probe is limited in time."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        daemon.overrides["GET /capabilities"] = override  # type: ignore[assignment]  # one of the handlers above
        options = TransportOptions(nursery, connect=daemon.network.connect)
        begun = trio.current_time()
        transport = await negotiate_transport("http://daemon", None, 2.0, options=options, nursery=nursery)
        assert transport.kind is TransportKind.REST
        assert trio.current_time() - begun <= 2
        await transport.aclose()


class Factory:
    """Makes transports to a fake daemon and remembers which."""

    def __init__(self, daemon: FakeDaemon, nursery: trio.Nursery) -> None:
        self.daemon = daemon
        self.options = TransportOptions(nursery, connect=daemon.network.connect, rng=random.Random(1))
        self.made: list[Transport] = []
        self.fail_kind: TransportKind | None = None

    async def __call__(self, kind: TransportKind) -> Transport:
        await trio.sleep(1)
        if kind is self.fail_kind:
            raise OSError("cannot")
        self.made.append(make_transport("http://daemon", kind, self.options))
        return self.made[-1]


async def test_a_closed_transport_is_replaced_once(autojump_clock: Clock) -> None:
    """CLI-041: single flight, the call is repeated once, the old transport is closed, the preferred kind is kept."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        factory = Factory(daemon, nursery)
        first = await factory(TransportKind.ACP_HTTP)
        transport = AutoReconnectTransport(first, factory)
        await transport.health()
        await first.aclose()
        async with trio.open_nursery() as callers:
            for _ in range(5):
                callers.start_soon(transport.list_sessions, "/")
        assert transport.replacements == 1
        assert [made.kind for made in factory.made] == [TransportKind.ACP_HTTP] * 2
        assert factory.made[0].closed
        await transport.aclose()
        with pytest.raises(DaemonTransportClosedError):
            await transport.health()
        assert transport.replacements == 1


async def test_rest_takes_over(autojump_clock: Clock) -> None:
    """CLI-041: if the preferred kind cannot be made; and other errors are none of its business."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        factory = Factory(daemon, nursery)
        first = await factory(TransportKind.ACP_WS)
        transport = AutoReconnectTransport(first, factory)
        await first.aclose()
        factory.fail_kind = TransportKind.ACP_WS
        await transport.list_sessions("/")
        assert transport.kind is TransportKind.REST
        daemon.overrides["GET /health"] = refuse
        with pytest.raises(DaemonHttpError):
            await transport.health()
        assert daemon.calls("GET /health") == 1
        await transport.aclose()


async def test_a_daemon_that_is_gone_closes_the_transport(autojump_clock: Clock) -> None:
    """CLI-041: a transport that was open and cannot be opened again says so with the error that is reacted to."""

    async def forgetful(exchange: Exchange) -> None:
        if exchange.json().get("method") == "initialize":
            raise Cut
        await daemon._acp(exchange)

    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        options = TransportOptions(nursery, connect=daemon.network.connect)
        over_http = make_transport("http://d", TransportKind.ACP_HTTP, options)
        await over_http.list_sessions("/")
        daemon.connections.clear()
        daemon.overrides["POST /acp"] = forgetful
        with pytest.raises(DaemonTransportClosedError):
            await over_http.list_sessions("/")
        await over_http.aclose()
        over_socket = make_transport("http://d", TransportKind.ACP_WS, options)
        await over_socket.list_sessions("/")
        daemon.network.refuse = True
        await trio.aclose_forcefully(daemon.sockets[0]._stream)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(DaemonTransportClosedError):
            await over_socket.list_sessions("/")
        await over_socket.aclose()


async def test_a_repeated_subscription_uses_the_latest_cursor(autojump_clock: Clock) -> None:
    """CLI-041: after a replacement the reader goes on where it was, not where it began."""
    async with fake_daemon() as daemon, trio.open_nursery() as nursery:
        factory = Factory(daemon, nursery)
        first = await factory(TransportKind.REST)
        transport = AutoReconnectTransport(first, factory)
        async with DaemonClient("http://daemon", nursery=nursery, transport=transport) as client:
            fake = daemon.new_session()
            for _ in range(3):
                fake.publish("x", {})
            session = DaemonSessionClient(client, SessionInfo(fake.id), cursor=0)
            async with session.events() as events:
                for _ in range(3):
                    await anext(events)
                await first.aclose()
                fake.publish("x", {})
                event = await anext(events)
                while event.id is None:
                    event = await anext(events)
                assert event.id == 4
            assert daemon.requests[-1].headers["last-event-id"] == "3"
            assert (await transport.open_stream(StreamRequest(fake.id))).epoch == fake.epoch


async def test_a_stale_client_id_is_renewed_once(autojump_clock: Clock) -> None:
    """CLI-043: concurrent calls share one resume; each is repeated once; other refusals are not."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        daemon.client_ids = set()
        session = await DaemonSessionClient.create_or_attach(client)
        stale = session.client_id
        daemon.client_ids.clear()
        results = []
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_store, results, session)
        assert results == ["end_turn"] * 3
        assert session.client_id != stale
        assert daemon.calls(f"POST /session/{session.session_id}/resume") == 1
        assert daemon.calls(f"POST /session/{session.session_id}/prompt") == 6


async def _store(results: list[str], session: DaemonSessionClient) -> None:
    results.append((await session.prompt("x")).stop_reason)


async def test_a_client_id_that_stays_wrong(autojump_clock: Clock) -> None:
    """CLI-043: one retry, then the refusal is the caller's."""
    async with fake_daemon() as daemon, client_of(daemon) as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def never(exchange: Exchange) -> None:
            await exchange.answer(400, {"error": "unknown", "code": "invalid_client_id"})

        route = f"POST /session/{session.session_id}/heartbeat"
        daemon.overrides[route] = never
        with pytest.raises(DaemonHttpError) as caught:
            await session.heartbeat()
        assert caught.value.code == "invalid_client_id"
        assert daemon.calls(route) == 2


def test_tokens_from_the_environment() -> None:
    """client-sdk section 1: ours first, blank counts as none."""
    assert default_token({}) is None
    assert default_token({"QWEN_SERVER_TOKEN": " q "}) == "q"
    assert default_token({"MOORLINE_TOKEN": "m", "QWEN_SERVER_TOKEN": "q"}) == "m"
    assert default_token({"MOORLINE_TOKEN": "  ", "QWEN_SERVER_TOKEN": ""}) is None


async def test_the_token_is_sent(autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """client-sdk section 1: as a bearer on every request, the upgrade included."""
    monkeypatch.setenv("MOORLINE_TOKEN", "secret")
    async with fake_daemon() as daemon:
        for transport in ("rest", "acp-http", "acp-ws"):
            async with client_of(daemon, transport) as client:
                await client.list_sessions("/")
                await client.health()
        assert {request.headers.get("authorization") for request in daemon.requests} == {"Bearer secret"}
