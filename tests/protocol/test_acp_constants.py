"""Names and numbers shared by server and client."""

from __future__ import annotations

import pytest

from protocol.acp import SESSION_REPLY_METHODS, http_status_of


def test_the_reply_methods() -> None:
    """ACP-100: exactly these five."""
    assert sorted(SESSION_REPLY_METHODS) == [
        "session/cancel",
        "session/prompt",
        "session/set_config_option",
        "session/set_mode",
        "session/set_model",
    ]


@pytest.mark.parametrize(
    ("code", "data", "status"),
    [
        (-32601, None, 404),
        (-32600, None, 400),
        (-32602, {}, 400),
        (-32700, "text", 400),
        (-32603, {"errorKind": "session_archived"}, 409),
        (-32603, {"errorKind": "session_conflict"}, 409),
        (-32603, {"errorKind": "session_archiving"}, 409),
        (-32603, {"errorKind": "internal"}, 500),
        (-32603, {"errorKind": ["odd"]}, 500),
        (-32602, {"httpStatus": 404}, 404),
        (-32602, {"httpStatus": "404"}, 400),
        (-32602, {"httpStatus": True}, 400),
        (1, None, 500),
    ],
)
def test_statuses(code: int, data: object, status: int) -> None:
    """acp-http section 9: data.httpStatus, else code, else kind, else 500."""
    assert http_status_of(code, data) == status
