"""Events as the caller sees them: the same objects whatever wire they came over (CLI-039)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from protocol.acp import META_KEY, QWEN_META_KEY, QWEN_NOTIFY
from protocol.jsonrpc import Id, InvalidJson, Notification, Request, decode_json
from protocol.sse import MAX_EVENT_ID, SseEvent, parse_last_event_id

__all__ = [
    "END_OF_SESSION",
    "SYNTHETIC_TYPES",
    "BadEventError",
    "Event",
    "event_from_message",
    "event_from_rest",
]

SYNTHETIC_TYPES: Final = frozenset(
    {
        "client_evicted",
        "replay_complete",
        "session_reloaded",
        "session_snapshot",
        "slow_client_warning",
        "state_resync_required",
        "stream_error",
    }
)
"""Types that never come from the session's ring and have no id (ACP-020). ``session_reloaded`` is this client's own."""

END_OF_SESSION: Final = frozenset({"session_closed", "session_died"})
"""After one of these the stream ends and there is nothing to reconnect to (REST-087)."""


class BadEventError(ValueError):
    """A frame that is no event. It is reported and skipped; the stream goes on (C-107)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a session.

    ``id`` is the cursor after this event, ``None`` for synthetic ones and for WebSockets without resumption.
    ``data`` is the daemon's, undisturbed. ``outbound_id`` is the JSON-RPC id a permission request came with.
    """

    type: str
    data: Any = None
    id: int | None = None
    session_id: str | None = None
    prompt_id: str | None = None
    originator_client_id: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    outbound_id: Id | None = None
    moves_cursor_to: int | None = field(default=None, compare=False)
    size: int = field(default=0, compare=False)

    @property
    def update_kind(self) -> str | None:
        """``sessionUpdate`` of a ``session_update`` (``agent_message_chunk``, ``tool_call``...), else ``None``."""
        update = self._update()
        kind = update.get("sessionUpdate")
        return kind if isinstance(kind, str) else None

    @property
    def text(self) -> str:
        """The text of a message or thought chunk; empty for everything else."""
        content = self._update().get("content")
        text = content.get("text") if isinstance(content, dict) else None
        return text if isinstance(text, str) else ""

    @property
    def request_id(self) -> str | None:
        """The permission request this event is about (CLI-028)."""
        request_id = self.data.get("requestId") if isinstance(self.data, dict) else None
        return request_id if isinstance(request_id, str) else None

    def _update(self) -> dict[str, Any]:
        update = self.data.get("update") if self.type == "session_update" and isinstance(self.data, dict) else None
        return update if isinstance(update, dict) else {}


def event_from_rest(frame: SseEvent) -> Event:
    """The event in a REST frame; its cursor is the envelope's ``id`` (CLI-021, REST-085).

    Raises :class:`BadEventError` for anything that is not a version 1 envelope.
    """
    envelope = _decode(frame.data)
    if not isinstance(envelope, dict) or envelope.get("v") != 1 or not isinstance(envelope.get("type"), str):
        raise BadEventError("not a version 1 event envelope")
    event_id = envelope.get("id")
    if event_id is not None and not _is_event_id(event_id):
        raise BadEventError("the event id is not a positive safe integer")
    data = envelope.get("data")
    details = _object(data)
    return Event(
        type=envelope["type"],
        data=data,
        id=event_id,
        session_id=_text(details.get("sessionId")),
        prompt_id=_text(envelope.get("promptId")) or _text(details.get("promptId")),
        originator_client_id=_text(envelope.get("originatorClientId")),
        meta=_object(envelope.get("_meta")),
        size=len(frame.data),
    )


def event_from_message(message: Notification | Request, id_line: str | None = None, size: int = 0) -> Event | None:
    """The event in a JSON-RPC message of ``/acp``; ``None`` for a method that is none (another agent's extension).

    Its cursor is the ``id:`` line, digits only; an unacceptable one is the same as none (CLI-021).
    Raises :class:`BadEventError` if the parameters do not fit.
    """
    params = _object(_decode(message.params) if message.params is not None else None)
    event_id = parse_last_event_id(id_line)
    if message.method == "session/update" and isinstance(params.get("update"), dict):
        session_id = _text(params.get("sessionId"))
        return Event("session_update", params, event_id, session_id, meta=_object(params.get("_meta")), size=size)
    if message.method == QWEN_NOTIFY:
        return _event_from_notify(params, event_id, size)
    if message.method == "session/request_permission" and isinstance(message, Request):
        return _event_from_permission(message.id, params, event_id, size)
    if message.method == "session/update":
        raise BadEventError("session/update without an update")
    return None


def _event_from_notify(params: dict[str, Any], event_id: int | None, size: int) -> Event:
    kind = params.get("type") or params.get("kind")
    if not isinstance(kind, str):
        raise BadEventError("a notification without a kind")
    data = params["data"] if "data" in params else {k: v for k, v in params.items() if k not in ("kind", "type")}
    details = _object(data)
    # Synthetic frames name no session in their data; on a socket that carries several, a server has to say it beside.
    session_id = (
        _text(details.get("sessionId"))
        or _text(params.get("sessionId"))
        or _text(_object(_object(params.get("_meta")).get(META_KEY)).get("sessionId"))
    )
    return Event(kind, data, event_id, session_id, prompt_id=_text(details.get("promptId")), size=size)


def _event_from_permission(outbound: Id, params: dict[str, Any], event_id: int | None, size: int) -> Event:
    meta = _object(params.get("_meta"))
    # Both keys are in use; ours are always equal (ACP-172). A foreign agent has neither: then the outbound id is all
    # there is to tell requests apart.
    request_id = _text(_object(meta.get(QWEN_META_KEY)).get("requestId")) or _text(meta.get("requestId"))
    data = {key: value for key, value in params.items() if key != "_meta"}
    data["requestId"] = request_id or f"{outbound}"
    session_id = _text(params.get("sessionId"))
    return Event("permission_request", data, event_id, session_id, meta=meta, outbound_id=outbound, size=size)


def _decode(data: str | msgspec.Raw) -> Any:
    try:
        return decode_json(data)
    except InvalidJson as exc:
        raise BadEventError(str(exc)) from exc


def _is_event_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_EVENT_ID


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
