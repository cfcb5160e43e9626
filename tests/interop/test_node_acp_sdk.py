"""The official `@agentclientprotocol/sdk` clients, and `eventsource`, unchanged, against moorline."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Moorline, NodeRunner

pytestmark = [pytest.mark.node, pytest.mark.process]


def test_official_client_over_http(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """session/new, prompts, permission both ways, cancel, list, and the reply to session/close (issue 3; ACP-062, 103, 196).

    The reply to session/close must reach the client before its session stream ends, or it fails the request itself.
    """
    checks = run_node("acp_sdk.mjs", moorline_server, TRANSPORT="http")
    assert len(checks) == 12


def test_official_client_over_websocket(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """The same over one socket, and session/load by a second connection (ACP-122, 193, 231)."""
    checks = run_node("acp_sdk.mjs", moorline_server, TRANSPORT="ws")
    assert len(checks) == 13


def test_official_clients_with_a_token(run_node: NodeRunner, guarded_server: Moorline) -> None:
    """ACP-241, ACP-251."""
    for transport in ("http", "ws"):
        checks = run_node(
            "acp_sdk.mjs", guarded_server, "session/new and session/prompt", TRANSPORT=transport, TOKEN="interop-secret"
        )
        assert len(checks) == 1


def test_eventsource_reconnects_by_itself(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """Only `retry:`, `id:` and Last-Event-ID: ACP-090, 091, 093, 095, 134, 137, 146; REST-081, 084."""
    checks = run_node("eventsource.mjs", moorline_server)
    assert len(checks) == 2
