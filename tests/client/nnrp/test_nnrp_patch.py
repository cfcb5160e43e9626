"""SESSION_PATCH from the client's side (nnrp-wire 7.3, 7.4, 13.1, 13.6): what it changes, what it does not, and every way in
which it may go unanswered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from client.nnrp import (
    NnrpConnectionLost,
    NnrpOptions,
    NnrpPatchRefused,
    NnrpSession,
    NnrpSessionOver,
    open_nnrp,
)
from protocol.nnrp.enums import (
    AckStatus,
    BackpressureLevel,
    MessageType,
    PatchMask,
    PatchRejectReason,
    UpdateReason,
)
from protocol.nnrp.errors import NnrpLocalError
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.patching import PatchPolicy, SessionSettings
from protocol.nnrp.messages import TensorProfilePatchBlock
from server.nnrp.policy import ServingPolicy
from tests.client.nnrp.test_nnrp_bad_servers import PATIENT, Server, connected
from tests.support.nnrp import serving_nnrp
from tests.support.nnrp_transports import TRANSPORTS, serving_everywhere


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_patch_changes_what_it_names_and_nothing_else(tmp_path: Path, transport: str) -> None:
    """7.3: fields whose bit is clear are ignored; the answer carries everything in force (7.4)."""
    async with serving_everywhere(tmp_path) as place, open_nnrp(place.urls[transport], place.options) as connection:
        first, second = await connection.open_session(), await connection.open_session()
        ack = await first.patch(quality_tier=4, degrade_policy=2, preferred_codec_bitmap=5, profile_patch=b"opaque")
        assert (ack.ack_status, ack.reject_reason) == (AckStatus.ACCEPTED, PatchRejectReason.NONE)
        assert int(ack.applied_patch_mask) == 0b1010110
        wanted = SessionSettings(quality_tier=4, degrade_policy=2, codec_bitmap=5, profile_patch=b"opaque")
        assert first.settings == wanted
        assert (await first.patch(target_cadence_x100=6000)).effective_quality_tier == 4
        assert first.settings == attrs.evolve(wanted, target_cadence_x100=6000)
        assert second.settings == SessionSettings(), "sessions share no state"
        machines = {each.machine.session_id: each.machine.settings for each in place.service.sessions}
        assert machines[first.session_id] == first.settings
        assert (await first.request(b"on")).data == b"on"


async def test_a_patch_that_is_applied_in_part() -> None:
    """7.4 partially_applied: the masks say which, the reason why not the rest."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        ack = await session.patch(quality_tier=1, degrade_policy=9)
        assert (ack.ack_status, ack.reject_reason) == (
            AckStatus.PARTIALLY_APPLIED,
            PatchRejectReason.UNSUPPORTED_STRATEGY,
        )
        assert (ack.applied_patch_mask, ack.rejected_patch_mask) == (PatchMask.QUALITY_TIER, PatchMask.DEGRADE_POLICY)
        assert session.settings == SessionSettings(quality_tier=1)


REFUSED: dict[str, tuple[PatchPolicy, dict[str, Any], PatchRejectReason]] = {
    "another profile": (PatchPolicy(), {"profile_id": 1, "quality_tier": 3}, PatchRejectReason.UNSUPPORTED_FIELD),
    "a field that is fixed": (PatchPolicy(mask=0x7D), {"quality_tier": 3}, PatchRejectReason.UNSUPPORTED_FIELD),
    "no lane": (PatchPolicy(), {"active_lane_mask": 0}, PatchRejectReason.INVALID_LANE_MASK),
    "a lane there is not": (PatchPolicy(), {"active_lane_mask": 2}, PatchRejectReason.INVALID_LANE_MASK),
    "a codec there is not": (
        PatchPolicy(codec_bitmap=3),
        {"preferred_codec_bitmap": 4},
        PatchRejectReason.INVALID_RANGE,
    ),
    "too often": (PatchPolicy(retry_after_ms=50), {"quality_tier": 3}, PatchRejectReason.RATE_LIMITED),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_patch_that_is_refused(case: str) -> None:
    """7.4 rejected: nothing has changed, the caller learns why and when to try again, and the session goes on."""
    policy, wanted, reason = REFUSED[case]
    async with serving_nnrp(ServingPolicy(patching=policy)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpPatchRefused, match=reason.name.lower()) as refused:
            await session.patch(**wanted)
        answer = refused.value.answer
        assert (answer.reject_reason, answer.retry_after_ms) == (reason, policy.retry_after_ms)
        assert session.settings == SessionSettings()
        assert (await session.request(b"on")).data == b"on"
        assert served.service.violations == 0


async def test_the_hello_bounds_what_a_patch_may_choose() -> None:
    """7.2, 7.3: no codec and no compression that the hello has not agreed on."""
    policy = ServingPolicy(hello=HelloPolicy(codec_bitmap=0b11, compression_bitmap=0b1))
    async with serving_nnrp(policy) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        ack = await session.patch(preferred_codec_bitmap=0b10, preferred_compression_bitmap=0b10)
        assert ack.applied_patch_mask == PatchMask.PREFERRED_CODEC
        assert ack.reject_reason is PatchRejectReason.INVALID_RANGE


async def test_the_block_of_the_tensor_profile_has_its_size() -> None:
    """7.3, TENSOR_PROFILE_PATCH_BLOCK: 16 bytes in both directions; anything else is out of range."""
    block = TensorProfilePatchBlock(64, 64, 1920, 1080).pack()
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(profile_id=1, schema=(0, 0))
        await session.patch(profile_patch=block)
        assert session.settings.profile_patch == block
        with pytest.raises(NnrpPatchRefused, match="invalid_range"):
            await session.patch(profile_patch=block[:8])
        assert session.settings.profile_patch == block


async def test_patches_are_answered_in_order() -> None:
    """Several may be outstanding in several sessions, and every caller gets the answer to its own."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        sessions = [await connection.open_session() for _ in range(2)]
        got: list[tuple[int, int, int]] = []

        async def one(session: NnrpSession, tier: int) -> None:
            ack = await session.patch(quality_tier=tier)
            got.append((session.session_id, tier, ack.effective_quality_tier))

        async with trio.open_nursery() as nursery:
            for tier in range(1, 9):
                for session in sessions:
                    nursery.start_soon(one, session, tier)
        assert len(got) == 16
        assert all(tier == effective for _, tier, effective in got)


async def test_a_patch_leaves_credit_and_epochs_alone() -> None:
    """13.6: SESSION_PATCH has no credit; windows and epochs are FLOW_UPDATE's, before, between and behind patches."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(max_in_flight=8)
        (link,) = served.service.links
        theirs = link.machine.sessions[session.session_id]
        for epoch, credit in enumerate((3, 0, 5), 1):
            link.machine.update_credit(trio.current_time(), session=theirs, credit=credit, reason=UpdateReason.GRANT)
            link.flush()
            await session.patch(quality_tier=epoch)
            window = session.machine.window
            assert (window.limit, window.epoch, window.level) == (credit, epoch, BackpressureLevel.NONE)
            assert theirs.window.limit == credit
        assert (await session.request(b"on")).data == b"on"


async def test_settings_survive_a_resume() -> None:
    """13.7: what was patched is the session's, at both ends."""
    options = NnrpOptions()
    async with serving_nnrp() as served, open_nnrp(served.url, options) as connection:
        session = await connection.open_session(resumable=True)
        await session.patch(quality_tier=4)
        (link,) = served.service.links
        await trio.aclose_forcefully(link._stream)
        assert (await session.request(b"again")).data == b"again"
        assert connection.reconnects == 1
        assert session.settings == SessionSettings(quality_tier=4)
        assert (await session.patch(target_cadence_x100=5)).effective_quality_tier == 4


@pytest.mark.parametrize("dialect", ["nnrp-py", "nnrp-rs"])
async def test_a_patch_in_the_other_dialects(dialect: str) -> None:
    """2.6: both peers know SESSION_PATCH."""
    async with (
        serving_nnrp() as served,
        open_nnrp(served.url, NnrpOptions(dialect=dialect)) as connection,  # type: ignore[arg-type]  # one of the literals
    ):
        session = await connection.open_session()
        assert (await session.patch(quality_tier=2)).effective_quality_tier == 2


async def test_no_patch_where_there_is_no_session_for_it() -> None:
    """13.1, 13.2: none on a session that is over, none on a connection that closes."""
    async with serving_nnrp() as served, open_nnrp(served.url) as connection:
        closed, cut = await connection.open_session(), await connection.open_session()
        running = await cut.submit(b"sleep=60000;")
        await closed.close()
        with pytest.raises(NnrpSessionOver):
            await closed.patch(quality_tier=1)
        (link,) = served.service.links
        link.close("going")
        await served.wait_until(lambda: connection.machine is not None and connection.machine.close_received)
        with pytest.raises(NnrpLocalError, match="draining"):
            await cut.patch(quality_tier=1)
        running.cancel()


async def never(server: Server) -> None:
    await server.greet()
    await server.open()
    await server.expect(MessageType.SESSION_PATCH)
    await server.rest()


async def hangs_up(server: Server) -> None:
    await server.greet()
    await server.open()
    await server.expect(MessageType.SESSION_PATCH)


async def test_a_patch_that_is_never_answered() -> None:
    async with connected(never) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpConnectionLost, match="SESSION_PATCH in time"):
            await session.patch(quality_tier=1)


async def test_a_connection_that_is_lost_before_the_answer() -> None:
    async with connected(hangs_up, PATIENT) as connection:
        session = await connection.open_session()
        with pytest.raises(NnrpConnectionLost):
            await session.patch(quality_tier=1)
