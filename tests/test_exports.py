"""The public names: every package says what it offers, and offers what it says."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import client
import protocol
import server
import sessions

PACKAGES = (sessions, client, protocol, server)


def modules() -> list[str]:
    found = []
    for package in PACKAGES:
        found.append(package.__name__)
        # `app` acts on import (it may hand over to another worker), `__main__` runs.
        found += [
            info.name
            for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
            if not info.name.endswith((".__main__", "server.app"))
        ]
    return found


@pytest.mark.parametrize("name", modules())
def test_all_names_exist(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public), f"{name}.__all__ names {public}"


def test_the_engines_public_names() -> None:
    """A change here is a change of the API: say so in a news fragment."""
    assert sorted(sessions.__all__) == [
        "Attachment",
        "AttachmentPhase",
        "CancelReason",
        "CancelScopeKind",
        "Capabilities",
        "EndReason",
        "Event",
        "EventType",
        "Harbour",
        "HarbourStatistics",
        "Limits",
        "Note",
        "Notice",
        "NoticeType",
        "NullObserver",
        "Observer",
        "Opened",
        "Operation",
        "OperationExists",
        "OperationState",
        "Outcome",
        "PermissionOutcome",
        "PermissionPolicy",
        "Priority",
        "PromptRequest",
        "Ring",
        "Runner",
        "RunnerSession",
        "Session",
        "SessionError",
        "SessionHost",
        "SessionPhase",
        "SessionSpec",
        "StoredSession",
        "Subscription",
        "TurnResult",
        "VoteResult",
        "Voter",
        "open_harbour",
    ]
