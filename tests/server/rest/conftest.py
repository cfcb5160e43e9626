"""The whole application in memory, with the real engine and a runner of scripts: no sockets, no waiting."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from server.application import Application
from server.config import Config
from sessions import open_harbour
from sessions.permissions import PermissionPolicy
from tests.server.rest.api import Api
from tests.server.rest.runner import RestRunner
from tests.support.asgi import drive

StartApi = Callable[..., AbstractAsyncContextManager[Api]]
WORKSPACES = ("/project", "/other place")


@pytest.fixture
def runner() -> RestRunner:
    return RestRunner()


@asynccontextmanager
async def start_api(runner: RestRunner, *, client: str = "127.0.0.1", **settings: Any) -> AsyncIterator[Api]:
    """``settings`` are fields of `Config`; ``client`` is the address requests come from."""
    config = Config(**{"port": 4170, "workspace": WORKSPACES, **settings})

    @asynccontextmanager
    async def open_engine(config: Config, observer: Any) -> AsyncIterator[Any]:
        async with open_harbour(
            runner,
            workspaces=config.workspaces,
            limits=config.limits,
            permission_policy=PermissionPolicy(config.permission_policy),
            observer=observer,
            random=random.Random(11),
        ) as harbour:
            yield harbour

    application = Application(config, open_engine=open_engine, packages=["server.routes.ops", "server.routes.rest"])
    async with drive(application, client=client) as driver:
        yield Api(driver)


@pytest.fixture
def start(runner: RestRunner) -> StartApi:
    """``start(**settings)``: an application of its own, as a context manager."""

    def begin(**settings: Any) -> AbstractAsyncContextManager[Api]:
        return start_api(runner, **settings)

    return begin


@pytest.fixture
async def api(runner: RestRunner) -> AsyncIterator[Api]:
    """An application with the default settings. A test that waits also asks for ``autojump_clock``."""
    async with start_api(runner) as each:
        yield each
