"""Health and metrics."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any

import trio
from prometheus_client.core import CounterMetricFamily, Metric
from quart import Blueprint, Response, request

from server.ground import Ground
from server.metrics import CONTENT_TYPE, gauge, total
from server.routes.body import json_response

__all__ = ["blueprint"]


def blueprint(ground: Ground) -> Blueprint:
    routes = Blueprint("ops", __name__)
    ground.metrics.watch(lambda: _gauges(ground))

    @routes.get("/health")
    async def health() -> Response:
        """REST-010: cheap; with ``?deep=1`` the counters, or why the server is not well."""
        if request.args.get("deep", "") not in ("1", "true"):
            return json_response({"status": "ok"})
        if ground.drain.begun:
            return json_response({"status": "degraded", "reason": "draining"}, 503)
        return json_response({"status": "ok", **_counters(ground)})

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(ground.metrics.text(), content_type=CONTENT_TYPE)

    return routes


def _counters(ground: Ground) -> dict[str, Any]:
    now = ground.engine.statistics()
    idle = max(0.0, trio.current_time() - max(now.last_activity, ground.started))
    last = datetime.datetime.fromtimestamp(time.time() - idle, datetime.UTC)
    return {
        "workspaceCount": len(ground.config.workspaces),
        "sessions": now.sessions,
        "pendingPermissions": now.pending_permissions,
        "activePrompts": now.active_prompts,
        "activeWork": now.active_prompts > 0,
        "activeWorkReporting": "full",
        "activeWorkStaleMs": 0,
        "connectedClients": now.clients,
        "channelAlive": True,
        "lastActivityAt": last.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "idleSinceMs": 0 if now.active_prompts else int(idle * 1000),
    }


def _gauges(ground: Ground) -> Iterable[Metric]:
    now = ground.engine.statistics()
    yield gauge("sessions", "Live sessions", now.sessions)
    yield gauge("sessions_archived", "Closed sessions kept loadable", now.archived)
    yield gauge("archive_bytes", "Bytes of history of closed sessions", now.archived_bytes)
    yield gauge("prompts_active", "Accepted, unsettled prompts", now.active_prompts)
    yield gauge("permissions_pending", "Unanswered permission requests", now.pending_permissions)
    yield gauge("clients", "Registered clients", now.clients)
    yield gauge("subscribers", "Readers of session events", now.subscribers)
    yield gauge("connections", "Open sockets", len(ground.guard.connections))
    yield total("connections_refused", "Sockets refused because there were too many", ground.guard.refused)
    yield _ended(ground.guard.ended)


def _ended(counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily("moorline_connections_ended", "Connections ended, by reason", labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family
