"""Routes of the daemon that are features of its product (rest.md section 10): named here so that the 404 can say so."""

from __future__ import annotations

from typing import Final

__all__ = ["PRIVATE_ROUTES", "is_private"]

_SESSION: Final = (
    "agent-trace",
    "agents",
    "artifacts",
    "attachments",
    "btw",
    "continue",
    "export",
    "goal",
    "hooks",
    "language",
    "lsp",
    "mid-turn-message",
    "mid-turn-messages",
    "organization",
    "recap",
    "resources",
    "rewind",
    "shell",
    "side-task",
    "sources",
    "sub-agents",
    "tasks",
    "turns",
    "turn-index",
    "workflows",
)
_WORKSPACE: Final = (
    "acp",
    "agents",
    "config",
    "env",
    "extensions",
    "git",
    "github",
    "hooks",
    "init",
    "mcp",
    "memory",
    "models",
    "permissions",
    "preflight",
    "reload",
    "runtime",
    "settings",
    "skills",
    "tools",
    "trust",
    "voice",
)
_TOP: Final = (
    "a2ui",
    "auth",
    "brand",
    "cdp",
    "channels",
    "edit",
    "extensions",
    "file",
    "glob",
    "list",
    "live",
    "local-control",
    "mcp-app",
    "notify",
    "pairing",
    "scheduled-tasks",
    "sessions/archive",
    "sessions/unarchive",
    "ssh",
    "standalone",
    "stat",
    "terminal",
    "usage",
    "voice",
    "webhooks",
    "workspaces",
)
PRIVATE_ROUTES: Final = (
    *(f"/session/:id/{name}" for name in _SESSION),
    *(f"/workspace/{name}" for name in _WORKSPACE),
    *(f"/{name}" for name in _TOP),
)
"""Each with everything below it."""
_BY_PLACE: Final = {"session": (3, frozenset(_SESSION)), "workspace": (2, frozenset(_WORKSPACE))}
_TOP_PLACES: Final = frozenset(tuple(name.split("/")) for name in _TOP)


def is_private(path: str) -> bool:
    """Whether a path that no route serves is one of the daemon's product features."""
    parts = path.strip("/").split("/")
    place = _BY_PLACE.get(parts[0])
    if place is not None:
        depth, names = place
        return len(parts) >= depth and parts[depth - 1] in names
    return tuple(parts[:1]) in _TOP_PLACES or tuple(parts[:2]) in _TOP_PLACES
