"""Deterministic simulation, for programs that embed moorline or test against it. See docs/testing.md."""

from server.testing.agents import ScriptedAgent, Turn
from server.testing.faults import PERFECT, FaultPlan, LinkFaults, Weather
from server.testing.link import Link, LinkStream
from server.testing.network import Network
from server.testing.run import run_seeded
from server.testing.world import BASE_URL, World, open_world

__all__ = [
    "BASE_URL",
    "PERFECT",
    "FaultPlan",
    "Link",
    "LinkFaults",
    "LinkStream",
    "Network",
    "ScriptedAgent",
    "Turn",
    "Weather",
    "World",
    "open_world",
    "run_seeded",
]
