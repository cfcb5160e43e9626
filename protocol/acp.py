"""Names and numbers of ``/acp`` that server and client must agree on. Each is written down once, here."""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "CLIENT_ID_HEADER",
    "CONNECTION_ID_HEADER",
    "CONSUMER_ROLE",
    "EPOCH_HEADER",
    "ERROR_KIND_STATUS",
    "IDEMPOTENCY_KEY_HEADER",
    "LAST_EVENT_ID_HEADER",
    "META_KEY",
    "MOORLINE_SESSION_ATTACH",
    "PERMISSION_ID_PREFIX",
    "PROTOCOL_VERSION",
    "QWEN_META_KEY",
    "QWEN_NOTIFY",
    "REPLIES_ROLE",
    "SESSION_ID_HEADER",
    "SESSION_REPLY_METHODS",
    "SSE_STREAM_ID_HEADER",
    "STREAM_ROLE_HEADER",
    "RpcCode",
    "http_status_of",
]

PROTOCOL_VERSION: Final = 1

SESSION_REPLY_METHODS: Final = frozenset(
    {
        "session/prompt",
        "session/cancel",
        "session/set_config_option",
        "session/set_mode",
        "session/set_model",
    }
)
"""The methods answered on the session stream; everything else is answered on the connection stream (ACP-100).

The server advertises it as ``agentCapabilities._meta.moorline.sessionReplyMethods`` (ACP-104)."""

CONNECTION_ID_HEADER: Final = "Acp-Connection-Id"
SESSION_ID_HEADER: Final = "Acp-Session-Id"
LAST_EVENT_ID_HEADER: Final = "Last-Event-ID"
EPOCH_HEADER: Final = "X-Qwen-Event-Epoch"
CLIENT_ID_HEADER: Final = "X-Qwen-Client-Id"
SSE_STREAM_ID_HEADER: Final = "X-Qwen-SSE-Stream-Id"
IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"

STREAM_ROLE_HEADER: Final = "X-Moorline-Stream-Role"
REPLIES_ROLE: Final = "replies"
"""A session stream with this role only routes replies and is no consumer for permission requests."""
CONSUMER_ROLE: Final = "consumer"

QWEN_META_KEY: Final = "qwen"
META_KEY: Final = "moorline"
"""Our own key under ``_meta`` (ACP-199)."""

QWEN_NOTIFY: Final = "_qwen/notify"
MOORLINE_SESSION_ATTACH: Final = "_moorline/session/attach"
PERMISSION_ID_PREFIX: Final = "_qwen_perm_"
"""Outbound permission requests have string ids with this prefix, disjoint from client ids (ACP-172)."""


class RpcCode(enum.IntEnum):
    """JSON-RPC error codes in use (acp-http section 9)."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603


ERROR_KIND_STATUS: Final = {
    "session_archived": 409,
    "session_conflict": 409,
    "session_archiving": 409,
}
"""HTTP status a client gives an error by its ``errorKind`` when ``data.httpStatus`` is absent."""

_CODE_STATUS: Final[dict[int, int]] = {
    RpcCode.METHOD_NOT_FOUND: 404,
    RpcCode.INVALID_REQUEST: 400,
    RpcCode.INVALID_PARAMS: 400,
    RpcCode.PARSE_ERROR: 400,
}


def http_status_of(code: int, data: object = None) -> int:
    """The HTTP status that stands for a JSON-RPC error: ``data.httpStatus``, else by code, else by kind, else 500."""
    details = data if isinstance(data, dict) else {}
    status = details.get("httpStatus")
    if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
        return status
    if code in _CODE_STATUS:
        return _CODE_STATUS[code]
    return ERROR_KIND_STATUS.get(str(details.get("errorKind")), 500)
