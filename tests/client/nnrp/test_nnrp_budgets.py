"""Budgets, hints, classes and traces as our client sees them, at our server over loopback sockets."""

from __future__ import annotations

import pytest
import trio

from client.nnrp import NnrpOperationEnded, SubmitOptions, open_nnrp
from protocol.nnrp.enums import (
    BudgetPolicy,
    ErrorCode,
    OperationState,
    PayloadKind,
    PriorityClass,
    ResultBudgetPolicy,
    ResultClass,
    ResultHintReason,
)
from server.nnrp.policy import ServingPolicy
from server.nnrp.submit import Answer, Emit, Submit, text_payload
from tests.support.nnrp import functions, serving_nnrp


def said(text: bytes) -> Answer:
    payload = text_payload(text, terminal=True, schema=(0x1001, 3))
    return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=2)


async def half(submit: Submit, emit: Emit) -> Answer:
    """Never done, but with something in hand."""
    emit.keep(said(b"half of it"))
    await trio.sleep_forever()
    raise AssertionError


async def test_a_partial_result_ends_the_iteration() -> None:
    """nnrp-wire 12.5, 7.17: past the deadline the last result is partial, by the policy it says; the hint came first."""
    async with serving_nnrp(make_worker=functions(half)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        options = SubmitOptions(deadline_ms=50, budget_policy=BudgetPolicy.ALLOW_PARTIAL)
        submission = await session.submit(b"x", options=options)
        (result,) = [each async for each in submission]
        assert result.final
        assert (result.result_class, result.text) == (ResultClass.PARTIAL, "half of it")
        assert result.metadata.applied_budget_policy == BudgetPolicy.ALLOW_PARTIAL
        assert submission.hint is not None
        assert submission.hint.reason is ResultHintReason.BUDGET_EXCEEDED
        assert submission.hint.applied_budget_policy is ResultBudgetPolicy.PARTIAL
        assert session.hint is submission.hint
        assert session.in_flight == 0


async def test_a_drop_says_why() -> None:
    """12.5: nothing is allowed, so the operation fails with frame_expired."""
    async with serving_nnrp(make_worker=functions(half)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session(deadline_ms=50)
        submission = await session.submit(b"x")
        with pytest.raises(NnrpOperationEnded) as ended:
            await submission.result()
        assert (ended.value.state, ended.value.code) == (OperationState.FAILED, ErrorCode.FRAME_EXPIRED)
        assert submission.hint is not None
        assert submission.hint.applied_budget_policy is ResultBudgetPolicy.DROP


async def test_a_lowered_session_knows_it() -> None:
    """13.5: what was granted is in the session's terms, with the flag that says it was lowered."""
    async with serving_nnrp(ServingPolicy(max_interactive=1)) as served, open_nnrp(served.url) as connection:
        sessions = [await connection.open_session(priority=PriorityClass.INTERACTIVE) for _ in range(2)]
        terms = [each.machine.terms for each in sessions]
        assert [each.priority for each in terms] == [PriorityClass.INTERACTIVE, PriorityClass.BALANCED]
        assert [bool(each.flags & 16) for each in terms] == [False, True]


async def test_a_trace_goes_there_and_back() -> None:
    """nnrp-wire 3, 14: the client's trace_id is the operation's at the server; plain submits have none."""
    seen: list[int] = []

    async def note(submit: Submit, emit: Emit) -> Answer:
        seen.append(submit.operation.trace_id)
        return said(b"noted")

    async with serving_nnrp(make_worker=functions(note)) as served, open_nnrp(served.url) as connection:
        session = await connection.open_session()
        await (await session.submit(b"x", options=SubmitOptions(trace_id=0xFEED_0000_0001))).result()
        await session.request(b"x")
    assert seen == [0xFEED_0000_0001, 0]
