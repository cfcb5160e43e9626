"""Starting an agent process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from sessions.errors import AgentStartError

__all__ = ["SECRETS", "ChildSettings", "inherited_environment", "spawn"]

SECRETS: Final = frozenset({"MOORLINE_TOKEN", "QWEN_SERVER_TOKEN", "MOORLINE_UPSTREAM_KEY"})
"""The server's own credentials: an agent runs a model's commands and has no business with them."""


def inherited_environment() -> dict[str, str]:
    """What a process we start for an agent, or as one, may know of our environment: all but `SECRETS`."""
    return {key: value for key, value in os.environ.items() if key not in SECRETS}


@attrs.frozen(slots=True, kw_only=True)
class ChildSettings:
    """What every process of a runner has in common. Times are seconds."""

    command: Sequence[str]
    env: Mapping[str, str]
    name: str
    kill_grace: float
    cancel_grace: float
    idle_timeout: float
    offer_files: bool
    offer_terminals: bool


async def spawn(settings: ChildSettings, cwd: str | None) -> trio.Process:
    """Start the process, leader of its own group. Raises `AgentStartError`."""
    command = list(settings.command)
    try:
        return await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=inherited_environment() | dict(settings.env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        message = f"Cannot start agent {command[0]!r}: {error}"
        raise AgentStartError(message, data={"command": command[0]}, error_kind="missing_binary") from error
