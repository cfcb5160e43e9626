"""The chunks of a streamed chat completion, and the session updates they become."""

from __future__ import annotations

from typing import Any, Final

import attrs
import msgspec

from server.backends.acp_stdio.lines import repaired
from server.backends.emitter import Emitter
from sessions.errors import RunnerError

__all__ = ["Answer", "Chunk", "decode_chunk"]

_STOP_REASONS: Final = {"length": "max_tokens", "content_filter": "refusal"}
"""finish_reason to stop reason (ACP-197); every other one is ``end_turn``."""
_NO_TOOLS: Final = "Nothing behind this server runs tools for the model."


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    total_tokens: int | None = 0


class Chunk(msgspec.Struct):
    """One chunk, as far as we read it."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(text: str) -> Chunk:
    """Raises `RunnerError` for what is no chunk, and for the error some upstreams put in its place."""
    try:
        chunk = _decoder.decode(repaired(text.encode()))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RunnerError(f"Malformed chunk from the upstream: {error}", error_kind="protocol_error") from error
    if chunk.error is not None:
        message = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
        raise RunnerError(str(message), -32603, chunk.error)
    return chunk


@attrs.define(slots=True)
class _Tool:
    id: str
    name: str
    arguments: str = ""


class Answer:
    """Collects one answer while it passes on, chunk by chunk, what clients see of it."""

    def __init__(self, emit: Emitter, window: int) -> None:
        self._emit = emit
        self._window = window
        self._text: list[str] = []
        self._tools: dict[int, _Tool] = {}
        self._finish: str | None = None
        self.done = False
        """The upstream said that this was all."""

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def complete(self) -> bool:
        return self.done or self._finish is not None

    @property
    def stop_reason(self) -> str:
        return _STOP_REASONS.get(self._finish or "", "end_turn")

    async def take(self, chunk: Chunk) -> None:
        """Pass one chunk on."""
        for choice in chunk.choices or ():
            if choice.delta is not None:
                await self._take_delta(choice.delta)
            if choice.finish_reason is not None:
                self._finish = choice.finish_reason
        if chunk.usage is not None:
            await self._take_usage(chunk.usage)

    async def finish(self) -> None:
        """Tell what became of tool calls. A model left waiting for a result (finish_reason ``tool_calls``) gets none."""
        waiting = self._finish in ("tool_calls", "function_call")
        for tool in self._tools.values():
            fields: dict[str, Any] = {"rawInput": _arguments(tool.arguments)}
            if waiting:
                fields["content"] = [{"type": "content", "content": {"type": "text", "text": _NO_TOOLS}}]
            await self._emit.tool_update(tool.id, "failed" if waiting else "completed", **fields)

    async def _take_delta(self, delta: _Delta) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            await self._emit.thought(thought)
        for text in (delta.content, delta.refusal):
            if text:
                self._text.append(text)
                await self._emit.message(text)
        for call in delta.tool_calls or ():
            await self._take_tool_call(call)

    async def _take_tool_call(self, call: _ToolCall) -> None:
        function = call.function or _Function()
        tool = self._tools.get(call.index)
        if tool is None:
            name = function.name or "tool"
            tool = self._tools[call.index] = _Tool(call.id or f"call-{call.index}", name)
            await self._emit.tool_call(tool.id, name)
        tool.arguments += function.arguments or ""

    async def _take_usage(self, usage: _Usage) -> None:
        given, made = usage.prompt_tokens or 0, usage.completion_tokens or 0
        total = usage.total_tokens or given + made
        counted = {"inputTokens": given, "outputTokens": made, "totalTokens": total}
        await self._emit.usage(total, self._window, _meta={"usage": counted})


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text
