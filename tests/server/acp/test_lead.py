"""A client that listens late is answered late (client-sdk.md 4.1, K1; ACP-054)."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from server.routes.acp.lead import LEAD
from tests.support.acp import acp_place


async def test_the_sdk_has_read_the_202_before_the_reply_comes(autojump_clock: MockClock) -> None:
    """It is known by the protocolVersion it leaves out of `initialize`."""
    async with acp_place() as place:
        late = await place.connect(protocolVersion=None)
        async with late.listen() as feed:
            number = await late.call("session/list", {})
            accepted = trio.current_time()
            await feed.until_kind(f"reply:{number}")
            assert trio.current_time() - accepted == LEAD


async def test_other_clients_wait_for_nothing(autojump_clock: MockClock) -> None:
    async with acp_place() as place:
        prompt = await place.connect()
        async with prompt.listen() as feed:
            number = await prompt.call("session/list", {})
            accepted = trio.current_time()
            await feed.until_kind(f"reply:{number}")
            assert trio.current_time() == accepted


async def test_order_is_kept(autojump_clock: MockClock) -> None:
    """ACP-217: prompts accepted within one lead run in the order of their 202s."""
    async with acp_place() as place:
        late = await place.connect(protocolVersion=None)
        session_id = await late.new_session()
        async with late.listen(session_id) as feed:
            numbers = [await late.prompt(session_id, f"prompt {n}") for n in range(4)]
            seen = [frame.kind for frame in await feed.until_kind(f"reply:{numbers[-1]}")]
            assert [kind for kind in seen if kind.startswith("reply:")] == [f"reply:{number}" for number in numbers]
