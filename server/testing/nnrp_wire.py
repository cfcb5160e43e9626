"""Looking at NNRP's bytes: what the server sent on each connection, packet by packet, as far as the cut let it."""

from __future__ import annotations

from protocol.nnrp.bodies import ControlBody, DataBody
from protocol.nnrp.enums import ErrorCode, HeaderFlags, MessageType, OperationState, SessionStatus
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import ALL_FEATURES
from protocol.nnrp.messages import Error, SessionOpen, SessionOpenAck
from protocol.nnrp.packet import Packet
from protocol.nnrp.splitter import Splitter
from protocol.nnrp.vendor import OperationStateBlock, ResumeFrom
from server.testing.oracle import Findings
from server.testing.wire import Recorder

__all__ = ["check_nnrp_wire"]


def check_nnrp_wire(findings: Findings, recorder: Recorder) -> int:
    """On every connection: one terminal message per operation, events in order and none twice, none the client had said it
    has, no submit beyond the credit (but of those sent again: how many of them the other end has had cannot be known), no message
    the other side could not read. Returns how many results were looked at."""
    looked = 0
    for number, down in recorder.down.items():
        up = _packets(findings, number, bytes(recorder.up.get(number, b"")), "up")
        looked += _check_down(findings, number, bytes(down), _cursors(up), _sent_again(up))
    return looked


def _packets(findings: Findings, number: int, data: bytes, way: str) -> list[Packet]:
    splitter, found = Splitter(), []
    splitter.receive_data(data)
    try:
        for raw in splitter.packets():
            found.append(raw.decode(strict=False, granted=ALL_FEATURES))
    except NnrpError as error:
        findings.append(f"connection {number}, {way}: {error}")
    return found


def _sent_again(up: list[Packet]) -> set[tuple[int, int]]:
    """Session and frame of the submits that a resume brought for the second time."""
    return {
        (packet.header.session_id, packet.header.frame_id)
        for packet in up
        if packet.kind is MessageType.FRAME_SUBMIT and packet.header.flags & HeaderFlags.RETRANSMIT
    }


def _cursors(up: list[Packet]) -> dict[int, int]:
    """The last event the client said it has, by session."""
    found = {}
    for packet in up:
        if isinstance(packet.metadata, SessionOpen) and isinstance(packet.content, ControlBody):
            for each in packet.content.extensions:
                if isinstance(each.value, ResumeFrom):
                    found[packet.metadata.requested_session_id] = each.value.last_event_id
    return found


def _check_down(
    findings: Findings, number: int, down: bytes, cursors: dict[int, int], sent_again: set[tuple[int, int]]
) -> int:
    last = dict(cursors)
    ended: set[tuple[int, int]] = set()
    looked = 0
    for packet in _packets(findings, number, down, "down"):
        session_id, frame_id = packet.header.session_id, packet.header.frame_id
        if isinstance(packet.metadata, Error):
            code = packet.metadata.error_code
            findings.expect(
                code != ErrorCode.LIMIT_EXCEEDED or (session_id, frame_id) in sent_again,
                f"connection {number}: the client went beyond its credit",
            )
            findings.expect(
                code not in (ErrorCode.MALFORMED_BODY, ErrorCode.MALFORMED_HEADER),
                f"connection {number}: the server could not read the client: {code:#x}",
            )
        if isinstance(packet.metadata, SessionOpenAck) and packet.metadata.session_status is SessionStatus.OPENED:
            # The id of a closed session is given to another.
            last.pop(packet.metadata.session_id, None)
            ended = {each for each in ended if each[0] != packet.metadata.session_id}
        if packet.kind not in (MessageType.RESULT_PUSH, MessageType.RESULT_DROP):
            continue
        looked += 1
        block = _state_block(packet)
        findings.expect(block is not None, f"connection {number}: a result does not say its operation's state")
        if block is None:
            continue
        if block.operation_state >= OperationState.SUPERSEDED:
            findings.expect(
                (session_id, frame_id) not in ended,
                f"connection {number}, session {session_id}: frame {frame_id} ended twice",
            )
            ended.add((session_id, frame_id))
        if block.event_id:
            before = last.get(session_id, 0)
            findings.expect(
                block.event_id > before,
                f"connection {number}, session {session_id}: event {block.event_id} was sent after {before}",
            )
            last[session_id] = max(before, block.event_id)
    return looked


def _state_block(packet: Packet) -> OperationStateBlock | None:
    content = packet.content
    values: list[object]
    if isinstance(content, DataBody):
        values = [each.value for each in content.regions.extensions]
    else:
        values = [each.value for each in content.extensions] if isinstance(content, ControlBody) else []
    return next((each for each in values if isinstance(each, OperationStateBlock)), None)
