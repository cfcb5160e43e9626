"""The harbour this configuration asks for, with what stands behind its sessions."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from server.config import Config
from sessions.harbour import Harbour, open_harbour
from sessions.observer import Observer
from sessions.permissions import PermissionPolicy
from sessions.runner import Runner

__all__ = ["choose_runner", "open_engine"]


@asynccontextmanager
async def open_engine(config: Config, observer: Observer) -> AsyncIterator[Harbour]:
    async with open_harbour(
        choose_runner(config),
        workspaces=config.workspaces,
        limits=config.limits,
        permission_policy=PermissionPolicy(config.permission_policy),
        observer=observer,
        drain_grace=max(1.0, config.drain_ms / 1000),
    ) as harbour:
        yield harbour


def choose_runner(config: Config) -> Runner:
    """Imports only the backend that is used."""
    if config.upstream is not None:
        return _make("OpenAIRunner", config.upstream, model=config.upstream_model, key=config.upstream_key)
    if config.agent == "demo":
        return _make("DemoRunner")
    return _make(
        "AcpAgentRunner",
        shlex.split(config.agent),
        per_session=config.agent_per_session,
        start_timeout=config.agent_start_timeout_ms / 1000,
    )


def _make(name: str, *args: Any, **more: Any) -> Runner:
    runner: Runner = getattr(importlib.import_module("server.backends"), name)(*args, **more)
    return runner
