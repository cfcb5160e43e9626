"""What was not granted is not there (nnrp-extensions, Negotiation), feature by feature, as a peer by hand sees it."""

from __future__ import annotations

import pytest

from protocol.nnrp.bodies import ControlBody
from protocol.nnrp.enums import (
    CacheAckStatus,
    CancelScopeKind,
    ErrorCode,
    ExtType,
    MessageType,
    ObjectKind,
    OperationFeatures,
    SessionFlags,
    SessionStatus,
)
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES, ControlExtension, find_extension, pack_extensions
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.messages import CacheAck, CachePut, Error, FrameCancel, SessionOpenAck
from protocol.nnrp.packet import Packet
from protocol.nnrp.vendor import CancelScope, ObjectMeta, OperationExtensions, ResumeFrom, SubmitContext
from server.nnrp import ServingPolicy
from tests.support.nnrp import OPEN, raw, serving_nnrp, text_of, token_of

LONG = b"sleep=60000;"
_F = OperationFeatures


def granted(answer: Packet) -> OperationExtensions | None:
    content = answer.content
    assert isinstance(content, ControlBody)
    value = find_extension(content.extensions, ExtType.OPERATION_EXTENSIONS)
    assert value is None or isinstance(value, OperationExtensions)
    return value


@pytest.mark.parametrize(
    "offer", [NO_FEATURES, _F.SUBMIT_CONTEXT, _F.OPERATION_STATE | _F.CACHE_SEMANTICS, ALL_FEATURES]
)
@pytest.mark.parametrize("supported", [0, 12, 31])
async def test_the_grant_is_the_offer_as_far_as_it_is_supported(offer: OperationFeatures, supported: int) -> None:
    """Negotiation: grant = offer ∩ supported; nothing of it, no entry."""
    async with serving_nnrp(ServingPolicy(opening=OpenPolicy(features=supported))) as served, served.peer() as peer:
        grant = granted(await peer.open(features=offer))
        expected = OperationFeatures(int(offer) & supported)
        assert (NO_FEATURES if grant is None else grant.features) == expected
        assert (grant is None) == (expected == NO_FEATURES)


@pytest.mark.parametrize(
    "spoil",
    [(0, b"\x02\x00"), (2, b"\x20\x00"), (4, b"\x01\x00\x00\x00")],
    ids=["another version", "an unknown feature", "reserved"],
)
async def test_an_offer_that_is_malformed(spoil: tuple[int, bytes]) -> None:
    """Negotiation: version 1, mask 0x001f, reserved 0; unknown bits are rejected. The session is refused with malformed_body, and
    the connection goes on."""
    place, value = spoil
    entry = bytearray(
        pack_extensions([ControlExtension.of(ExtType.OPERATION_EXTENSIONS, OperationExtensions(features=ALL_FEATURES))])
    )
    entry[8 + place : 8 + place + len(value)] = value
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.stream.send_all(raw(OPEN.replace(session_extension_bytes=len(entry)), bytes(entry)))
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert (error.error_code, error.is_fatal) == (ErrorCode.MALFORMED_BODY, 0)
        await peer.open()
        await peer.submit(1, b"fine")
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"fine"


async def test_a_submit_context_is_skipped() -> None:
    """Submit: without the grant it is an unknown extension that is not critical; preview3's plain rule holds, operation_id =
    frame_id, and its deadline and parent are nobody's."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=_F.OPERATION_STATE)
        await peer.submit(1, b"sleep=80;one", context=SubmitContext(900, 901, deadline_ms=1))
        await peer.submit(2, b"two", context=SubmitContext(900, supersedes_operation_id=1))
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"two"
        assert text_of(await peer.receive(MessageType.RESULT_PUSH)) == b"sleep=80;one"
        assert served.service.violations == 0


@pytest.mark.parametrize("features", [NO_FEATURES, ALL_FEATURES & ~_F.CANCEL_SCOPE])
async def test_a_cancel_scope_is_skipped(features: OperationFeatures) -> None:
    """Cancel: without the grant FRAME_CANCEL means its frame, whatever its body says (nnrp-wire 10.4)."""
    body = pack_extensions([ControlExtension.of(ExtType.CANCEL_SCOPE, CancelScope(CancelScopeKind.SESSION))])
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=features)
        for number in (1, 2):
            await peer.submit(number, LONG if number == 1 else b"sleep=150;", context=None)
        await peer.send(FrameCancel(), body, session_id=1, frame_id=1)
        assert (await peer.receive(MessageType.RESULT_DROP)).header.frame_id == 1
        assert (await peer.receive(MessageType.RESULT_PUSH)).header.frame_id == 2


async def test_states_are_not_told() -> None:
    """State: no operation_state on results, none in the body of a drop, no message for a change without payload."""
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(features=ALL_FEATURES & ~_F.OPERATION_STATE)
        await peer.submit(1, b"tool;x")
        result = await peer.receive(MessageType.RESULT_PUSH)
        assert text_of(result) == b"tool;x"
        assert not result.content.regions.extensions  # type: ignore[union-attr]
        await peer.submit(2, b"fail;")
        assert (await peer.receive(MessageType.RESULT_DROP)).body == b""


@pytest.mark.parametrize("features", [NO_FEATURES, _F.OPERATION_STATE])
async def test_a_cursor_that_was_not_granted_does_not_count(features: OperationFeatures) -> None:
    """Negotiation: resume_from rides with the offer and counts only if resume_watermark is granted; else everything comes."""
    resumable = OPEN.replace(requested_session_id=5, session_flags=SessionFlags.ALLOW_RESUME)
    async with serving_nnrp() as served:
        async with served.peer() as peer:
            token = token_of(await peer.open(resumable, features=features))
            for number in (1, 2):
                await peer.submit(number, b"%d" % number, session_id=5)
                await peer.receive(MessageType.RESULT_PUSH)
        await served.wait_until(lambda: not served.service.links)
        async with served.peer() as peer:
            answer = await peer.open(resumable, token=token, features=features, resume_from=ResumeFrom(0, 2))
            assert isinstance(answer.metadata, SessionOpenAck)
            assert answer.metadata.session_status is SessionStatus.RESUMED
            assert [text_of(await peer.receive(MessageType.RESULT_PUSH)) for _ in range(2)] == [b"1", b"2"]
            await peer.nothing_comes()


async def test_an_object_without_semantics_is_its_bytes() -> None:
    """Cache objects: without cache_semantics body_len = object_bytes (nnrp-wire 5), so an object_meta behind them is a length
    that does not match; and nothing of leases is answered."""
    meta = pack_extensions([ControlExtension.of(ExtType.OBJECT_META, ObjectMeta(7, 1))])
    flags = SessionFlags.ALLOW_CACHE_LEASES
    put = CachePut(cache_key_lo=1, object_kind=ObjectKind.PROMPT_SEGMENT, object_bytes=3)
    async with serving_nnrp() as served, served.peer() as peer:
        await peer.open(OPEN.replace(session_flags=flags), features=ALL_FEATURES & ~_F.CACHE_SEMANTICS)
        await peer.stream.send_all(raw(put, b"abc" + meta, session_id=1))
        error = (await peer.receive(MessageType.ERROR)).metadata
        assert isinstance(error, Error)
        assert error.error_code == ErrorCode.MALFORMED_BODY
        await peer.send(put, b"abc", session_id=1)
        answer = await peer.receive(MessageType.CACHE_ACK)
        assert isinstance(answer.metadata, CacheAck)
        assert (answer.metadata.status, answer.body) == (CacheAckStatus.ACCEPTED, b"")
