from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from sessions import Harbour, Limits, open_harbour
from tests.support.fake_runner import FakeRunner


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def limits() -> Limits:
    """Override in a module, or with ``@pytest.mark.parametrize("limits", …)``."""
    return Limits()


@pytest.fixture
async def harbour(runner: FakeRunner, limits: Limits) -> AsyncIterator[Harbour]:
    async with open_harbour(runner, workspaces=["/project", "/other"], limits=limits, random=random.Random(7)) as each:
        yield each
