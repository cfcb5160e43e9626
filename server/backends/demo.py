"""The built-in demo agent: no key, no network, always the same.

It streams a thought, a plan, an answer in chunks and its usage. Words in the prompt steer it, alone or together:

``slow``, ``slow=MS``  pause before every chunk: 200 ms, or MS
``long=N``             N chunks ``w0 w1 ...`` (at most 1,000,000)
``tool``               a tool call that needs no permission
``permission``         a tool call that asks for permission (options ``allow`` and ``reject``), then tells the answer;
                       mode ``yolo`` does not ask
``fail``               the turn ends with an error
``hold``               one chunk, then silence until cancelled
``echo TEXT``          TEXT (everything after the word) as one chunk, and nothing else

Modes: plan, default, auto-edit, auto, yolo (ACP-192). Models: demo-small, demo-large.
"""

from __future__ import annotations

import re
from typing import Final

import attrs
import trio

from server.backends.emitter import Emitter
from server.backends.handler import HandlerRunner
from server.backends.settings import Mode, Model
from sessions.errors import RunnerError
from sessions.operation import Operation, PromptRequest

__all__ = ["DEMO_MODELS", "DEMO_MODES", "DemoRunner"]

DEMO_MODES: Final = (
    Mode("plan", "Plan", "Think and propose; change nothing"),
    Mode("default", "Default", "Ask before files are edited or commands run"),
    Mode("auto-edit", "Auto Edit", "Edit files without asking"),
    Mode("auto", "Auto", "Let a classifier decide what needs asking"),
    Mode("yolo", "YOLO", "Ask for nothing"),
)
DEMO_MODELS: Final = (
    Model("demo-small", "Demo Small", "Answers in a few words", context=8192),
    Model("demo-large", "Demo Large", "Answers in the same few words", context=200_000),
)
_MAX_CHUNKS: Final = 1_000_000
_MAX_PAUSE: Final = 60.0
_ANSWER: Final = ("Hello", " from", " the", " demo", " agent", ".")
_ECHO: Final = re.compile(r"\becho\s+(.*)", re.DOTALL)
_WORD: Final = re.compile(r"\b(slow|long|tool|permission|fail|hold)\b(?:=(\d+))?")


@attrs.frozen(slots=True)
class _Wish:
    """What the words of a prompt ask for."""

    chunks: tuple[str, ...] | None = None
    count: int | None = None
    pause: float = 0.0
    words: frozenset[str] = frozenset()


def _read(text: str) -> _Wish:
    if found := _ECHO.search(text):
        return _Wish(chunks=(found[1],), words=frozenset({"echo"}))
    values = dict(_WORD.findall(text))
    pause = min(_MAX_PAUSE, int(values["slow"] or 200) / 1000) if "slow" in values else 0.0
    count = min(_MAX_CHUNKS, int(values["long"] or 100)) if "long" in values else None
    return _Wish(count=count, pause=pause, words=frozenset(values))


class DemoRunner(HandlerRunner):
    """The demo agent as a `Runner`."""

    def __init__(self) -> None:
        super().__init__(
            demo_agent,
            name="demo",
            modes=DEMO_MODES,
            models=DEMO_MODELS,
            default_mode="default",
            default_model="demo-small",
        )


async def demo_agent(operation: Operation, emit: Emitter) -> str | None:
    """One turn of the demo agent; a `Handler`."""
    request = operation.request
    text = request.text() if isinstance(request, PromptRequest) else ""
    wish = _read(text)
    if "echo" in wish.words:
        await _say(wish, emit)
        return None
    await emit.thought("Let me see what is asked for.")
    await emit.plan([{"content": "Answer the prompt", "priority": "high", "status": "in_progress"}])
    if "tool" in wish.words:
        await _look(emit)
    if "permission" in wish.words:
        await _ask(emit)
    if "fail" in wish.words:
        raise RunnerError("Internal error", -32603, {"details": "The demo agent failed, as it was asked to"})
    if "hold" in wish.words:
        await emit.message("Holding until cancelled.")
        await trio.sleep_forever()
    count = await _say(wish, emit)
    await emit.plan([{"content": "Answer the prompt", "priority": "high", "status": "completed"}])
    await _count(text, count, emit)
    return None


async def _say(wish: _Wish, emit: Emitter) -> int:
    chunks = wish.chunks or _ANSWER
    count = wish.count if wish.count is not None else len(chunks)
    for number in range(count):
        if wish.pause:
            await trio.sleep(wish.pause)
        await emit.message(f"w{number} " if wish.count is not None else chunks[number])
    return count


async def _look(emit: Emitter) -> None:
    call = await emit.tool_call(
        "demo-look", "Look around", kind="read", status="in_progress", rawInput={"path": emit.cwd}
    )
    content = [{"type": "content", "content": {"type": "text", "text": f"This is {emit.cwd}"}}]
    await emit.tool_update(call["toolCallId"], "completed", content=content)


async def _ask(emit: Emitter) -> None:
    """A tool call that would change something. What happens to it is all the turn tells; nothing is ever changed."""
    call = await emit.tool_call("demo-touch", "Touch a file", kind="edit", rawInput={"path": f"{emit.cwd}/demo.txt"})
    if emit.mode == "yolo":
        answer = "allow (mode yolo)"
    else:
        outcome = await emit.ask_permission(call)
        answer = outcome.option_id or "cancelled"
    allowed = answer.startswith("allow")
    await emit.tool_update("demo-touch", "completed" if allowed else "failed")
    await emit.message(f"Permission: {answer}. ")


async def _count(text: str, chunks: int, emit: Emitter) -> None:
    read, written = len(text.split()), chunks
    window = next((model.context for model in DEMO_MODELS if model.id == emit.model), 0)
    usage = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    await emit.usage(read + written, window, _meta={"usage": usage})
