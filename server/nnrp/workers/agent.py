"""Operations carried out by the runner behind the engine: every submit is a prompt, its answer a stream of token chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import trio

from protocol.nnrp.enums import (
    DescriptorFlags,
    ErrorCode,
    PayloadKind,
    ProfileId,
    StopReason,
    TokenChannel,
    TokenUnit,
)
from protocol.nnrp.machines.schemas import ANCHOR
from protocol.nnrp.machines.session import Session as Machine
from protocol.nnrp.payloads import TokenChunk
from protocol.nnrp.vendor import TokenHint
from server.nnrp.submit import Answer, Emit, OperationFailed, Submit, text_payload
from server.telemetry import log
from sessions.errors import SessionError
from sessions.events import Event, EventType
from sessions.harbour import Harbour
from sessions.observer import EndReason
from sessions.operation import CancelReason, PromptRequest
from sessions.operation import Operation as Turn
from sessions.operation import OperationState as TurnState
from sessions.session import Session
from sessions.subscription import Subscription

__all__ = ["AgentWorker"]

_STOPS: Final[Mapping[str, StopReason]] = {
    "end_turn": StopReason.EOS,
    "max_tokens": StopReason.MAX_TOKENS,
    "max_turn_requests": StopReason.MAX_TOKENS,
    "refusal": StopReason.REFUSAL,
    "cancelled": StopReason.CANCELLED,
}
_CHANNELS: Final = {
    "agent_message_chunk": TokenChannel.MESSAGE,
    "agent_thought_chunk": TokenChannel.THOUGHT,
}
_OUTCOMES: Final = frozenset({EventType.TURN_COMPLETE, EventType.TURN_ERROR})
_TENSOR: Final = PayloadKind.TENSOR.value
_MAX_BEHIND: Final = 8000
"""Events an operation may be behind its session before it is given up: a slow connection is not a slow reader yet."""


class AgentWorker:
    """One NNRP session in front of one engine session, which is started by the first operation."""

    def __init__(self, harbour: Harbour, machine: Machine) -> None:
        self._harbour = harbour
        self._schema = (machine.terms.schema_id, machine.terms.schema_version)
        if self._schema == (0, 0):
            self._schema = (ANCHOR.schema_id, ANCHOR.schema_version)
        self._session: Session | None = None
        self._lock = trio.Lock()
        self._closed = False

    def answer_nowait(self, submit: Submit) -> Answer | None:
        return None

    async def run(self, submit: Submit, emit: Emit) -> Answer:
        text = _prompt(submit)
        session = await self._open()
        reader: Subscription | None = None
        turn: Turn | None = None
        try:
            # Nobody here can answer a permission question, so this reader is no consumer (ACP-178).
            reader = session.subscribe(None, max_queued=_MAX_BEHIND, consumer=False)
            turn, _ = session.submit_prompt(PromptRequest([{"type": "text", "text": text}]))
            return await self._follow(reader, turn, emit, _Chunks(self._schema, bool(submit.session.terms.features)))
        except SessionError as problem:
            raise OperationFailed(str(problem), ErrorCode.SERVER_BUSY) from problem
        finally:
            if reader is not None:
                reader.close()
            if turn is not None:
                session.cancel_operation(turn, CancelReason.USER)

    def close(self) -> None:
        self._closed = True
        if self._session is not None:
            self._session.close_soon(EndReason.CLIENT_CLOSE)

    async def _open(self) -> Session:
        async with self._lock:
            if self._session is None:
                try:
                    self._session = (await self._harbour.create(source={"wire": "nnrp"}, counted=False)).session
                except SessionError as problem:
                    log.warning("nnrp_session_not_started", problem=str(problem))
                    raise OperationFailed(str(problem), ErrorCode.SERVER_BUSY) from problem
                if self._closed:
                    self._session.close_soon(EndReason.CLIENT_CLOSE)
                    raise OperationFailed("the session was closed")
            return self._session

    async def _follow(self, reader: Subscription, turn: Turn, emit: Emit, chunks: _Chunks) -> Answer:
        """Pass on what the turn says, until its outcome is published."""
        while items := await reader.take():
            for item in items:
                if not isinstance(item, Event) or item.prompt_id != turn.id:
                    continue
                if item.type in _OUTCOMES:
                    return _ended(turn, item, chunks)
                chunk = chunks.of(item)
                if chunk is not None:
                    await emit.partial(chunk)
        raise OperationFailed("the session ended, or the operation fell too far behind it")


class _Update(msgspec.Struct, rename="camel"):
    session_update: str = ""
    content: Any = None


class _Said(msgspec.Struct):
    update: _Update = msgspec.field(default_factory=_Update)


_decode_said = msgspec.json.Decoder(_Said).decode


class _Chunks:
    """Text of one operation as token chunks; with hints where the session may carry them (nnrp-extensions, Token chunks)."""

    def __init__(self, schema: tuple[int, int], hints: bool) -> None:
        self._schema = schema
        self._hints = hints
        self._at: dict[TokenChannel, int] = {}

    def of(self, event: Event) -> Answer | None:
        """The chunk an update is; None for what is not text of the agent's."""
        if event.type != EventType.SESSION_UPDATE:
            return None
        update = _decode_said(event.data).update
        channel = _CHANNELS.get(update.session_update)
        content = update.content
        if channel is None or not isinstance(content, dict) or not isinstance(content.get("text"), str):
            return None
        if channel is not TokenChannel.MESSAGE and not self._hints:
            return None  # without a hint a thought could not be told from the answer
        return self._answer(channel, content["text"], StopReason.NONE, event.id)

    def last(self, stop: StopReason, event_id: int) -> Answer:
        return self._answer(TokenChannel.MESSAGE, "", stop, event_id)

    def _answer(self, channel: TokenChannel, text: str, stop: StopReason, event_id: int) -> Answer:
        data, flags, terminal = text.encode("utf-8"), DescriptorFlags(0), stop is not StopReason.NONE
        if self._hints:
            start = self._at.get(channel, 0)
            end = self._at[channel] = start + len(data)
            hint = TokenHint(TokenUnit.UTF8_BYTE, stop, channel, start & 0xFFFF_FFFF, end & 0xFFFF_FFFF)
            data, flags = hint.pack() + data, DescriptorFlags.PROFILE_HINT_PRESENT
        payload = text_payload(data, terminal=terminal, schema=self._schema, flags=flags)
        return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=ProfileId.TOKEN, event_id=event_id)


def _ended(turn: Turn, event: Event, chunks: _Chunks) -> Answer:
    outcome = turn.outcome
    if outcome is None or outcome.state is TurnState.FAILED:
        message = "the turn failed" if outcome is None or outcome.error is None else outcome.error.message
        raise OperationFailed(message, ErrorCode.INTERNAL_ERROR, event.id)
    if outcome.state is not TurnState.COMPLETED:
        raise OperationFailed("the turn was cancelled", ErrorCode.FRAME_CANCELLED, event.id)
    return chunks.last(_STOPS.get(outcome.stop_reason or "end_turn", StopReason.EOS), event.id)


def _prompt(submit: Submit) -> str:
    """The submitted text. Raises `OperationFailed` for what no agent can read."""
    if int(submit.metadata.payload_kind_bitmap) & _TENSOR:
        raise OperationFailed("an agent reads text, not tensors", ErrorCode.UNSUPPORTED_CAPABILITY)
    hints = bool(submit.session.terms.features)
    if submit.content.regions.payloads:
        parts = [bytes(TokenChunk.parse(each, hints=hints).text) for each in submit.content.regions.payloads]
    else:
        parts = [bytes(each) for each in submit.data()]
    try:
        return b"".join(parts).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise OperationFailed("the payload is not UTF-8", ErrorCode.MALFORMED_BODY) from problem
