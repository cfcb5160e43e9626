"""pytest fixtures: ``pytest_plugins = ["server.testing.pytest_plugin"]`` in a conftest.

They work with pytest-trio: the test asks for ``autojump_clock`` itself, so that its time is virtual.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from server.testing.faults import Weather
from server.testing.world import World, open_world

__all__ = ["moorline_seed", "moorline_weather", "moorline_world"]


@pytest.fixture
def moorline_seed() -> int:
    """The seed of the world; override or parametrize."""
    return 1


@pytest.fixture
def moorline_weather() -> Weather | None:
    """None: perfect connections; override with a `Weather` for faults."""
    return None


@pytest.fixture
async def moorline_world(moorline_seed: int, moorline_weather: Weather | None) -> AsyncIterator[World]:
    """A whole server in memory with a `ScriptedAgent`; ask for ``autojump_clock`` beside it."""
    async with open_world(moorline_seed, weather=moorline_weather) as world:
        yield world
