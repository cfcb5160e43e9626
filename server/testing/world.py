"""A whole server in memory: harbour, application, the real HTTP stack, a network with weather, and clients of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.typing import ConnectionState

from client import DaemonClient, ReconnectPolicy, TransportKind
from server.application import Application
from server.config import Config
from server.guard import GuardedTCPServer, install
from server.guard_context import GuardedContext
from server.serve import server_settings
from server.testing.agents import ScriptedAgent
from server.testing.faults import FaultPlan, Weather
from server.testing.link import LinkStream
from server.testing.network import Network
from sessions import Harbour, Observer, Runner, open_harbour

__all__ = ["BASE_URL", "World", "open_world"]

BASE_URL: Final = "http://127.0.0.1:4170"
WORKSPACE: Final = "/simulated"
START: Final = 1_800_000_000_000
"""The wall clock at the beginning of every world, ms."""


@attrs.define(eq=False)
class World:
    """What a simulated program has in its hands."""

    seed: int
    rng: random.Random
    nursery: trio.Nursery
    network: Network
    harbour: Harbour
    application: Application
    runner: Runner

    def client(self, transport: TransportKind | str = TransportKind.REST, **options: Any) -> DaemonClient:
        """A real client whose connections go through this world's network. Close it before the world ends."""
        options.setdefault("reconnect", ReconnectPolicy(base=0.5, maximum=3.0, give_up_after=300.0))
        options.setdefault("connect", self.network.connect)
        return DaemonClient(
            BASE_URL,
            nursery=self.nursery,
            transport=transport,
            rng=random.Random(self.rng.getrandbits(64)),
            **options,
        )


def _now_ms() -> int:
    return START + int(trio.current_time() * 1000)


@asynccontextmanager
async def open_world(
    seed: int,
    *,
    runner: Runner | None = None,
    weather: Weather | None = None,
    cuts: int = 10,
    config: Config | None = None,
) -> AsyncIterator[World]:
    """Open a world for the length of an ``async with`` block; use it inside `run_seeded` or with an autojump clock.

    ``runner`` defaults to a `ScriptedAgent`. ``weather`` None: every connection is perfect; else connections fail as it
    says until ``cuts`` were cut. ``config`` is the server's configuration, as for `server.serve`; its workspace, port and
    directory are set here.
    """
    install()
    rng = random.Random(seed)
    agent = runner if runner is not None else ScriptedAgent(random.Random(rng.getrandbits(64)))
    settled = attrs.evolve(config or Config(), hostname="127.0.0.1", port=4170)

    def open_engine(config: Config, observer: Observer) -> AbstractAsyncContextManager[Harbour]:
        return _open_engine(config, observer, agent, random.Random(rng.getrandbits(64)))

    application = Application(settled, open_engine=open_engine, loopback=True, announce=lambda text: None)
    async with application.running() as ground, trio.open_nursery() as nursery:
        plan = None if weather is None else FaultPlan(random.Random(rng.getrandbits(64)), weather, cuts=cuts)
        settings = server_settings(settled)
        # The wall clock would make every run different to the byte.
        settings.include_date_header = False
        serve = partial(_serve, application, settings, GuardedContext(None))
        network = Network(nursery, serve, rng=random.Random(rng.getrandbits(64)), plan=plan)
        yield World(seed, rng, nursery, network, ground.engine, application, agent)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open_engine(
    config: Config, observer: Observer, runner: Runner, rng: random.Random
) -> AsyncIterator[Harbour]:
    async with open_harbour(
        runner, workspaces=[WORKSPACE], limits=config.limits, observer=observer, now_ms=_now_ms, random=rng
    ) as harbour:
        yield harbour


async def _serve(application: Application, settings: Any, context: GuardedContext, stream: LinkStream) -> None:
    connection = GuardedTCPServer(
        ASGIWrapper(application),  # type: ignore[arg-type]  # hypercorn types scopes as TypedDicts, ASGI calls them mappings
        settings,
        context,
        ConnectionState({}),
        stream,
    )
    await connection.run()
