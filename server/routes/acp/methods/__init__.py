"""The methods of ``/acp``: one table, name to handler (acp-http section 8)."""

from __future__ import annotations

from server.routes.acp.dispatch import Method
from server.routes.acp.methods import attach, prompts, sessions, settings, vendor, votes
from server.routes.acp.registry import Registry

__all__ = ["method_table"]


def method_table(registry: Registry) -> dict[str, Method]:
    """Every method served, but for ``initialize``, which makes a connection instead of using one."""
    return {
        **sessions.methods(registry),
        **prompts.METHODS,
        **settings.METHODS,
        **votes.METHODS,
        **vendor.METHODS,
        **attach.methods(registry),
    }
