"""``GET /capabilities``: what this server does, and no more (REST-011 to REST-015)."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import Any, Final

from quart import Blueprint, Response

from server.config import Config
from server.ground import Ground
from server.routes.body import json_response
from server.routes.rest.asking import client_header

__all__ = ["COMPATIBLE_WITH", "FEATURES", "capabilities", "features", "register"]

COMPATIBLE_WITH: Final = "0.24.4"
"""The daemon version whose REST surface this is."""

FEATURES: Final = (
    "health",
    "daemon_status",
    "capabilities",
    "session_create",
    "session_id_override",
    "session_scope_override",
    "session_load",
    "session_resume",
    "unstable_session_resume",
    "session_list",
    "session_source_metadata",
    "session_prompt",
    "session_cancel",
    "session_events",
    "slow_client_warning",
    "typed_event_schema",
    "session_set_model",
    "client_identity",
    "client_heartbeat",
    "session_permission_vote",
    "permission_vote",
    "workspace_providers",
    "session_context",
    "session_context_usage",
    "session_supported_commands",
    "session_stats",
    "session_status",
    "session_close",
    "session_metadata",
    "session_transcript",
    "session_transcript_pagination",
    "session_approval_mode_control",
    "permission_mediation",
    "non_blocking_prompt",
    "session_branch",
    "moorline_prompt_outcome",
    "moorline_prompt_idempotency",
    "moorline_cancel_prompt_id",
)
"""Served by every start; the last three are ours. Conditional ones are added by `features`."""


def register(routes: Blueprint, ground: Ground) -> None:
    body = capabilities(ground.config, nnrp=ground.nnrp is not None)

    @routes.get("/capabilities")
    async def served() -> Response:
        """What this server does: features, limits, workspaces, transports (REST-011 to REST-015)."""
        client_header()
        return json_response(body)


def features(config: Config, *, nnrp: bool = False) -> list[str]:
    """The tags of REST-013 that hold under this configuration. ``nnrp``: it is served in the same process."""
    conditional = {
        "require_auth": config.require_auth,
        "allow_origin": bool(config.allow_origin),
        "prompt_absolute_deadline": config.prompt_deadline_ms > 0,
        "writer_idle_timeout": config.writer_idle_timeout_ms > 0,
        "multi_workspace_sessions": len(config.workspaces) > 1,
        "moorline_nnrp_token": nnrp,
    }
    return [*FEATURES, *(name for name, holds in conditional.items() if holds)]


def capabilities(config: Config, *, nnrp: bool = False) -> dict[str, Any]:
    workspaces = config.workspaces
    return {
        "v": 1,
        "protocolVersions": {"current": "v1", "supported": ["v1"]},
        "qwenCodeVersion": COMPATIBLE_WITH,
        "server": {"name": "moorline", "version": version("moorline")},
        "mode": "http-bridge",
        "features": features(config, nnrp=nnrp),
        "sessionLiveStatePollIntervalMs": 5000,
        "modelServices": [],
        "workspaceCwd": workspaces[0],
        "transports": list(config.transports),
        "policy": {"permission": config.permission_policy},
        "limits": {
            "maxPendingPromptsPerSession": config.max_pending_prompts_per_session or None,
            "sessionRestoreTimeoutMs": config.restore_timeout_ms,
            "maxSessionsPerWorkspace": config.max_sessions or None,
            "maxTotalSessions": config.max_total_sessions or None,
            "maxRegisteredWorkspaces": len(workspaces),
            "maxSubscribersPerSession": config.max_subscribers or None,
            "maxRequestBodyBytes": config.max_body_bytes,
        },
        "workspaces": [
            {"id": workspace_id(cwd), "cwd": cwd, "primary": index == 0, "trusted": True}
            for index, cwd in enumerate(workspaces)
        ],
        "supportedLanguages": ["en", "auto"],
    }


def workspace_id(cwd: str) -> str:
    """Stable over restarts, and no path."""
    return hashlib.sha256(cwd.encode("utf-8", "surrogateescape")).hexdigest()[:16]
