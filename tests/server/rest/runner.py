"""The engine tests' runner with what REST tests need besides: more scripts, and an agent with stored history."""

from __future__ import annotations

import attrs
import trio

from sessions import Operation, SessionHost, SessionSpec, TurnResult
from tests.support.fake_runner import SCRIPTS, FakeRunner, FakeSession, Script

__all__ = ["RestRunner"]


def _number(operation: Operation) -> int:
    return int(operation.request.text().split(" ")[1])


async def many(session: FakeSession, operation: Operation) -> TurnResult | None:
    """``many N``: N chunks ``1 ``, ``2 ``…"""
    for number in range(_number(operation)):
        session.say(f"{number + 1} ")
        await trio.lowlevel.checkpoint()
    return None


async def sized(session: FakeSession, operation: Operation) -> TurnResult | None:
    """``sized N BYTES``: N chunks of that many characters."""
    size = int(operation.request.text().split(" ")[2])
    for _ in range(_number(operation)):
        session.say("x" * size)
        await trio.lowlevel.checkpoint()
    return None


async def tick(session: FakeSession, operation: Operation) -> TurnResult | None:
    """``tick N``: N chunks, one every 100 ms."""
    for number in range(_number(operation)):
        session.say(f"{number + 1} ")
        await trio.sleep(0.1)
    return None


async def tool(session: FakeSession, operation: Operation) -> TurnResult | None:
    """A tool call that succeeds, one that fails, commands and usage."""
    update = session.host.update
    for call, status in (("a", "completed"), ("b", "failed")):
        update({"sessionUpdate": "tool_call", "toolCallId": call, "title": "Read", "kind": "read", "status": "pending"})
        update({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status})
    update({"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "help", "description": "?"}]})
    update({"sessionUpdate": "usage_update", "used": 120, "size": 1000})
    await trio.lowlevel.checkpoint()
    return None


async def dying(session: FakeSession, operation: Operation) -> TurnResult | None:
    """``dying SECONDS``: the agent is gone in mid-turn."""
    await trio.sleep(_number(operation))
    session.host.died("agent exited", exit_code=1)
    await trio.sleep_forever()


async def late(session: FakeSession, operation: Operation) -> TurnResult | None:
    """After a cancel three more updates, then the answer."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        for number in range(3):
            session.say(f"late {number}")
        raise


REST_SCRIPTS: dict[str, Script] = {
    **SCRIPTS,
    "many": many,
    "sized": sized,
    "tick": tick,
    "tool": tool,
    "dying": dying,
    "late": late,
}


@attrs.define
class RestRunner(FakeRunner):
    history: list[str] = attrs.field(factory=list)
    """Texts a load replays."""
    scripts: dict[str, Script] = attrs.field(factory=lambda: dict(REST_SCRIPTS))

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> FakeSession:
        session = await FakeRunner.start_session(self, spec, host)
        if spec.start == "load" and host.wants_history:
            for text in self.history:
                session.say(text)
        return session
