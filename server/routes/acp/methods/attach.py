"""``_moorline/session/attach``: go on with a session on a WebSocket, from a cursor."""

from __future__ import annotations

from typing import Any

from protocol.acp import MOORLINE_SESSION_ATTACH
from protocol.jsonrpc import encode_result
from protocol.sse import MAX_EVENT_ID, parse_epoch
from server.routes.acp.binding import Binding
from server.routes.acp.deferred import Reply
from server.routes.acp.dispatch import LATER, Call, Method
from server.routes.acp.errors import invalid_params, not_owned, unknown_method
from server.routes.acp.params import required_text
from server.routes.acp.registry import Registry

__all__ = ["methods"]


def methods(registry: Registry) -> dict[str, Method]:
    def attach(call: Call) -> Any:
        """The reply ``{}`` comes first, then the replay, ``replay_complete``, and the replies that waited.

        The session is one this socket owns, or one of a lost socket whose client had asked for its sessions to be kept.
        """
        connection = call.connection
        if not connection.over_socket:
            raise unknown_method(call.method)
        session_id = connection.canonical(required_text(call.params, "sessionId"))
        cursor, epoch = _cursor(call.params), _epoch(call.params)
        binding = connection.bindings.get(session_id) or _taken_over(registry, call, session_id)
        if binding is None:
            raise not_owned(session_id)
        assert call.id is not None
        # A client may have lost several sockets before it got through: the prompts it sent on the others are its own too.
        for former in registry.unattended(session_id, call.connection):
            if former.connection.may_hand_over:
                binding.adopt(former, call.id)
        connection.start_events(binding, cursor, epoch, first=Reply(encode_result(call.id, {})))
        return LATER

    return {
        MOORLINE_SESSION_ATTACH: Method(handler=attach, needs_session=False, as_notification=False, starts_events=False)
    }


def _taken_over(registry: Registry, call: Call, session_id: str) -> Binding | None:
    for former in registry.unattended(session_id, call.connection):
        if former.connection.may_hand_over:
            successor = call.connection.bind(former.session, None)
            former.hand_over(successor)
            return successor
    return None


def _cursor(params: dict[str, Any]) -> int:
    value = params.get("lastEventId")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_EVENT_ID:
        raise invalid_params("`lastEventId` is required and must be an event id")
    return value


def _epoch(params: dict[str, Any]) -> str | None:
    value = params.get("epoch")
    if value is None:
        return None
    epoch = parse_epoch(value) if isinstance(value, str) else None
    if epoch is None:
        raise invalid_params("`epoch` must be the epoch of a session when provided")
    return epoch
