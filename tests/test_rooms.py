"""Imports point one way: protocol <- sessions <- server, protocol <- client."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("protocol", "sessions", "server", "client")
MAY_IMPORT = {
    "protocol": {"protocol"},
    "sessions": {"sessions", "protocol"},
    "server": {"server", "sessions", "protocol"},
    "client": {"client", "protocol"},
}
# The command line offers the client's commands; the test harness and the conformance adapter link the real client to a
# real server.
CROSSINGS = {
    ("server/cli", "client"),
    ("server/commands", "client"),
    ("server/testing", "client"),
    ("server/conformance", "client"),
}
IO_LIBRARIES = {
    "trio",
    "socket",
    "ssl",
    "quart",
    "quart_trio",
    "hypercorn",
    "httpx2",
    "trio_websocket",
    "asyncio",
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    wrong = []
    for path in modules(room):
        relative = path.relative_to(ROOT).with_suffix("").as_posix()
        for name in imported(path) & set(ROOMS):
            crossing = any(relative.startswith(prefix) and name == other for prefix, other in CROSSINGS)
            if name not in MAY_IMPORT[room] and not crossing:
                wrong.append(f"{relative} imports {name}")
    assert wrong == []


def test_protocol_is_pure() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}" for path in modules("protocol") for name in imported(path) & IO_LIBRARIES
    ]
    assert wrong == []


def test_sessions_know_no_wire() -> None:
    wires = IO_LIBRARIES - {"trio"}
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in modules("sessions") for name in imported(path) & wires]
    assert wrong == []


def test_acp_reaches_into_no_internals_of_the_engine() -> None:
    """ACP-002: ``/acp`` adds a transport; of rings, sessions, subscriptions and the harbour it uses what they offer."""
    engine = {"ring", "session", "subscription", "harbour", "engine", "permissions", "operation"}
    wrong = []
    for path in sorted((ROOT / "server" / "routes" / "acp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = getattr(node.value, "attr", getattr(node.value, "id", "")).lstrip("_")
                if owner in engine:
                    wrong.append(f"{path.name}:{node.lineno} {owner}.{node.attr}")
    assert wrong == []
