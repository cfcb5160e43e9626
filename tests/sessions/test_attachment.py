"""Grace as a scope whose deadline moves: acp-http.md 5.3."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from sessions import Attachment, AttachmentPhase
from sessions.errors import WrongPhase

Ends = list[tuple[float, bool]]


class Pier:
    """Starts attachments and records their ends as (when, expired)."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.ends: Ends = []

    def start(self, grace: float = 10.0) -> Attachment:
        attachment = Attachment(grace, lambda expired: self.ends.append((trio.current_time(), expired)))
        self._nursery.start_soon(attachment.run)
        return attachment


@pytest.fixture
async def pier(nursery: trio.Nursery) -> Pier:
    return Pier(nursery)


async def test_detach_expires_after_the_grace(pier: Pier, autojump_clock: trio.testing.MockClock) -> None:
    """ACP-141, ACP-143."""
    start, ends = pier.start, pier.ends
    attachment = start()
    ticket = attachment.attach()
    await trio.sleep(100)
    began = trio.current_time()
    assert attachment.detach(ticket)
    assert attachment.in_grace
    await trio.sleep(9.9)
    assert ends == []
    await trio.sleep(0.2)
    assert ends == [(pytest.approx(began + 10), True)]
    with pytest.raises(WrongPhase):
        attachment.attach()
    assert not attachment.end()


async def test_reattach_moves_the_deadline_back(pier: Pier, autojump_clock: trio.testing.MockClock) -> None:
    """ACP-142: as often as you like."""
    start, ends = pier.start, pier.ends
    attachment = start()
    for _ in range(5):
        ticket = attachment.attach()
        attachment.detach(ticket)
        await trio.sleep(9)
    attachment.attach()
    await trio.sleep(1000)
    assert ends == []
    assert attachment.phase is AttachmentPhase.ATTACHED


async def test_the_late_end_of_an_old_stream_detaches_nothing(
    pier: Pier, autojump_clock: trio.testing.MockClock
) -> None:
    """ACP-125, C-016."""
    start, ends = pier.start, pier.ends
    attachment = start()
    old = attachment.attach()
    attachment.attach()
    assert not attachment.detach(old)
    await trio.sleep(50)
    assert ends == []
    assert attachment.deadline == float("inf")


async def test_end_is_immediate_and_once(pier: Pier, autojump_clock: trio.testing.MockClock) -> None:
    """ACP-145."""
    start, ends = pier.start, pier.ends
    attachment = start()
    attachment.detach(attachment.attach())
    assert attachment.end()
    assert not attachment.end()
    await trio.sleep(50)
    assert [expired for _, expired in ends] == [False]


async def test_zero_grace(pier: Pier, autojump_clock: trio.testing.MockClock) -> None:
    """style.md, Ownership: zero grace gives the plain cascade."""
    start, ends = pier.start, pier.ends
    attachment = start(0.0)
    attachment.detach(attachment.attach())
    await trio.sleep(0.001)
    assert [expired for _, expired in ends] == [True]


async def test_attached_in_the_very_tick_the_grace_ran_out(pier: Pier, autojump_clock: trio.testing.MockClock) -> None:
    """The stream wins, and the next detach has its full grace again."""
    start, ends = pier.start, pier.ends
    attachment = start()
    await trio.testing.wait_all_tasks_blocked()
    attachment.detach(attachment.attach())
    # The deadline has passed and the scope is cancelled, but the attachment's task has not run yet.
    attachment._scope.cancel()
    ticket = attachment.attach()
    await trio.sleep(100)
    assert ends == []
    began = trio.current_time()
    attachment.detach(ticket)
    await trio.sleep(50)
    assert ends == [(pytest.approx(began + 10), True)]


async def test_a_wall_clock_jump_means_nothing(
    pier: Pier, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-019: only Trio's clock counts."""
    import time

    start, ends = pier.start, pier.ends
    attachment = start()
    attachment.detach(attachment.attach())
    monkeypatch.setattr(time, "time", lambda: 1e12)
    await trio.sleep(5)
    assert ends == []
    attachment.attach()
