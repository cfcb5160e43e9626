"""The answer to ``initialize`` (acp-http 2.3)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from protocol.acp import META_KEY, MOORLINE_SESSION_ATTACH, PROTOCOL_VERSION, QWEN_META_KEY, SESSION_REPLY_METHODS
from server.routes.acp.connection import AcpConnection
from server.routes.acp.inflight import OUTCOME_NOTIFICATION

__all__ = ["asks_to_resume", "initialize_result", "negotiated_version"]


@cache
def _version() -> str:
    return importlib.metadata.version("moorline")


def negotiated_version(requested: object) -> int:
    """ACP-061."""
    if isinstance(requested, bool) or not isinstance(requested, (int, float)):
        return PROTOCOL_VERSION
    return max(1, min(int(requested), PROTOCOL_VERSION))


def asks_to_resume(params: Mapping[str, Any]) -> bool:
    """``_meta.moorline.detach: true``: keep my sessions for a while when the socket is lost."""
    meta = params.get("_meta")
    ours = meta.get(META_KEY) if isinstance(meta, Mapping) else None
    return isinstance(ours, Mapping) and ours.get("detach") is True


def initialize_result(
    connection: AcpConnection,
    params: Mapping[str, Any],
    *,
    workspace: str,
    vendor_methods: Iterable[str],
    socket_grace: float | None = None,
) -> dict[str, Any]:
    """ACP-062. ``socket_grace`` (seconds) when this is a WebSocket whose sessions are kept for its client."""
    ours: dict[str, Any] = {
        "sessionReplyMethods": sorted(SESSION_REPLY_METHODS),
        "streamRoles": True,
        "adoption": {"notification": OUTCOME_NOTIFICATION},
    }
    if socket_grace is not None:
        ours.update(detach=True, graceMs=round(socket_grace * 1000), methods=[MOORLINE_SESSION_ATTACH])
    return {
        "protocolVersion": negotiated_version(params.get("protocolVersion")),
        "agentCapabilities": {
            "loadSession": True,
            # Blocks are passed on untouched; which of them the agent takes is only known once it runs.
            "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
            "configOptions": True,
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            "mcpCapabilities": {"http": False, "sse": False},
            "_meta": {
                QWEN_META_KEY: {
                    "connectionId": connection.id,
                    "workspaceCwd": workspace,
                    "methods": sorted(vendor_methods),
                },
                META_KEY: ours,
            },
        },
        "agentInfo": {"name": "moorline", "version": _version()},
        "authMethods": [],
        "connectionId": connection.id,
    }
