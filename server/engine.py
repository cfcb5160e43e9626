"""The harbour this configuration asks for, with what stands behind its sessions."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from server.config import Config
from sessions.harbour import Harbour, open_harbour
from sessions.observer import Observer
from sessions.permissions import PermissionPolicy
from sessions.runner import Runner

__all__ = ["choose_runner", "open_engine"]

_KILL_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for an agent process: small enough for the process to end within 5 s (C-063)."""


@asynccontextmanager
async def open_engine(config: Config, observer: Observer) -> AsyncIterator[Harbour]:
    async with open_harbour(
        choose_runner(config),
        workspaces=config.workspaces,
        limits=config.limits,
        permission_policy=PermissionPolicy(config.permission_policy),
        observer=observer,
        drain_grace=max(1.0, config.drain_ms / 2000),
    ) as harbour:
        yield harbour


def choose_runner(config: Config) -> Runner:
    """Imports only the backend that is used."""
    if config.upstream is not None:
        from server.backends.openai import OpenAIRunner

        return OpenAIRunner(config.upstream, model=config.upstream_model, api_key=config.upstream_key)
    if config.agent == "demo":
        from server.backends.demo import DemoRunner

        return DemoRunner()
    from server.backends.acp_stdio import AcpAgentRunner

    return AcpAgentRunner(
        shlex.split(config.agent),
        agent_per_session=config.agent_per_session,
        start_timeout=config.agent_start_timeout_ms / 1000,
        kill_grace=_KILL_GRACE,
    )
