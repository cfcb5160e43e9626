"""What happens in an engine session as NNRP payloads: text as token chunks, all else as the JSON the other wires send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from protocol.nnrp.agent_schemas import AGENT_EVENT, AGENT_TOOL, carries_agent_schemas
from protocol.nnrp.descriptors import SchemaDescriptor
from protocol.nnrp.enums import (
    DescriptorFlags,
    PayloadKind,
    ProfileId,
    StopReason,
    TokenChannel,
    TokenUnit,
)
from protocol.nnrp.machines.schemas import ANCHOR
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.vendor import TokenHint
from server.envelope import envelope
from server.nnrp.submit import Answer, text_payload
from sessions.events import Event, EventType

__all__ = ["Chunks", "stop_reason"]

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
_TOOLS: Final = frozenset({"tool_call", "tool_call_update"})


_OVER: Final = frozenset({"completed", "failed"})


class _Update(msgspec.Struct, rename="camel"):
    session_update: str = ""
    content: Any = None
    tool_call_id: Any = None
    status: Any = None


class _Said(msgspec.Struct):
    update: _Update = msgspec.field(default_factory=_Update)


_decode_said: Final = msgspec.json.Decoder(_Said).decode


def stop_reason(name: str | None) -> StopReason:
    return _STOPS.get(name or "end_turn", StopReason.EOS)


class Chunks:
    """The payloads of one turn, with hints where the session may carry them, and events under their schemas where its client
    was sent those (nnrp-extensions, Token chunks)."""

    def __init__(self, terms: SessionTerms) -> None:
        schema = (terms.schema_id, terms.schema_version)
        self._schema = schema if schema != (0, 0) else (ANCHOR.schema_id, ANCHOR.schema_version)
        self._hints = bool(terms.features)
        self._schemas = carries_agent_schemas(terms)
        self._at: dict[TokenChannel, int] = {}
        self._tools: set[str] = set()
        self.waits = False
        """Whether the turn waits for a tool: a call was made and has not ended, and the agent has said nothing since."""

    def of(self, event: Event) -> Answer | None:
        """An event of an operation that its client has submitted: the agent's text, tool calls, plans, usage, questions.
        None for what the client knows already, or has not asked to hear of."""
        if event.type == EventType.SESSION_UPDATE:
            update = _said(event)
            kind = update.session_update
            self._note_tool(update)
            text = self._text(update, event.id)
            if text is not None or not self._hints:
                return text
            if kind in _TOOLS:
                return self._tool(event)
            return None if kind == "user_message_chunk" else self._structured(event)
        if self._hints and event.type in (EventType.PERMISSION_REQUEST, EventType.PERMISSION_RESOLVED):
            return self._structured(event)
        return None

    def every(self, event: Event) -> Answer:
        """Any event at all: what others do in the session."""
        if event.type == EventType.SESSION_UPDATE:
            update = _said(event)
            text = self._text(update, event.id)
            if text is not None:
                return text
            if update.session_update in _TOOLS:
                return self._tool(event)
        return self._structured(event)

    def say(self, text: str, channel: TokenChannel = TokenChannel.MESSAGE) -> Answer | None:
        """A piece of text of an in-process runner; None where it could not be told from the answer."""
        if channel is not TokenChannel.MESSAGE and not self._hints:
            return None
        return self._chunk(channel, text.encode("utf-8"), StopReason.NONE, 0)

    def last(self, stop: StopReason, event_id: int) -> Answer:
        return self._chunk(TokenChannel.MESSAGE, b"", stop, event_id)

    def pass_over(self, event: Event) -> None:
        """Count the text of an event that is not sent, so that the next position is right."""
        if event.type == EventType.SESSION_UPDATE:
            self._text(_said(event), event.id)

    def _note_tool(self, update: _Update) -> None:
        kind, call = update.session_update, str(update.tool_call_id)
        if kind in _TOOLS:
            if update.status in _OVER:
                self._tools.discard(call)
            elif kind == "tool_call":
                self._tools.add(call)
            self.waits = bool(self._tools)
        elif kind in _CHANNELS:
            self.waits = False

    def _text(self, update: _Update, event_id: int) -> Answer | None:
        channel, content = _CHANNELS.get(update.session_update), update.content
        if channel is None or not isinstance(content, dict) or not isinstance(content.get("text"), str):
            return None
        if channel is not TokenChannel.MESSAGE and not self._hints:
            return None  # without a hint a thought could not be told from the answer
        return self._chunk(channel, content["text"].encode("utf-8"), StopReason.NONE, event_id)

    def _tool(self, event: Event) -> Answer:
        return self._json(event, PayloadKind.TOOL_DELTA, AGENT_TOOL)

    def _structured(self, event: Event) -> Answer:
        return self._json(event, PayloadKind.STRUCTURED_EVENT, AGENT_EVENT)

    def _json(self, event: Event, kind: PayloadKind, schema: SchemaDescriptor) -> Answer:
        """The event as REST shows it: under ``schema`` where the client has it, else under none, which is profile and
        schema 0 (nnrp-wire 11.4)."""
        semantics = schema.default_stream_semantics
        if not self._schemas:
            payload = TypedPayload.of(envelope(event), stream_semantics=semantics)
            return Answer(payloads=(payload,), kinds=kind, event_id=event.id)
        payload = TypedPayload.of(
            envelope(event),
            profile_id=schema.profile_id,
            schema_id=schema.schema_id,
            schema_version=schema.schema_version,
            stream_semantics=semantics,
            flags=DescriptorFlags.SCHEMA_OVERRIDE,
        )
        return Answer(payloads=(payload,), kinds=kind, profile_id=ProfileId.TOKEN, event_id=event.id)

    def _chunk(self, channel: TokenChannel, data: bytes, stop: StopReason, event_id: int) -> Answer:
        flags, terminal = DescriptorFlags(0), stop is not StopReason.NONE
        if self._hints:
            start = self._at.get(channel, 0)
            end = self._at[channel] = start + len(data)
            hint = TokenHint(TokenUnit.UTF8_BYTE, stop, channel, start & 0xFFFF_FFFF, end & 0xFFFF_FFFF)
            data, flags = hint.pack() + data, DescriptorFlags.PROFILE_HINT_PRESENT
        payload = text_payload(data, terminal=terminal, schema=self._schema, flags=flags)
        return Answer(payloads=(payload,), kinds=PayloadKind.TOKEN_CHUNK, profile_id=ProfileId.TOKEN, event_id=event_id)


def _said(event: Event) -> _Update:
    return _decode_said(event.data).update
