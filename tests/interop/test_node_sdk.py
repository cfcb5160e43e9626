"""The shipped `@qwen-code/sdk` 0.1.14, unchanged, against moorline on its three transports."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Moorline, NodeRunner

pytestmark = [pytest.mark.node, pytest.mark.process]


def test_daemon_clients_over_rest(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """Create, prompt, resume after cuts, cancel, votes, both prompt limits, heartbeat, list, load, close.

    REST-011, 022, 023, 031, 041, 050, 053, 062, 065, 068, 069, 070, 084, 085, 101, 102; C-001, C-018, C-021.
    """
    checks = run_node("sdk_rest.mjs", moorline_server)
    assert len(checks) == 19


def test_acp_http_transport(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """Create, prompt with and without a subscription, resume in mid-turn, votes, cancel, limits, load, close.

    client-sdk 4 and 4.1 (K1, K2, K5, K6); ACP-030, 054, 061, 100, 137, 146, 173, 175, 180, 216, 217.
    """
    checks = run_node("sdk_acp.mjs", moorline_server, TRANSPORT="http")
    assert len(checks) == 14


def test_acp_ws_transport(run_node: NodeRunner, moorline_server: Moorline) -> None:
    """The same over one WebSocket, without resume: ACP-172, 231, 234, 235; client-sdk 4.2."""
    checks = run_node("sdk_acp.mjs", moorline_server, TRANSPORT="ws")
    assert len(checks) == 12


def test_sdk_with_a_token(run_node: NodeRunner, guarded_server: Moorline) -> None:
    """ACP-241, ACP-251: a bearer token reaches REST, /acp and the upgrade."""
    only = ("prompt without a subscription", "create")
    for script, transport in (("sdk_rest.mjs", ""), ("sdk_acp.mjs", "http"), ("sdk_acp.mjs", "ws")):
        checks = run_node(script, guarded_server, *only, TRANSPORT=transport, TOKEN="interop-secret")
        assert {check.check for check in checks} == set(only)
