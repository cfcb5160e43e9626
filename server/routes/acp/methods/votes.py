"""``session/permission``: the vote by request id (ACP-175)."""

from __future__ import annotations

from typing import Any, Final

from server.routes.acp.dispatch import Call, Method
from server.routes.acp.permissions import vote_by_request

__all__ = ["METHODS"]


def permission(call: Call) -> dict[str, Any]:
    return vote_by_request(call.connection, call.params)


METHODS: Final = {"session/permission": Method(handler=permission, needs_session=False)}
