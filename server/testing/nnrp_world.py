"""NNRP in memory: the real service in front of the engine, two listeners, and a network with weather between."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import attrs
import trio

from client import ReconnectPolicy
from client.nnrp import NnrpConnection, NnrpOptions, NnrpTicket, open_nnrp
from protocol.nnrp.machines.session import Session as Machine
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import NnrpService, open_service
from server.nnrp.submit import Worker
from server.nnrp.ticket import issue_ticket
from server.nnrp.workers import AgentWorker, EchoWorker
from server.testing.agents import ScriptedAgent
from server.testing.faults import FaultPlan, Weather
from server.testing.link import LinkStream
from server.testing.network import Network
from server.testing.world import START, WORKSPACE
from sessions import Harbour, Limits, Session, open_harbour

__all__ = ["ECHO_DEADLINE_MS", "NnrpWorld", "open_nnrp_world"]

ECHO_DEADLINE_MS: Final = 3_600_000
"""A session with a default deadline is served by the echo, one without by the agent: one service has both."""
_LISTENERS: Final = ("tcp", "tls")


@attrs.define(eq=False)
class NnrpWorld:
    """What a simulated program has in its hands."""

    seed: int
    rng: random.Random
    nursery: trio.Nursery
    network: Network
    harbour: Harbour
    service: NnrpService
    agent: ScriptedAgent

    def client(self, **options: Any) -> AbstractAsyncContextManager[NnrpConnection]:
        """A real client whose connections go through this world's network. Raises as `client.nnrp.open_nnrp` does."""
        options.setdefault("reconnect", ReconnectPolicy(base=0.2, maximum=3.0, give_up_after=100.0))
        options.setdefault("random", random.Random(self.rng.getrandbits(64)))
        options.setdefault("connect", self.network.connect)
        return open_nnrp("tcp://127.0.0.1:4171", NnrpOptions(**options))

    def ticket(self, session: Session) -> NnrpTicket:
        """What ``POST /session/:id/nnrp-token`` gives out."""
        made = issue_ticket(self.service, self.harbour, session, b"")
        schema = (made.schema_id, made.schema_version)
        return NnrpTicket(made.token, made.session_id, made.profile_id, schema, made.expires_in_ms / 1000)


@asynccontextmanager
async def open_nnrp_world(
    seed: int,
    *,
    weather: Weather | None = None,
    cuts: int = 10,
    policy: ServingPolicy | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[NnrpWorld]:
    """As `server.testing.open_world`, for NNRP. Every connection meets one of two listeners of the same service, so a session
    lost on one comes back on another."""
    rng = random.Random(seed)
    agent = ScriptedAgent(random.Random(rng.getrandbits(64)))
    tokens, doors = random.Random(rng.getrandbits(64)), random.Random(rng.getrandbits(64))
    settled = limits or Limits(max_pending_prompts=0)
    async with open_harbour(
        agent,
        workspaces=[WORKSPACE],
        limits=settled,
        now_ms=lambda: START + int(trio.current_time() * 1000),
        random=random.Random(rng.getrandbits(64)),
    ) as harbour:

        def worker(machine: Machine) -> Worker:
            return EchoWorker() if machine.terms.default_deadline_ms else AgentWorker(harbour, machine)

        async with open_service(policy or ServingPolicy(), worker) as service, trio.open_nursery() as nursery:
            # Tokens are the system's randomness otherwise, and no two runs would be the same to the byte.
            service.registry.new_token = lambda: tokens.randbytes(24)  # type: ignore[method-assign]

            async def serve(stream: LinkStream) -> None:
                await service.serve_stream(stream, doors.choice(_LISTENERS))

            plan = None if weather is None else FaultPlan(random.Random(rng.getrandbits(64)), weather, cuts=cuts)
            network = Network(nursery, serve, rng=random.Random(rng.getrandbits(64)), plan=plan)
            yield NnrpWorld(seed, rng, nursery, network, harbour, service, agent)
            nursery.cancel_scope.cancel()
