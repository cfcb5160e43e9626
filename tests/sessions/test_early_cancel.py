"""A cancel that comes right behind its prompt, before the prompt's task has had a turn."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sessions import CancelReason, OperationState, open_harbour
from tests.support.engine import submit, terminals
from tests.support.fake_runner import FakeRunner


async def test_a_cancel_right_behind_a_prompt_is_meant_for_it(autojump_clock: MockClock) -> None:
    """REST-067, REST-069, C-060: position 1 runs from its acceptance on; the next one is not touched."""
    async with open_harbour(FakeRunner(), workspaces=["/tmp"]) as harbour:
        session = (await harbour.create()).session
        first, second = submit(session, "hold"), submit(session, "hello")
        assert session.cancel_prompt() is True
        with trio.fail_after(1):
            assert (await first.wait_settled()).state is OperationState.CANCELLED
            assert (await second.wait_settled()).state is OperationState.COMPLETED
        assert sum(len(each) for each in terminals(session).values()) == 2


async def test_a_cancel_with_nothing_accepted_is_not_remembered(autojump_clock: MockClock) -> None:
    """ACP-195, C-057."""
    async with open_harbour(FakeRunner(), workspaces=["/tmp"]) as harbour:
        session = (await harbour.create()).session
        assert session.cancel_prompt() is False
        operation = submit(session, "hello")
        assert (await operation.wait_settled()).state is OperationState.COMPLETED
        assert session.cancel_prompt() is False


async def test_prompts_behind_a_fork_are_waiting(autojump_clock: MockClock) -> None:
    """ACP-214: while another kind of turn has come up, nothing runs that a cancel could mean."""
    async with open_harbour(FakeRunner(), workspaces=["/tmp"]) as harbour:
        session = (await harbour.create()).session
        turn = session.queue_turn()
        waiting = submit(session, "hello")
        assert session.cancel_prompt(CancelReason.USER) is False
        async with turn:
            await wait_all_tasks_blocked()
            assert session.cancel_prompt(CancelReason.USER) is False
        assert (await waiting.wait_settled()).state is OperationState.COMPLETED
