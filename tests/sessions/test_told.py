"""An outcome does not overtake the answer that names its prompt (client-sdk.md 2.4, REST-062)."""

from __future__ import annotations

import trio
import trio.testing

from sessions import Harbour, PromptRequest
from sessions.session import TOLD_LEAD
from tests.support.engine import quiet, said, terminals


def _request(text: str) -> PromptRequest:
    return PromptRequest([{"type": "text", "text": text}])


async def test_outcome_waits_for_the_answer(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    """Content flows at once; the terminal event comes `TOLD_LEAD` seconds after the answer, and only then."""
    session = (await harbour.create()).session
    operation, _ = session.submit_prompt(_request("quick"))
    told = session.tell(operation)
    await quiet()
    assert said(session)
    assert not operation.settled
    assert not terminals(session)
    told()
    told()  # idempotent: a request may be ended more than once
    start = trio.current_time()
    await operation.wait_settled()
    assert trio.current_time() - start == TOLD_LEAD
    assert len(terminals(session)) == 1


async def test_failure_waits_too(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    session = (await harbour.create()).session
    operation, _ = session.submit_prompt(_request("fail"))
    told = session.tell(operation)
    await quiet()
    assert not terminals(session)
    told()
    await operation.wait_settled()
    assert len(terminals(session)) == 1


async def test_cancel_does_not_wait(harbour: Harbour, autojump_clock: trio.testing.MockClock) -> None:
    """REST-069: who cancels a prompt knows it."""
    session = (await harbour.create()).session
    operation, _ = session.submit_prompt(_request("hold"))
    session.tell(operation)
    await quiet()
    session.cancel_prompt()
    await operation.wait_settled()
    assert len(terminals(session)) == 1
