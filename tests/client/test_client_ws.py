"""/acp over a WebSocket: CLI-038, and the resumption a moorline server offers (issue 3)."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from client import (
    DaemonHttpError,
    DaemonSessionClient,
    DaemonStreamEndedError,
    Event,
    TransportKind,
    open_daemon_client,
)
from client.acp_ws import AcpWsTransport
from client.errors import DaemonConnectionError
from client.transport import StreamRequest
from client.ws_inbox import UNREAD, Inbox
from client.ws_socket import SocketOptions, run_socket
from tests.support.fake_daemon import FakeDaemon, FakeSession, Turn, client_of, eventually, fake_daemon, wait_for_cancel
from tests.support.scripted_server import CountedStream, Exchange, memory_network

Clock = trio.testing.MockClock


def say(session: FakeSession, text: str) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    session.publish("session_update", {"sessionId": session.id, "update": update})


async def drop_sockets(daemon: FakeDaemon) -> None:
    for socket in daemon.sockets:
        await trio.aclose_forcefully(socket._stream)
    daemon.sockets.clear()


async def test_plain_sockets_do_not_replay(autojump_clock: Clock) -> None:
    """CLI-038: no ids, the cursor is untouched, supports_replay is false."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        async with session.events() as events:
            await session.prompt("x")
            seen = [await anext(events) for _ in range(3)]
        assert {event.id for event in seen} == {None}
        assert session.cursor == 0
        assert client.transport.kind is TransportKind.ACP_WS
        assert not client.transport.supports_replay


async def test_after_a_drop_the_session_is_loaded(autojump_clock: Clock) -> None:
    """CLI-038: reconnect, session/load, and the consumer is told that it may have missed something."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        fake = daemon.sessions[session.session_id]
        async with session.events() as events:
            await session.prompt("x")
            for _ in range(3):
                await anext(events)
            await drop_sockets(daemon)
            notice = await anext(events)
            assert (notice.type, notice.data) == ("state_resync_required", {"reason": "client_reconnected"})
            say(fake, "live again")
            assert (await anext(events)).text == "live again"
        assert daemon.calls("rpc session/load") == 1
        assert daemon.calls("rpc initialize") == 2


async def test_a_prompt_lost_with_a_plain_socket_fails(autojump_clock: Clock) -> None:
    """CLI-027: the server ends the prompt with the socket (ACP-239); nobody waits for ever."""
    async with fake_daemon(wait_for_cancel) as daemon, client_of(daemon, "acp-ws") as client:
        session = await DaemonSessionClient.create_or_attach(client)

        async def drop() -> None:
            await trio.sleep(2)
            await drop_sockets(daemon)

        daemon.nursery.start_soon(drop)
        with trio.fail_after(30), pytest.raises(DaemonStreamEndedError):
            await session.prompt("x")
        assert client.counters.count(session.session_id) == 0


async def test_a_moorline_server_resumes_a_socket(autojump_clock: Clock) -> None:
    """Issue 3: detach is asked for, a new socket attaches with the cursor, every event arrives once, the prompt too."""

    async def talk(turn: Turn) -> str:
        for number in range(20):
            turn.say(f"{number} ")
            await trio.sleep(1)
        return "max_tokens"

    async with fake_daemon(talk) as daemon:
        daemon.moorline = {"detach": True}
        async with client_of(daemon, "acp-ws") as client:
            session = await DaemonSessionClient.create_or_attach(client)
            results = []

            async def prompt() -> None:
                results.append(await session.prompt("go"))

            async def drop() -> None:
                for _ in range(5):
                    await trio.sleep(3)
                    await drop_sockets(daemon)

            seen: list[Event] = []
            async with trio.open_nursery() as nursery, session.events() as events:
                nursery.start_soon(prompt)
                nursery.start_soon(drop)
                async for event in events:
                    if event.type != "replay_complete":
                        seen.append(event)
                    if event.type == "turn_complete":
                        break
                await eventually(lambda: bool(results))
            assert [event.id for event in seen] == list(range(1, 23))
            assert "".join(event.text for event in seen) == "go" + "".join(f"{number} " for number in range(20))
            assert results[0].stop_reason == "max_tokens"
            assert daemon.calls("rpc session/load") == 0
            assert daemon.calls("rpc initialize") == 6


async def test_an_expired_session_falls_back_to_resume(autojump_clock: Clock) -> None:
    """Issue 3: when the grace is over attaching is refused; the session is taken back and the ring replays the gap."""
    async with fake_daemon() as daemon:
        daemon.moorline = {"methods": ["_moorline/session/attach"]}
        async with client_of(daemon, "acp-ws") as client:
            session = await DaemonSessionClient.create_or_attach(client)
            fake = daemon.sessions[session.session_id]
            async with session.events() as events:
                say(fake, "one")
                while (await anext(events)).text != "one":
                    pass
                refusal = {"code": -32602, "message": "expired"}
                daemon.refusals["_moorline/session/attach"] = [refusal]
                await drop_sockets(daemon)
                say(fake, "two")
                event = await anext(events)
                while event.text != "two":
                    event = await anext(events)
                assert event.id == 2
            assert daemon.calls("rpc session/resume") == 1


async def test_several_sessions_share_a_socket(autojump_clock: Clock) -> None:
    """ACP-231: events go to the session they name."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        sessions = [await DaemonSessionClient.create_or_attach(client) for _ in range(3)]
        for number, session in enumerate(sessions):
            async with session.events() as events:
                await session.prompt(f"text {number}")
                assert (await anext(events)).text == f"text {number}"
        assert len(daemon.sockets) == 1


async def test_a_refused_upgrade_is_an_http_error(autojump_clock: Clock) -> None:
    """CLI-003: 401 on the upgrade."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.answer(401, {"error": "Unauthorized"})

    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        daemon.overrides["GET /acp"] = refuse
        with pytest.raises(DaemonHttpError) as caught:
            await client.create_session()
        assert caught.value.status == 401


@pytest.mark.parametrize("silent", [False, True])
async def test_no_handshake_no_socket(silent: bool, autojump_clock: Clock) -> None:
    """CLI-003: a peer that hangs up or says nothing does not hang the client."""

    async def odd(exchange: Exchange) -> None:
        if silent:
            await trio.sleep_forever()

    async with memory_network(odd) as network, trio.open_nursery() as nursery:
        options = SocketOptions("http://daemon/acp", {}, network.connect, open_timeout=7)
        begun = trio.current_time()

        with pytest.raises(DaemonConnectionError):
            await nursery.start(partial(run_socket, options, ignore))
        assert trio.current_time() - begun == (7 if silent else 0)
        assert network.open == []


async def ignore(text: str) -> None:
    del text


async def test_a_silent_socket_is_dropped(autojump_clock: Clock) -> None:
    """CLI-023: without a byte for 45 s the socket is given up and opened again."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        await DaemonSessionClient.create_or_attach(client)
        await trio.sleep(44)
        assert daemon.calls("rpc initialize") == 1
        await trio.sleep(10)
        assert daemon.calls("rpc initialize") == 2


class Narrow(CountedStream):
    """Takes half of a large message, and no more while it is ``stuck``."""

    stuck = True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.stuck and len(data) > 10_000:
            await super().send_all(data[: len(data) // 2])
            await trio.sleep_forever()
        await super().send_all(data)


async def test_a_send_given_up_half_way_does_not_spoil_the_next(autojump_clock: Clock) -> None:
    """CLI-002, C-104: a socket with half a frame in it is left, and the next call goes out on another."""
    async with fake_daemon() as daemon:
        dialled: list[Narrow] = []

        async def connect(host: str, port: int) -> trio.abc.Stream:
            dialled.append(Narrow(await daemon.network.connect(host, port), []))
            return dialled[-1]

        async with open_daemon_client("http://daemon", transport="acp-ws", connect=connect) as client:
            session = await DaemonSessionClient.create_or_attach(client)
            with trio.move_on_after(1):
                await session.prompt("x" * 50_000)
            for stream in dialled:
                stream.stuck = False
            assert (await session.prompt("y")).stop_reason == "end_turn"
            assert len(dialled) == 2


async def test_the_next_call_after_a_half_sent_one_may_be_a_load(autojump_clock: Clock) -> None:
    """CLI-031: a call with a callback of its own is repeated on the next socket like any other."""
    async with fake_daemon() as daemon:
        dialled: list[Narrow] = []

        async def connect(host: str, port: int) -> trio.abc.Stream:
            dialled.append(Narrow(await daemon.network.connect(host, port), []))
            return dialled[-1]

        async with open_daemon_client("http://daemon", transport="acp-ws", connect=connect) as client:
            other = daemon.new_session().id
            session = await DaemonSessionClient.create_or_attach(client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(session.submit_prompt, "x" * 50_000))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert (await DaemonSessionClient.load(client, other)).session_id == other


async def test_an_attach_that_went_out_on_the_next_socket(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 3, simulation acp-ws seed 52004: no stream is read from the socket that was lost on the way."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        daemon.moorline = {"detach": True, "methods": ["_moorline/session/attach"]}
        created = await client.create_session()
        transport = client.transport
        assert isinstance(transport, AcpWsTransport)
        line = transport._line
        assert line is not None
        assert line.socket is not None

        async def refuse(text: bytes) -> None:
            raise DaemonConnectionError("closed", maybe_sent=False)

        monkeypatch.setattr(line.socket, "send", refuse)
        request = StreamRequest(created.session_id, 0)
        with pytest.raises(DaemonConnectionError):
            await transport.open_stream(request)
        assert daemon.calls("rpc _moorline/session/attach") == 1
        feed = await transport.open_stream(request)
        await client.prompt(created.session_id, "x")
        assert await feed.receive()
        await feed.aclose()


async def test_bad_messages_are_skipped(autojump_clock: Clock) -> None:
    """C-107: nonsense on the socket is reported and costs nothing else."""
    async with fake_daemon() as daemon, client_of(daemon, "acp-ws") as client:
        session = await DaemonSessionClient.create_or_attach(client)
        for text in ("{broken", "[]", "5", '{"jsonrpc":"2.0","method":"session/update","params":{}}'):
            await daemon.sockets[0].send_message(text)
        await daemon.sockets[0].send_message(b"binary")
        assert (await session.prompt("x")).stop_reason == "end_turn"


async def test_an_inbox_nobody_reads_is_bounded(autojump_clock: Clock) -> None:
    """CLI-032: before a reader comes events are kept up to a limit, then it is told that some are missing."""
    inbox = Inbox()
    for _ in range(UNREAD + 1):
        inbox.put(Event("session_update"))
    assert [event.type for event in await inbox.take()] == ["state_resync_required"]


async def test_numbers_are_corrected_by_what_the_server_says(autojump_clock: Clock) -> None:
    """Issue 3: counting starts behind the cursor and follows replay_complete and resync notices."""
    inbox = Inbox(next_id=5)
    inbox.put(Event("session_update"))
    inbox.put(Event("replay_complete", {"replayedCount": 3, "lastReplayedEventId": 7}))
    inbox.put(Event("turn_complete"))
    inbox.put(Event("slow_client_warning", {}))
    inbox.put(Event("session_update"))
    inbox.put(Event("state_resync_required", {"reason": "ring_evicted", "earliestAvailableId": 40}))
    inbox.put(Event("session_update"))
    assert [event.id for event in await inbox.take()] == [5, None, 8, None, 9, None, 40]


async def test_a_stream_broken_before_the_handshake(autojump_clock: Clock) -> None:
    """CLI-003: not even the request could be written; the failure is reported at once."""

    async def connect(host: str, port: int) -> trio.abc.Stream:
        near, far = trio.testing.memory_stream_pair()
        await far.aclose()
        return near

    options = SocketOptions("http://daemon/acp", {}, connect)
    async with trio.open_nursery() as nursery:
        with pytest.raises(DaemonConnectionError):
            await nursery.start(partial(run_socket, options, ignore))
    assert trio.current_time() == 0
