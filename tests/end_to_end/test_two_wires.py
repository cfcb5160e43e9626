"""One session, two wires (issue 5): REST and /acp sessions followed over NNRP, NNRP sessions seen by the others."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from client import open_daemon_client
from client.nnrp import (
    BackgroundEvent,
    NnrpOperationEnded,
    NnrpOptions,
    NnrpRefused,
    NnrpResultsLost,
    NnrpSession,
    NnrpTicket,
    attach_session,
    nnrp_ticket,
    open_nnrp,
)
from protocol.nnrp.enums import (
    ErrorScope,
    MessageType,
    OperationState,
    SessionErrorCode,
    SessionFlags,
    SessionStatus,
    TokenChannel,
)
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.messages import Error, FrameCancel, ResultDrop, ResultPush, SessionOpen, SessionOpenAck
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import ResumeFrom
from server.nnrp.others import ids_of
from tests.end_to_end.rest_place import Served, rest_server
from tests.server.rest.api import Frame
from tests.support.nnrp import HELLO, Peer, raw, submit_packet, token_of
from tests.support.serving import wait_until


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with rest_server("demo", workspace=tmp_path, nnrp_port=0) as place:
        yield place


async def ticket_for(served: Served, session_id: str) -> NnrpTicket:
    reply = await served.post(f"/session/{session_id}/nnrp-token")
    assert reply.status == 200, reply
    return NnrpTicket.of(reply.json())


@asynccontextmanager
async def attached(served: Served, session_id: str, last_event_id: int = 0) -> AsyncIterator[NnrpSession]:
    async with open_nnrp(served.nnrp_url) as connection:
        yield await attach_session(connection, await ticket_for(served, session_id), last_event_id=last_event_id)


@asynccontextmanager
async def raw_peer(served: Served) -> AsyncIterator[Peer]:
    host, port = served.nnrp.addresses[0]
    async with await trio.open_tcp_stream(host, port) as stream:
        peer = Peer(stream)
        await peer.send(HELLO)
        await peer.receive(MessageType.SERVER_HELLO_ACK)
        yield peer


def request_of(ticket: NnrpTicket, flags: SessionFlags = SessionFlags.ALLOW_RESUME) -> SessionOpen:
    return SessionOpen(
        requested_session_id=ticket.session_id,
        profile_id=ticket.profile_id,
        session_flags=flags,
        schema_id=ticket.schema[0],
        schema_version=ticket.schema[1],
    )


async def until(session: NnrpSession, event_id: int) -> list[BackgroundEvent]:
    found: list[BackgroundEvent] = []
    with trio.fail_after(20):
        while not found or found[-1].event_id < event_id:
            found.append(await anext(session.background))
    return found


def shown(frames: list[Frame]) -> list[int]:
    return [each.id for each in frames if each.id is not None]


def ids(events: list[BackgroundEvent]) -> list[int]:
    return [each.event_id for each in events]


async def test_the_token(served: Served) -> None:
    """Issue 5: 200 with token (base64url), nnrpSessionId, profileId 2, schemaId 4097, schemaVersion 3, expiresInMs."""
    session_id = await served.create()
    reply = await served.post(f"/session/{session_id}/nnrp-token")
    assert reply.status == 200
    body = reply.json()
    assert set(body) == {"token", "nnrpSessionId", "profileId", "schemaId", "schemaVersion", "expiresInMs"}
    assert (body["profileId"], body["schemaId"], body["schemaVersion"]) == (2, 4097, 3)
    assert body["expiresInMs"] == 120_000
    assert 0 < body["nnrpSessionId"] < 1 << 32
    assert len(base64.urlsafe_b64decode(body["token"])) == 24
    assert "moorline_nnrp_token" in (await served.get("/capabilities"))["features"]


async def test_no_token_for_no_session(served: Served) -> None:
    """Issue 5: 404 session_not_found; also for a session that is closed."""
    for session_id in ("6ba7b810-9dad-41d1-80b4-00c04fd430c8", await served.create()):
        await served.call("DELETE", f"/session/{session_id}")
        reply = await served.post(f"/session/{session_id}/nnrp-token")
        assert reply.status == 404
        assert reply.json()["code"] == "session_not_found"


async def test_without_nnrp_there_is_no_token(tmp_path: Path) -> None:
    """REST-013: what does not work is not advertised, and says so."""
    async with rest_server("demo", workspace=tmp_path, nnrp_off=True) as served:
        reply = await served.post(f"/session/{await served.create()}/nnrp-token")
        assert (reply.status, reply.json()["code"]) == (404, "not_supported")
        assert "moorline_nnrp_token" not in (await served.get("/capabilities"))["features"]


async def test_a_prompt_over_rest_is_seen_over_nnrp(served: Served) -> None:
    """Issue 5: both see the same events, with the same ids; text as token chunks, the rest as REST shows it."""
    session_id = await served.create()
    async with attached(served, session_id) as session, served.events(session_id) as stream:
        prompt_id = await served.submit(session_id, "tool long=3")
        frames = await stream.until("turn_complete")
        events = await until(session, shown(frames)[-1])
        assert ids(events) == shown(frames)
        for frame, event in zip(frames, events, strict=True):
            if (value := event.value()) is not None:
                assert (value["id"], value["type"], value["data"]) == (frame.id, frame.type, frame.data)
        said = [each for each in events if each.result is not None and each.result.hint is not None]
        spoken = [each for each in said if each.result.hint.channel is TokenChannel.MESSAGE]  # type: ignore[union-attr]
        assert "".join(each.text for each in spoken).split() == ["w0", "w1", "w2"]
        frame_id, operation_id = ids_of(prompt_id)
        assert {each.frame_id for each in events} == {frame_id}
        assert {each.operation_id for each in events} == {operation_id}
        assert [each.state for each in events[:-1]] == [OperationState.PARTIAL] * (len(events) - 1)
        assert events[-1].state is OperationState.COMPLETED


async def test_a_submit_over_nnrp_is_seen_over_rest(served: Served) -> None:
    """Issue 5: a submit over NNRP shows on REST streams with the same event ids; its author is a client of the session."""
    session_id = await served.create()
    async with attached(served, session_id) as session, served.events(session_id) as stream:
        results = [each async for each in await session.submit(b"long=3")]
        frames = await stream.until("turn_complete")
        at = {each.id: each for each in frames}
        assert [each.event_id for each in results] == sorted({each.event_id for each in results})
        for each in results:
            assert each.event_id in at
            if each.text:
                assert at[each.event_id].data["update"]["content"]["text"] == each.text
        assert results[-1].event_id == frames[-1].id
        authors = {each.value["originatorClientId"] for each in frames}
        assert len(authors) == 1
        assert authors < set(served.harbour.find(session_id).clients)


async def test_own_results_and_those_of_others_in_one_order(served: Served) -> None:
    """Issue 5: every event once, own prompts as results of their operation, others' beside them; no id is given twice."""
    session_id = await served.create()
    async with attached(served, session_id) as session, served.events(session_id) as stream:
        own: list[int] = []

        async def submit(text: bytes) -> None:
            own.extend([each.event_id async for each in await session.submit(text)])

        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(submit, b"long=5")
                await served.submit(session_id, f"long={number + 3}")
        frames = await stream.until("turn_complete", count=4)
        mine = next(each for each in served.nnrp.service.sessions).worker._client_id  # type: ignore[union-attr]
        theirs = [each.id for each in frames if each.value.get("originatorClientId") != mine]
        events = await until(session, max(each for each in theirs if each is not None))
        assert ids(events) == theirs
        assert not set(own) & set(ids(events))
        assert sorted(own) == own


async def test_resume_from_a_cursor_of_another_wire(served: Served) -> None:
    """nnrp-extensions, Resume watermark: last_event_id is the cursor of ``Last-Event-ID``; exactly the events after it."""
    session_id = await served.create()
    await served.run(session_id, "long=20")
    frames = await served.replay(session_id)
    everything = shown(frames)
    for cursor in (1, 7, everything[-1] - 1):
        async with attached(served, session_id, cursor) as session:
            events = await until(session, everything[-1])
            assert ids(events) == [each for each in everything if each > cursor]
            spoken = [each.result.hint for each in events if each.result is not None and each.text]
            assert all(each is not None for each in spoken)
            starts = [each.sequence_start for each in spoken if each is not None and each.channel == 0]
            ends = [each.sequence_end for each in spoken if each is not None and each.channel == 0]
            assert starts[1:] == ends[:-1]


async def test_the_raw_exchange(served: Served) -> None:
    """Issue 5: attach = SESSION_OPEN with that id, allow_resume, the token, optional resume_from → resumed; without the
    operation extensions the text alone comes, as token chunks."""
    session_id = await served.create()
    ticket = await ticket_for(served, session_id)
    async with raw_peer(served) as peer:
        answer = await peer.open(request_of(ticket), token=ticket.token)
        ack = answer.metadata
        assert isinstance(ack, SessionOpenAck)
        assert ack.session_status is SessionStatus.RESUMED
        assert ack.session_id == ticket.session_id
        assert token_of(answer) not in (b"", ticket.token)
        await served.submit(session_id, "echo across")
        packets: list[Packet] = []
        while not packets or packets[-1].metadata.result_class:  # type: ignore[attr-defined]
            packets.append(await peer.receive(MessageType.RESULT_PUSH))
        texts = [
            bytes(payload.data)
            for each in packets
            if int(each.metadata.payload_kind_bitmap) == 2  # type: ignore[attr-defined]
            for payload in each.content.payloads  # type: ignore[union-attr]
        ]
        assert b"".join(texts) == b"across"
        # The token was good for one attach.
        refused = (await peer.open(request_of(ticket).replace(requested_session_id=5), token=ticket.token)).metadata
        assert isinstance(refused, SessionOpenAck)
        assert refused.session_error_code == SessionErrorCode.RESUME_REJECTED


async def test_an_end_that_is_no_event_is_not_lost(served: Served) -> None:
    """13.4, 13.7: a submit that is cancelled before the session has heard of it ends with a drop that the ring knows nothing of.
    It stands behind the cursor that the client came with, and is sent again until a later event was seen."""
    session_id = await served.create()
    await served.run(session_id, "echo before")
    cursor = ResumeFrom(last_event_id=shown(await served.replay(session_id))[-1])
    ticket = await ticket_for(served, session_id)
    async with raw_peer(served) as peer:
        answer = await peer.open(request_of(ticket), token=ticket.token, features=ALL_FEATURES, resume_from=cursor)
        cancel = raw(FrameCancel(), session_id=ticket.session_id, frame_id=1)
        await peer.stream.send_all(submit_packet(1, b"hold", session_id=ticket.session_id) + cancel)
        assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == 1
    async with raw_peer(served) as peer:
        await peer.open(request_of(ticket), token=token_of(answer), features=ALL_FEATURES, resume_from=cursor)
        assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == 1


async def test_wrong_tokens(served: Served) -> None:
    """nnrp-wire 13.7: foreign, of another session, used: resume_rejected."""
    session_id = await served.create()
    first, second = await ticket_for(served, session_id), await ticket_for(served, session_id)
    assert first.session_id != second.session_id
    async with open_nnrp(served.nnrp_url) as connection:
        for wrong in (
            NnrpTicket(b"x" * 24, first.session_id, 2, (4097, 3), 1.0),
            NnrpTicket(first.token, second.session_id, 2, (4097, 3), 1.0),
        ):
            with pytest.raises(NnrpRefused) as refused:
                await attach_session(connection, wrong)
            assert refused.value.code == SessionErrorCode.RESUME_REJECTED
        await attach_session(connection, first)
        await attach_session(connection, second)
    async with open_nnrp(served.nnrp_url) as connection:
        with pytest.raises(NnrpRefused):
            await attach_session(connection, first)


async def test_an_unused_token_expires(tmp_path: Path) -> None:
    """Issue 5: expiresInMs; and only a few of one session wait to be used."""
    async with rest_server("demo", workspace=tmp_path, nnrp_port=0, nnrp_resume_window_ms=300) as served:
        session_id = await served.create()
        ticket = await ticket_for(served, session_id)
        assert ticket.expires_in == 0.3
        assert len(served.harbour.find(session_id).clients) == 2
        await wait_until(lambda: not served.nnrp.service.sessions, 10)
        async with open_nnrp(served.nnrp_url) as connection:
            with pytest.raises(NnrpRefused):
                await attach_session(connection, ticket)
        assert len(served.harbour.find(session_id).clients) == 1


async def test_unused_tokens_are_bounded(served: Served) -> None:
    """Bounded memory: the seventeenth unused token of a session takes the place of the first."""
    session_id = await served.create()
    tickets = [await ticket_for(served, session_id) for _ in range(20)]
    assert len(served.nnrp.service.sessions) == 16
    async with open_nnrp(served.nnrp_url) as connection:
        with pytest.raises(NnrpRefused):
            await attach_session(connection, tickets[3])
        for each in tickets[4:]:
            await attach_session(connection, each)


async def test_cancel_over_rest_ends_the_submit(served: Served) -> None:
    """Issue 5: cancel works on both. REST cancels what NNRP submitted: one drop, cancelled."""
    session_id = await served.create()
    async with attached(served, session_id) as session:
        held = await session.submit(b"hold")
        await anext(held)
        assert (await served.post(f"/session/{session_id}/cancel")).status == 204
        with trio.fail_after(10), pytest.raises(NnrpOperationEnded) as ended:
            await held.result()
        assert ended.value.state is OperationState.CANCELLED
        assert (await session.request(b"echo on")).final


async def test_cancel_over_nnrp_ends_the_prompt(served: Served) -> None:
    """Issue 5: cancel works on both. FRAME_CANCEL of the frame somebody else's prompt has here cancels it in the engine."""
    session_id = await served.create()
    ticket = await ticket_for(served, session_id)
    async with raw_peer(served) as peer:
        await peer.open(request_of(ticket), token=ticket.token, features=ALL_FEATURES)
        prompt_id = await served.submit(session_id, "hold")
        frame_id, _ = ids_of(prompt_id)
        first = await peer.receive(MessageType.RESULT_PUSH)
        assert first.header.frame_id == frame_id
        await peer.send(FrameCancel(), session_id=ticket.session_id, frame_id=frame_id)
        with trio.fail_after(10):
            while (packet := await peer.receive()).kind is not MessageType.RESULT_DROP:
                assert isinstance(packet.metadata, ResultPush)
        assert isinstance(packet.metadata, ResultDrop)
        assert packet.header.frame_id == frame_id
        assert (await served.outcome(session_id, prompt_id))["state"] == "cancelled"


async def test_closing_the_attachment_leaves_the_session(served: Served) -> None:
    """Architecture 1: SESSION_CLOSE ends the attachment and what it submitted; the others go on."""
    session_id = await served.create()
    async with attached(served, session_id) as session, served.events(session_id) as stream:
        held = await session.submit(b"hold")
        await anext(held)
        await session.close()
        ended = (await stream.until("turn_complete"))[-1]
        assert ended.data["stopReason"] == "cancelled"
        assert (await served.run(session_id, "echo still here"))["state"] == "completed"
        await wait_until(lambda: len(served.harbour.find(session_id).clients) == 1)


async def test_closing_the_session_closes_the_attachment(served: Served) -> None:
    """REST-050: DELETE closes for everybody; the NNRP client gets the last event, then SESSION_CLOSE."""
    session_id = await served.create()
    async with attached(served, session_id) as session:
        assert (await served.call("DELETE", f"/session/{session_id}")).status == 204
        with trio.fail_after(10):
            events = [each async for each in session.background]
        assert events[-1].value()["type"] == "session_closed"
        assert session.over
    await wait_until(lambda: not served.nnrp.service.sessions)


async def test_lists_show_nnrp_sessions(served: Served, tmp_path: Path) -> None:
    """Issue 5: an NNRP token session appears in ``GET /workspace/:cwd/sessions`` and ``session/list``; REST can prompt it,
    and its NNRP client sees that."""
    async with open_nnrp(served.nnrp_url) as connection:
        session = await connection.open_session(resumable=True)
        await session.request(b"echo first")
        async with open_daemon_client(f"http://127.0.0.1:{served.port}") as daemon:
            (entry,) = (await daemon.list_sessions(str(tmp_path))).sessions
        async with open_daemon_client(f"http://127.0.0.1:{served.port}", transport="acp-ws") as daemon:
            assert [each.session_id for each in (await daemon.list_sessions(str(tmp_path))).sessions] == [
                entry.session_id
            ]
        assert (await served.post(f"/session/{entry.session_id}/load")).status == 200
        async with served.events(entry.session_id) as stream:
            await served.submit(entry.session_id, "echo second")
            frames = await stream.until("turn_complete")
        events = await until(session, shown(frames)[-1])
        assert "second" in "".join(each.text for each in events)
        assert set(shown(frames)) <= set(ids(events))


async def test_a_session_created_over_acp(served: Served) -> None:
    """Issue 5: also one of /acp, and by the client's helper."""
    async with open_daemon_client(f"http://127.0.0.1:{served.port}", transport="acp-ws") as daemon:
        session_id = (await daemon.create_session()).session_id
    async with (
        open_daemon_client(f"http://127.0.0.1:{served.port}") as daemon,
        open_nnrp(served.nnrp_url) as connection,
    ):
        session = await attach_session(connection, await nnrp_ticket(daemon, session_id))
        assert (await session.request(b"echo hello")).final
        await served.submit(session_id, "echo again")
        said = ""
        with trio.fail_after(10):
            while "again" not in said:
                said += (await anext(session.background)).text


async def test_cut_and_resumed_nothing_is_lost_or_twice(served: Served) -> None:
    """C-003 on two wires: the connection is cut again and again under own and others' prompts; every event comes once."""
    session_id = await served.create()
    streams: list[trio.SocketStream] = []

    async def connect(host: str, port: int) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(host, port)
        streams.append(stream)
        return stream

    options = NnrpOptions(connect=connect)
    async with open_nnrp(served.nnrp_url, options) as connection, served.events(session_id) as stream:
        session = await attach_session(connection, await ticket_for(served, session_id))
        own: list[int] = []
        theirs: list[int] = []

        async def submit(text: bytes) -> None:
            own.extend([each.event_id async for each in await session.submit(text)])

        async def follow() -> None:
            async for each in session.background:
                theirs.append(each.event_id)

        async def cut() -> None:
            for _ in range(6):
                await trio.sleep(0.12)
                await trio.aclose_forcefully(streams[-1])

        async with trio.open_nursery() as follower:
            follower.start_soon(follow)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                for number in range(2):
                    nursery.start_soon(submit, b"slow=4 long=60")
                    await served.submit(session_id, f"slow=4 long={60 + number}")
            frames = await stream.until("turn_complete", count=4)
            mine = next(iter(served.nnrp.service.sessions)).worker._client_id  # type: ignore[union-attr]
            wanted = [each.id for each in frames if each.value.get("originatorClientId") != mine]
            await wait_until(lambda: bool(theirs) and theirs[-1] >= (wanted[-1] or 0), 20)
            follower.cancel_scope.cancel()
        assert connection.reconnects >= 3
        assert theirs[: len(wanted)] == wanted
        assert own == sorted(set(own))
        assert not set(own) & set(theirs)


async def test_a_client_that_does_not_read_costs_its_position_only(tmp_path: Path) -> None:
    """Issue 5: slow readers bounded. What the ring has let go of meanwhile is told, and the rest comes from there on."""
    settings = {"nnrp_port": 0, "event_ring_size": 200, "send_timeout_ms": 60_000}
    async with rest_server("demo", workspace=tmp_path, **settings) as served:
        session_id = await served.create()
        ticket = await ticket_for(served, session_id)
        async with raw_peer(served) as peer:
            await peer.open(request_of(ticket), token=ticket.token, features=ALL_FEATURES)
            await served.run(session_id, "echo " + "x" * 900_000)
            for _ in range(12):
                await served.run(session_id, "echo " + "x" * 900_000)
            last = await served.run(session_id, "long=400")
            assert last["state"] == "completed"
            (link,) = served.nnrp.service.links
            assert link.writer.size < 4_000_000
            head = served.harbour.find(session_id).ring.head
            gap, seen = 0, 0
            while seen < head:
                packet = await peer.receive(seconds=20)
                if isinstance(packet.metadata, Error):
                    gap += 1
                    assert packet.metadata.error_scope is ErrorScope.SESSION
                    assert packet.metadata.error_code == SessionErrorCode.RESUME_REJECTED
                elif packet.kind is MessageType.RESULT_PUSH:
                    (block,) = [frame.value for frame in packet.content.regions.extensions]  # type: ignore[union-attr]
                    assert block.event_id > seen  # type: ignore[union-attr]
                    seen = block.event_id  # type: ignore[union-attr]
            assert gap == 1


async def test_a_gap_at_the_attach(tmp_path: Path) -> None:
    """nnrp-extensions, Resume watermark: a cursor below what the ring holds resumes at the oldest event, and says so."""
    async with rest_server("demo", workspace=tmp_path, nnrp_port=0, event_ring_size=100) as served:
        session_id = await served.create()
        await served.run(session_id, "long=150")
        ring = served.harbour.find(session_id).ring
        async with attached(served, session_id, 3) as session:
            with pytest.raises(NnrpResultsLost):
                await anext(session.background)
            assert ids(await until(session, ring.head)) == list(range(ring.waterline, ring.head + 1))


async def test_resume_from_names_the_first_event_available(tmp_path: Path) -> None:
    """The same, packet by packet: ERROR, scope session, code 0x00010006, the id in its text."""
    async with rest_server("demo", workspace=tmp_path, nnrp_port=0, event_ring_size=100) as served:
        session_id = await served.create()
        await served.run(session_id, "long=150")
        ticket = await ticket_for(served, session_id)
        async with raw_peer(served) as peer:
            await peer.open(
                request_of(ticket), token=ticket.token, features=ALL_FEATURES, resume_from=ResumeFrom(last_event_id=3)
            )
            packet = await peer.receive(MessageType.ERROR)
            assert str(served.harbour.find(session_id).ring.waterline).encode() in packet.body


async def test_the_token_of_the_server_is_needed(tmp_path: Path) -> None:
    """nnrp-extensions, Authentication: resume under another principal is resume_rejected; here there is none at all."""
    async with rest_server("demo", workspace=tmp_path, nnrp_port=0, token="secret") as served:
        auth = {"Authorization": "Bearer secret"}
        assert (await served.post("/session/x/nnrp-token")).status == 401
        reply = await served.post("/session", {"sessionScope": "thread"}, **auth)
        session_id = reply.json()["sessionId"]
        ticket = NnrpTicket.of((await served.post(f"/session/{session_id}/nnrp-token", **auth)).json())
        async with open_nnrp(served.nnrp_url, NnrpOptions(token="secret")) as connection:
            session = await attach_session(connection, ticket)
            assert (await session.request(b"echo x")).final


async def test_lost_on_tcp_resumed_on_websocket(served: Served) -> None:
    """Issue 5: a token is good on any listener: attached over TCP, lost, and taken up again on the WebSocket of the HTTP port."""
    session_id = await served.create()
    ticket = await ticket_for(served, session_id)
    async with raw_peer(served) as peer:
        answer = await peer.open(request_of(ticket), token=ticket.token, features=ALL_FEATURES)
        again = token_of(answer)
    await served.run(session_id, "long=5")
    head = served.harbour.find(session_id).ring.head
    renewed = NnrpTicket(again, ticket.session_id, ticket.profile_id, ticket.schema, ticket.expires_in)
    async with open_nnrp(f"ws://127.0.0.1:{served.port}/nnrp") as connection:
        session = await attach_session(connection, renewed, last_event_id=1)
        assert ids(await until(session, head)) == list(range(2, head + 1))
