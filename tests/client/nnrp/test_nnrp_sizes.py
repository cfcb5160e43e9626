"""What a server accepts, as the client keeps to it: max_body_bytes, beyond which it would end the connection (nnrp-wire 7.2, 2.1
item 6, 15), and what a default nnrp-rs server refuses (13.2)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from client.nnrp import NnrpOptions, NnrpResultsLost, NnrpSession, ObjectVersion, SubmitOptions, open_nnrp
from protocol.nnrp.enums import ExtType, MessageType, PayloadKind, SessionFlagsAck, SessionStatus
from protocol.nnrp.errors import NnrpLocalError, Outcome
from protocol.nnrp.extensions import ControlExtension, pack_extensions
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.messages import ResultPush, SessionOpen
from protocol.nnrp.packet import decode_packet
from protocol.nnrp.plain import BODY_BYTES
from server.nnrp import ServingPolicy
from tests.client.nnrp.test_nnrp_bad_servers import HELLO_ACK, OPENED, Server
from tests.client.nnrp.test_nnrp_retry import RESUMABLE, connected
from tests.support.nnrp import raw, serving_nnrp

LARGEST = 10_000
DONE = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
SMALL = ServingPolicy(hello=HelloPolicy(max_body_bytes=LARGEST))


async def submits(session: NnrpSession, size: int, options: SubmitOptions) -> bytes:
    return (await (await session.submit(bytes(size), options=options)).result()).data


@pytest.mark.parametrize("traced", [False, True], ids=["plain", "with a submit_context"])
async def test_a_submit_that_the_server_would_not_read(traced: bool) -> None:
    """It is refused here, before anything is sent; the largest that fits is answered, and credit is as it was."""
    options = SubmitOptions(group_id=9) if traced else SubmitOptions()
    around = BODY_BYTES + (56 if traced else 0)
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(resumable=True)
        with pytest.raises(NnrpLocalError, match="of this size") as refused:
            await session.submit(bytes(LARGEST - around + 1), options=options)
        assert refused.value.outcome is Outcome.LIMIT_EXCEEDED
        assert session.in_flight == 0
        size = LARGEST - around
        assert await submits(session, size, options) == bytes(size)
        assert served.service.violations == 0
        assert connection.reconnects == 0


async def test_a_submit_that_is_refused_here_replaces_nothing() -> None:
    """nnrp-extensions, Submit: what it was to supersede goes on at the server, and so it does here."""
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        old = await session.submit(b"sleep=50;old")
        with pytest.raises(NnrpLocalError, match="of this size"):
            await session.submit(bytes(LARGEST), options=SubmitOptions(supersedes=old.operation_id))
        assert session.in_flight == 1
        assert (await old.result()).data == b"sleep=50;old"


async def test_what_the_next_server_would_not_read_is_not_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    """13.7: the session comes back at a server that accepts less. It would end the connection for the submit, as often as it is sent;
    the operation is over instead, cancelled where it may have arrived, and the others go on."""
    wide = RESUMABLE.replace(granted_operation_credit=8, max_in_flight_operations=8)
    seen: list[tuple[MessageType, int]] = []

    async def first(server: Server) -> None:
        await server.greet()
        await server.open(wide, b"abc")
        for _ in range(3):
            await server.expect(MessageType.FRAME_SUBMIT)
        await server.expect(MessageType.FRAME_CANCEL)

    async def next_one(server: Server) -> None:
        await server.expect(MessageType.CLIENT_HELLO)
        await server.stream.send_all(raw(HELLO_ACK.replace(max_body_bytes=LARGEST)))
        await server.open(wide.replace(session_status=SessionStatus.RESUMED), b"def")
        while True:
            header = await server.next()
            if header.frame_id:
                seen.append((header.msg_type, header.frame_id))
            if header.msg_type is MessageType.FRAME_SUBMIT:
                await server.stream.send_all(raw(DONE, session_id=1, frame_id=header.frame_id))

    async with connected([first, next_one]) as connection:
        session = await connection.open_session(resumable=True)
        large, cancelled = await session.submit(bytes(LARGEST)), await session.submit(bytes(LARGEST))
        small = await session.submit(b"small")
        cancelled.cancel()
        with trio.fail_after(10):
            for each in (large, cancelled):
                with pytest.raises(NnrpResultsLost, match="of this size"):
                    await each.result()
            assert (await small.result()).final
            assert (await session.request(b"more")).final
        assert connection.reconnects == 1
        submit, cancel = MessageType.FRAME_SUBMIT, MessageType.FRAME_CANCEL
        assert sorted(seen) == sorted([(cancel, 1), (cancel, 2), (submit, 3), (submit, 4)])


async def test_an_object_and_what_is_said_of_it_that_the_server_would_not_read() -> None:
    """7.2 counts the whole body: the object, and the block behind it that names its version."""
    version = ObjectVersion(object_id=7, version=1)
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        block = len(pack_extensions([ControlExtension.of(ExtType.OBJECT_META, version.entry())]))
        with pytest.raises(NnrpLocalError, match="of this size"):
            await session.cache.put((0, 1), bytes(LARGEST - block + 1), version=version)
        assert (await session.cache.put((0, 1), bytes(LARGEST - block), version=version)).version == 1
        assert served.service.violations == 0
        assert connection.reconnects == 0


async def test_an_object_that_the_server_would_not_read() -> None:
    async with serving_nnrp(SMALL) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpLocalError, match="of this size"):
            await session.cache.put((0, 1), bytes(LARGEST + 1))
        assert (await session.request(b"x", kind=PayloadKind.TOKEN_CHUNK)).data == b"x"
        assert served.service.violations == 0


@pytest.mark.parametrize(("wanted", "asked"), [(None, 4), (2, 2), (9, 9)])
async def test_what_a_default_nnrp_rs_server_is_asked_for(
    wanted: int | None, asked: int, autojump_clock: trio.testing.MockClock
) -> None:
    """13.2: such a server refuses more than 4 in flight where ours would lower it; it knows profile 2 with schema 0x1001 v3, and
    parses no extension."""
    requests: list[SessionOpen] = []

    async def script(server: Server) -> None:
        packet = decode_packet(bytes(await server.stream.receive_some(65_536)))
        assert isinstance(packet.metadata, SessionOpen)
        requests.append(packet.metadata)
        await server.stream.send_all(raw(OPENED.replace(session_flags_ack=SessionFlagsAck(0)), session_id=1))
        await server.rest()

    async with connected([script], NnrpOptions(dialect="nnrp-rs", reconnect=None)) as connection:
        await connection.open_session(max_in_flight=wanted)
    (request,) = requests
    assert request.max_in_flight_operations == asked
    assert (request.profile_id, request.schema_id, request.schema_version) == (2, 0x1001, 3)
    assert (request.requested_session_id, request.session_extension_bytes) == (1, 0)
