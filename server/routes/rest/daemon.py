"""``GET /daemon/status``: diagnostics of the process."""

from __future__ import annotations

import os
import time
from typing import Any

import trio
from quart import Blueprint, Response, request

from server.config import Config
from server.ground import Ground
from server.routes.body import json_response
from server.routes.rest.asking import client_header, timestamp
from server.routes.rest.capabilities import COMPATIBLE_WITH
from sessions import Session

__all__ = ["register"]


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.get("/daemon/status")
    async def daemon_status() -> Response:
        """Diagnostics of the process; ``?detail=full`` with a row per session."""
        client_header()
        full = request.args.get("detail") == "full"
        return json_response(_report(ground, full=full))


def _report(ground: Ground, *, full: bool) -> dict[str, Any]:
    config, now = ground.config, ground.engine.statistics()
    draining = ground.drain.begun
    report: dict[str, Any] = {
        "v": 1,
        "detail": "full" if full else "summary",
        "generatedAt": timestamp(time.time_ns() // 1_000_000),
        "status": "warning" if draining else "ok",
        "issues": [_DRAINING] if draining else [],
        "daemon": {
            "pid": os.getpid(),
            "uptimeMs": int((trio.current_time() - ground.started) * 1000),
            "mode": "http-bridge",
            "workspaceCwd": config.workspaces[0],
            "qwenCodeVersion": COMPATIBLE_WITH,
        },
        "security": _security(config),
        "limits": _limits(config),
        "runtime": {
            "sessions": {
                "active": now.sessions,
                "stored": now.archived,
                "storedBytes": now.archived_bytes,
                "activePrompts": now.active_prompts,
                "pendingPermissions": now.pending_permissions,
            },
            "transport": {
                "restSseActive": now.subscribers,
                "clients": now.clients,
                "connections": len(ground.guard.connections),
            },
        },
    }
    if full:
        sessions: list[Session] = ground.engine.sessions
        report["full"] = {"sessions": [_session(each) for each in sessions]}
    return report


_DRAINING = {"code": "daemon_draining", "severity": "warning", "message": "The server is shutting down"}


def _security(config: Config) -> dict[str, Any]:
    mode = "any" if "*" in config.allow_origin else "list" if config.allow_origin else "none"
    return {
        "tokenConfigured": config.token is not None,
        "requireAuth": config.require_auth,
        "loopbackBind": config.loopback,
        "allowOriginConfigured": bool(config.allow_origin),
        "allowOriginMode": mode,
        "sessionShellCommandEnabled": False,
    }


def _limits(config: Config) -> dict[str, Any]:
    """Null: no limit."""
    return {
        "maxSessions": config.max_sessions or None,
        "maxTotalSessions": config.max_total_sessions or None,
        "maxPendingPromptsPerSession": config.max_pending_prompts_per_session or None,
        "listenerMaxConnections": config.max_connections or None,
        "eventRingSize": config.event_ring_size,
        "ringBytes": config.ring_bytes,
        "maxQueuedEvents": config.max_queued_events,
        "maxQueuedBytes": config.max_queued_bytes,
        "maxSubscribersPerSession": config.max_subscribers or None,
        "promptDeadlineMs": config.prompt_deadline_ms or None,
        "writerIdleTimeoutMs": config.writer_idle_timeout_ms or None,
        "channelIdleTimeoutMs": 0,
        "sessionIdleTimeoutMs": config.session_idle_ms,
        "acpConnectionCap": config.max_acp_connections or None,
        "compactedReplayMaxBytes": config.replay_bytes,
        "maxJournalEvents": config.event_ring_size,
        "maxJournalBytes": config.ring_bytes,
    }


def _session(session: Session) -> dict[str, Any]:
    state, ring = session.state(), session.ring.statistics()
    return {
        "sessionId": session.id,
        "workspaceCwd": session.cwd,
        "createdAt": timestamp(session.created_at),
        "displayName": session.display_name,
        "phase": session.phase,
        "clientCount": len(session.clients),
        "subscriberCount": ring.subscribers,
        "attachCount": len(session.clients),
        "pendingPromptCount": session.prompts.count,
        "pendingPermissionCount": len(session.permissions.pending),
        "hasActivePrompt": session.prompts.count > 0,
        "lastEventId": ring.head,
        "ringEvents": ring.events,
        "ringBytes": ring.bytes,
        "currentModelId": (state.get("models") or {}).get("currentModelId"),
        "currentApprovalMode": (state.get("modes") or {}).get("currentModeId"),
    }
