"""An ACP agent on PyPI's `agent-client-protocol`, steered by words in the prompt; a program, started over stdio.

`permission`  asks once, then says which option it was given
`slow`        pauses between chunks
`hold`        runs until cancelled
`fail`        answers the prompt with a JSON-RPC error
`crash`       exits with status 3 in mid-turn
`read PATH`   `fs/read_text_file`, and echoes the text
`write PATH`  `fs/write_text_file` of the text `written by the agent`
`run COMMAND` a terminal: create, wait, output, release; echoes the output
anything else is echoed after a thought and a plan
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal
from uuid import uuid4

import acp
from acp import schema


class Agent:
    """Implements the methods of `acp.Agent` this test needs; the library refuses the others."""

    def __init__(self) -> None:
        self._client: Any = None
        self._cancelled: dict[str, asyncio.Event] = {}

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **extra: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_capabilities=schema.AgentCapabilities(load_session=False),
            agent_info=schema.Implementation(name="pypi-agent", version="1"),
        )

    async def new_session(self, cwd: str, **extra: Any) -> acp.NewSessionResponse:
        session_id = f"pypi-{uuid4()}"
        self._cancelled[session_id] = asyncio.Event()
        return acp.NewSessionResponse(session_id=session_id)

    async def cancel(self, session_id: str, **extra: Any) -> None:
        self._cancelled[session_id].set()

    async def prompt(self, session_id: str, prompt: list[Any], **extra: Any) -> acp.PromptResponse:
        self._cancelled[session_id].clear()
        text = "".join(block.text for block in prompt if isinstance(block, schema.TextContentBlock))
        word, _, rest = text.partition(" ")
        match word:
            case "fail":
                raise acp.RequestError.internal_error({"details": "scripted failure"})
            case "crash":
                os._exit(3)
            case "hold":
                await self._say(session_id, "holding")
                await self._cancelled[session_id].wait()
                return acp.PromptResponse(stop_reason="cancelled")
            case "slow":
                return await self._slowly(session_id)
            case "permission":
                await self._ask(session_id)
            case "read":
                answer = await self._client.read_text_file(session_id=session_id, path=rest)
                await self._say(session_id, answer.content)
            case "write":
                await self._client.write_text_file(session_id=session_id, path=rest, content="written by the agent")
                await self._say(session_id, "written")
            case "run":
                await self._run(session_id, rest)
            case _:
                await self._echo(session_id, text)
        return acp.PromptResponse(stop_reason="end_turn")

    async def _say(self, session_id: str, text: str) -> None:
        await self._client.session_update(session_id=session_id, update=acp.update_agent_message_text(text))

    async def _echo(self, session_id: str, text: str) -> None:
        thought = acp.update_agent_thought_text("about to echo")
        await self._client.session_update(session_id=session_id, update=thought)
        plan = acp.update_plan([acp.plan_entry("echo the prompt")])
        await self._client.session_update(session_id=session_id, update=plan)
        await self._say(session_id, text)

    async def _slowly(self, session_id: str) -> acp.PromptResponse:
        for n in range(10):
            await self._say(session_id, f"w{n} ")
            try:
                await asyncio.wait_for(self._cancelled[session_id].wait(), 0.1)
            except TimeoutError:
                continue
            return acp.PromptResponse(stop_reason="cancelled")
        return acp.PromptResponse(stop_reason="end_turn")

    async def _ask(self, session_id: str) -> None:
        call_id = "call_1"
        start = acp.start_tool_call(call_id, "Scripted tool", kind="execute", status="pending")
        await self._client.session_update(session_id=session_id, update=start)
        answer = await self._client.request_permission(
            session_id=session_id,
            tool_call=schema.ToolCallUpdate(tool_call_id=call_id),
            options=[
                schema.PermissionOption(option_id="yes", name="Allow", kind="allow_once"),
                schema.PermissionOption(option_id="no", name="Reject", kind="reject_once"),
            ],
        )
        chosen = answer.outcome.option_id if answer.outcome.outcome == "selected" else answer.outcome.outcome
        status: Literal["completed", "failed"] = "completed" if chosen == "yes" else "failed"
        await self._client.session_update(session_id=session_id, update=acp.update_tool_call(call_id, status=status))
        await self._say(session_id, f"outcome {chosen}")

    async def _run(self, session_id: str, command: str) -> None:
        created = await self._client.create_terminal(session_id=session_id, command="sh", args=["-c", command])
        terminal = {"session_id": session_id, "terminal_id": created.terminal_id}
        exit_status = await self._client.wait_for_terminal_exit(**terminal)
        output = await self._client.terminal_output(**terminal)
        await self._client.release_terminal(**terminal)
        await self._say(session_id, f"exit {exit_status.exit_code}: {output.output}")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Agent()))  # type: ignore[arg-type]  # methods this test leaves out are refused by the library
