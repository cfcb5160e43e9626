"""Peers nobody here wrote: the nnrp-py client over TCP, and what recorded nnrp-rs clients sent, byte for byte."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nnrp.adapters.quic import create_quic_client_configuration
from nnrp.client.transport import ClientSession, SubmitRequest, TypedPayload, connect_client_control
from nnrp.core import (
    InputProfile,
    SessionMigrateMetadata,
    TensorDType,
    TensorSectionData,
    TileIndexMode,
    TransportId,
)
from nnrp.core import (
    MessageType as TheirType,
)
from nnrp.core.packet import build_frame_cancel_packet, build_ping_packet
from nnrp.tools.smoke import (
    build_smoke_close_packet,
    run_quic_smoke_client,
    run_quic_transport_probe,
    run_tcp_smoke_client,
    run_tcp_transport_probe,
)

from protocol.nnrp.enums import MessageType, SessionErrorCode, SessionStatus
from protocol.nnrp.messages import SessionOpenAck
from protocol.nnrp.packet import Packet
from tests.support.nnrp import Peer, serving_nnrp
from tests.support.nnrp_transports import in_asyncio, serving_everywhere

CAPTURES = Path(__file__).parents[2] / "vectors" / "nnrp" / "captures"


def sections() -> tuple[TensorSectionData, ...]:
    return (
        TensorSectionData(
            role_id=1, default_codec_id=0, dtype_id=TensorDType.UINT8, tile_payloads=(b"aa", b"bb", b"cc")
        ),
    )


def tensor(frame_id: int, mode: TileIndexMode = TileIndexMode.RAW_U16, tiles: tuple[int, ...] = (0, 4, 9)) -> Any:
    return SubmitRequest(
        frame_id=frame_id,
        src_width=640,
        src_height=360,
        tile_width=32,
        tile_height=32,
        tile_ids=tiles,
        sections=sections(),
        camera_block=b"camera!!",
        input_profile=InputProfile.DENSE_LUMA_FRAME,
        tile_index_mode=mode,
        tile_base_id=tiles[0] if mode is TileIndexMode.DENSE_RANGE else 0,
    )


async def nnrp_py(
    host: str, port: int, transport: TransportId = TransportId.TCP, ca_file: str | None = None
) -> dict[str, Any]:
    """What an nnrp-py client does in its session; what it saw."""
    seen: dict[str, Any] = {}
    async with connect_client_control(
        host,
        tcp_port=port,
        quic_port=port,
        quic_configuration=create_quic_client_configuration(cafile=ca_file),
        requested_session_id=9,
        forced_transport_id=transport,
        requested_model="m",
    ) as control:
        session = ClientSession(control=control, connection=control.connection)
        seen["session"] = session.session_id
        await session.send_submit(tensor(101))
        result = await session.receive_result(timeout=5)
        seen["raw_u16"] = (result.tile_ids, bytes(next(iter(result.sections)).payload))
        await session.send_submit(tensor(102, TileIndexMode.DENSE_RANGE, (4, 5, 6)))
        seen["dense"] = (await session.receive_result(timeout=5)).tile_ids
        await session.send_submit(
            SubmitRequest(frame_id=103, typed_payloads=(TypedPayload.token_chunk(b"hello", profile_id=2),))
        )
        seen["token"] = (await session.receive_result(timeout=5)).token_chunks
        await session.send_submit(
            SubmitRequest(frame_id=104, typed_payloads=(TypedPayload.token_chunk(b"sleep=60000;", profile_id=2),))
        )
        await control.connection.send_control_packet(
            build_frame_cancel_packet(session_id=session.session_id, frame_id=104)
        )
        dropped = await session.receive_result(timeout=5)
        seen["cancelled"] = (dropped.is_drop, dropped.packet.header.frame_id)
        await control.connection.send_control_packet(build_ping_packet(session_id=session.session_id, trace_id=77))
        pong = await control.connection.receive_control_packet(timeout=5)
        seen["pong"] = (pong.header.msg_type is TheirType.PONG, pong.header.trace_id)
        await control.send_session_migrate(
            SessionMigrateMetadata(
                old_transport_id=transport,
                new_transport_id=TransportId.TCP if transport is TransportId.QUIC else TransportId.QUIC,
                last_result_frame_id=104,
                client_migrate_ts_us=time.monotonic_ns() // 1000,
            )
        )
        _, ack = await control.receive_session_migrate_ack(timeout=5)
        seen["migrated"] = (ack.accept_code, ack.resume_from_frame_id)
        await control.connection.send_control_packet(
            build_smoke_close_packet(session_id=session.session_id, reason="done")
        )
    return seen


SEEN = {
    "session": 9,
    "raw_u16": ((0, 4, 9), b"aabbcc"),
    "dense": (4, 5, 6),
    "token": (b"hello",),
    "cancelled": (True, 104),
    "pong": (True, 77),
    "migrated": (0, 105),
}


async def test_the_nnrp_py_client() -> None:
    """Issue 5, Done when: hello, tensor submit, results, typed payloads, cancel, ping, migrate and close over TCP."""
    async with serving_nnrp() as served:
        seen = await in_asyncio(nnrp_py, served.host, served.port)
        await served.wait_until(lambda: not served.service.links)
    assert seen == SEEN
    assert served.service.violations == 0


@pytest.mark.parametrize("library", ["qh3", "aioquic"])
async def test_the_nnrp_py_client_over_quic(tmp_path: Path, library: str) -> None:
    """Issue 5, Done when: the same over QUIC, whichever library serves it. Its submits come on streams of their own, and it
    reads results only where they are not on its control stream (nnrp-wire 2.4)."""
    async with serving_everywhere(tmp_path, library=library) as place:
        host, port = place.host_and_port("quic")
        seen = await in_asyncio(nnrp_py, host, port, TransportId.QUIC, str(place.certificate.authority))
        await place.wait_until(lambda: not place.service.links)
    assert seen == SEEN
    assert place.service.violations == 0


async def test_the_nnrp_py_smoke_client_over_quic(tmp_path: Path) -> None:
    """Its own smoke test and probe, as they are shipped."""
    async with serving_everywhere(tmp_path) as place:
        host, port = place.host_and_port("quic")
        configuration = create_quic_client_configuration(cafile=str(place.certificate.authority))
        transcript = await in_asyncio(partial(run_quic_smoke_client, configuration=configuration), host, port)
        result = await in_asyncio(partial(run_quic_transport_probe, configuration=configuration), host, port)
    assert (transcript.submit_tile_count, transcript.result_tile_count) == (3, 3)
    assert result.probe_payload_bytes == 32768


async def nnrp_py_migrates(host: str, ports: dict[str, int], ca_file: str, *, first: TransportId) -> list[Any]:
    """nnrp-py's way to move: SESSION_MIGRATE as the first packet of the new transport."""
    configuration = create_quic_client_configuration(cafile=ca_file)
    second = TransportId.TCP if first is TransportId.QUIC else TransportId.QUIC
    where: dict[str, Any] = {
        "tcp_port": ports["tcp"],
        "quic_port": ports["quic"],
        "quic_configuration": configuration,
    }
    seen: list[Any] = []
    async with connect_client_control(
        host, **where, requested_session_id=9, forced_transport_id=first, requested_model="m"
    ) as control:
        session = ClientSession(control=control, connection=control.connection)
        await session.send_submit(tensor(101))
        seen.append((await session.receive_result(timeout=10)).tile_ids)
        async with session.migrate_session(
            host, **where, forced_transport_id=second, last_result_frame_id=101
        ) as outcome:
            ack = outcome.ack_metadata
            seen.append((ack.accept_code, ack.resume_from_frame_id))
            await outcome.session.send_submit(tensor(ack.resume_from_frame_id))
            seen.append((await outcome.session.receive_result(timeout=10)).tile_ids)
    return seen


@pytest.mark.parametrize("first", [TransportId.TCP, TransportId.QUIC])
async def test_the_nnrp_py_client_migrates(tmp_path: Path, first: TransportId) -> None:
    """nnrp-wire 13.9 item 2: from TCP to QUIC and back, without a hello on the new transport."""
    async with serving_everywhere(tmp_path) as place:
        ports = {each: place.host_and_port(each)[1] for each in ("tcp", "quic")}
        seen = await in_asyncio(
            partial(nnrp_py_migrates, first=first), "127.0.0.1", ports, str(place.certificate.authority)
        )
        await place.wait_until(lambda: not place.service.links)
    assert seen == [(0, 4, 9), (0, 102), (0, 4, 9)]
    assert place.service.statistics().sessions == 0


async def test_the_nnrp_py_smoke_client() -> None:
    """Its own smoke test for servers, as it is shipped."""
    async with serving_nnrp() as served:
        transcript = await in_asyncio(run_tcp_smoke_client, served.host, served.port)
    assert (transcript.submit_tile_count, transcript.result_tile_count) == (3, 3)


async def test_the_nnrp_py_probe() -> None:
    """nnrp-wire 2.7: a probe on a fresh connection, without hello, is answered."""
    async with serving_nnrp() as served:
        result = await in_asyncio(run_tcp_transport_probe, served.host, served.port)
    assert result.probe_payload_bytes == 32768


READ_POINTS = {
    "SESSION_OPEN": {MessageType.SESSION_OPEN_ACK},
    "FRAME_SUBMIT": {MessageType.RESULT_PUSH, MessageType.RESULT_DROP, MessageType.FLOW_UPDATE},
    "SESSION_PATCH": {MessageType.SESSION_PATCH_ACK},
    "SESSION_MIGRATE": {MessageType.SESSION_MIGRATE_ACK},
    "SESSION_CLOSE": {MessageType.SESSION_CLOSE_ACK},
    "FRAME_CANCEL": {MessageType.RESULT_DROP, MessageType.RESULT_PUSH},
}
"""What an nnrp-rs client accepts after each thing it sends; anything else is a hard error to it (nnrp-wire 2.6)."""


def streams(name: str) -> list[list[dict[str, Any]]]:
    """What each connection's client sent, in order, each with whether the recorded server answered."""
    packets = json.loads((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))["packets"]
    numbers = sorted({each.get("conn", 0) for each in packets})
    return [[each for each in packets if each.get("conn", 0) == number and each.get("hex")] for number in numbers]


@pytest.mark.parametrize(
    "name",
    [
        "rs-tcp-open-token-result-close",
        "rs-tcp-flow-update",
        "rs-tcp-cancel-drop",
        "rs-tcp-patch-migrate",
        "rs-tcp-close-abort",
        "rs-tcp-open-rejected",
        "rs-tcp-open-duplicate-id",
        "rs-tcp-resume-accepted",
        "rs-tcp-resume-rejected",
    ],
)
async def test_recorded_nnrp_rs_clients_get_answers_they_accept(name: str) -> None:
    """Issue 5, Done when. Exception, as said there: a resume without token bytes is answered resume_rejected."""
    async with serving_nnrp() as served:
        for number, packets in enumerate(streams(name)):
            async with served.peer(hello=False) as peer:
                await replay(peer, packets, resumes=name == "rs-tcp-resume-accepted" and number > 0)


async def replay(peer: Peer, packets: list[dict[str, Any]], *, resumes: bool) -> None:
    cancelled = any(each["type"] == "FRAME_CANCEL" for each in packets)
    for each in packets:
        if each["dir"] != "c2s":
            continue
        await peer.stream.send_all(bytes.fromhex(each["hex"]))
        if each["type"] not in READ_POINTS or (each["type"] == "FRAME_SUBMIT" and cancelled):
            continue
        answer = await next_read(peer, READ_POINTS[each["type"]])
        if answer.kind is MessageType.SESSION_OPEN_ACK:
            ack = answer.metadata
            assert isinstance(ack, SessionOpenAck)
            if resumes:
                assert ack.session_error_code == SessionErrorCode.RESUME_REJECTED
                return
            if ack.session_status is not SessionStatus.OPENED:
                return
    await peer.nothing_comes(0.05)


async def next_read(peer: Peer, accepted: set[MessageType]) -> Packet:
    answer = await peer.receive()
    assert answer.kind in accepted
    return answer
