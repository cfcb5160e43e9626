"""C-081: a client that is held back stops new work, not old work (nnrp-wire 13.6); against our server on every transport, and
against a server by hand that sees every byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from client.nnrp import Submission, open_nnrp
from client.nnrp.session import SubmitOptions
from protocol.nnrp.enums import (
    BackpressureLevel,
    FlowFlags,
    FlowScope,
    MessageType,
    PayloadKind,
    PriorityClass,
    UpdateReason,
)
from protocol.nnrp.header import Header
from protocol.nnrp.messages import FlowUpdate, ResultPush
from server.nnrp.backpressure import DRAIN_ONLY, GO_ON, ONLY_BACKGROUND, PAUSE, FlowOrder
from tests.client.nnrp.test_nnrp_bad_servers import OPENED, PATIENT, Server, connected
from tests.support.nnrp import raw
from tests.support.nnrp_transports import TRANSPORTS, serving_everywhere

HARD = FlowOrder(reason=UpdateReason.PAUSE, level=BackpressureLevel.HARD)
ORDERS = {"pause": PAUSE, "hard": HARD, "drain only": DRAIN_ONLY, "background only": ONLY_BACKGROUND}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("whole", [False, True], ids=["session", "connection"])
@pytest.mark.parametrize("name", ORDERS)
async def test_new_work_waits_and_old_work_goes_on(tmp_path: Path, name: str, whole: bool, transport: str) -> None:
    """Two run on and complete, the third is held without a frame sent, and goes out after the resume. A session beside the
    one that is paused is not; background work is let through where only that may advance."""
    async with (
        serving_everywhere(tmp_path) as place,
        open_nnrp(place.urls[transport], place.options) as connection,
        trio.open_nursery() as nursery,
    ):
        session, beside = await connection.open_session(), await connection.open_session()
        running = [await session.submit(b"sleep=150;%d" % number) for number in range(2)]
        served = next(each for each in place.service.sessions if each.machine.session_id == session.session_id)
        await place.wait_until(lambda: served.machine.in_flight == 2)
        assert place.service.order_flow(ORDERS[name], None if whole else served)
        await place.wait_until(lambda: session.machine.hold() is not None)
        third: list[Submission] = []

        async def submit() -> None:
            third.append(await session.submit(b"third"))

        nursery.start_soon(submit)
        assert [(await each.result()).data for each in running] == [b"sleep=150;0", b"sleep=150;1"]
        if not whole:
            assert (await beside.request(b"beside")).data == b"beside"
        if name == "background only":
            options = SubmitOptions(priority=PriorityClass.BACKGROUND)
            with trio.fail_after(5):
                assert (await (await beside.submit(b"back", options=options)).result()).data == b"back"
        assert not third
        assert served.machine.operations.highest_frame == 2
        if whole:
            place.service.release_flow()
        else:
            place.service.order_flow(GO_ON, served)
        with trio.fail_after(5):
            while not third:  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.005)
            assert (await third[0].result()).data == b"third"
        assert place.service.violations == 0


def flow(reason: UpdateReason, epoch: int, **more: Any) -> bytes:
    update = FlowUpdate(
        scope_kind=FlowScope.SESSION,
        update_reason=reason,
        credit_epoch=epoch,
        session_credit=4,
        flow_flags=FlowFlags.CREDIT_VALID,
        **more,
    )
    return raw(update, session_id=1)


async def test_as_a_server_by_hand_sees_it() -> None:
    """The third submit is not on the wire before the resume, though the server would take it: nothing comes
    for half a second; a resume with an old epoch lets nothing go. No error is raised for the pause."""
    seen: list[str] = []

    async def script(server: Server) -> None:
        async def push(header: Header) -> None:
            done = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)
            await server.stream.send_all(raw(done, session_id=1, frame_id=header.frame_id))

        async def nothing_comes(seconds: float) -> None:
            with trio.move_on_after(seconds):
                await server.expect(MessageType.FRAME_SUBMIT)
                raise AssertionError("a submit in spite of the pause")

        await server.greet()
        await server.open(OPENED.replace(granted_operation_credit=4, max_in_flight_operations=4))
        running = [await server.expect(MessageType.FRAME_SUBMIT) for _ in range(2)]
        await server.stream.send_all(flow(UpdateReason.PAUSE, 7, backpressure_level=BackpressureLevel.HARD))
        await nothing_comes(0.5)
        for each in running:
            await push(each)
        await server.stream.send_all(flow(UpdateReason.RESUME, 6))
        await nothing_comes(0.3)
        seen.append("resume")
        await server.stream.send_all(flow(UpdateReason.RESUME, 8))
        third = await server.expect(MessageType.FRAME_SUBMIT)
        seen.append(f"frame {third.frame_id}")
        await push(third)
        await server.rest()

    async with connected(script, PATIENT) as connection:
        session = await connection.open_session()
        running = [await session.submit(b"x") for _ in range(2)]
        with trio.fail_after(5):
            while session.machine.window.hold() is None:  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.005)
        with trio.fail_after(10):
            third = await session.submit(b"third")
            assert seen[0] == "resume"
            for each in (*running, third):
                assert (await each.result()).final
    assert seen == ["resume", "frame 3"]
