"""Text in, text out piece by piece: handlers of the token profile in a few lines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from protocol.nnrp.enums import StopReason, TokenChannel
from server.nnrp.chunks import Chunks
from server.nnrp.submit import Answer, Emit, Handler, Submit
from server.nnrp.workers.prompts import prompt_text

__all__ = ["Say", "TokenWork", "token_handler"]


class Say(Protocol):
    """Sends a piece of text at once. False: the operation has ended, and nothing was sent. Waits for room."""

    async def __call__(self, text: str, channel: TokenChannel = TokenChannel.MESSAGE) -> bool: ...


TokenWork: TypeAlias = Callable[[str, Say], Awaitable[StopReason | None]]
"""Gets the submitted text; what it says goes out as llm.chat.delta.v1. Returns why it stopped, None for the end of the text."""


def token_handler(work: TokenWork) -> Handler:
    """A handler for `FunctionWorker` that runs ``work``. Positions, channels and the stop reason travel as hints where the
    session was granted them (nnrp-extensions, Token chunks); without, only what is said on the channel message does."""

    async def handle(submit: Submit, emit: Emit) -> Answer:
        chunks = Chunks(submit.session.terms)

        async def say(text: str, channel: TokenChannel = TokenChannel.MESSAGE) -> bool:
            piece = chunks.say(text, channel)
            return True if piece is None else await emit.partial(piece)

        stop = await work(prompt_text(submit), say)
        return chunks.last(stop or StopReason.EOS, 0)

    return handle
