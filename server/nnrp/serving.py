"""NNRP as a part of the application: its service and listeners for as long as the application runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio
from prometheus_client.core import Metric

from protocol.nnrp.enums import ProfileId
from server.config import Config, is_loopback
from server.nnrp.listener import listen_tcp, tls_context
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import NnrpService, open_service
from server.nnrp.submit import WorkerMaker
from server.nnrp.workers import AgentWorker, EchoWorker
from server.shutdown import Drain

__all__ = ["NnrpServing", "choose_worker", "serving_nnrp"]

_MARGIN: Final = 0.5
"""Seconds past the drain in which the last packets go out."""


@attrs.frozen(slots=True)
class NnrpServing:
    service: NnrpService
    addresses: tuple[tuple[str, int], ...]
    """Where TCP is listened on."""
    secured: tuple[tuple[str, int], ...] = ()
    """Where TLS is."""


@asynccontextmanager
async def serving_nnrp(
    config: Config, engine: Any, drain: Drain, watch: Callable[[Callable[[], Iterable[Metric]]], None]
) -> AsyncIterator[NnrpServing | None]:
    """Serve NNRP as the configuration says; None where it asks for no listener. ``watch`` takes the gauges.

    When the drain begins, or the block ends, nothing new is accepted, clients are told with CLOSE, and operations in flight
    have the policy's ``drain_timeout``; then what is left is cancelled. Raises ``OSError`` when a port cannot be bound, ``RuntimeError`` where others could
    reach it without a token, or TLS has no certificate.
    """
    if config.nnrp_port is None and config.nnrp_tls_port is None:
        yield None
        return
    if config.token is None and not is_loopback(config.nnrp_host):
        raise RuntimeError("NNRP on an address others can reach needs a token: set MOORLINE_TOKEN (ACP-250)")
    if config.nnrp_tls_port is not None and config.tls_cert is None:
        raise RuntimeError("--nnrp-tls-port needs --tls-cert and --tls-key")
    policy = _policy(config)
    async with open_service(policy, choose_worker(config, engine)) as service, trio.open_nursery() as nursery:
        watch(service.gauges)
        addresses: list[tuple[str, int]] = []
        secured: list[tuple[str, int]] = []
        if config.nnrp_port is not None:
            addresses = await nursery.start(listen_tcp, service, config.nnrp_host, config.nnrp_port)
        if config.nnrp_tls_port is not None and config.tls_cert is not None and config.tls_key is not None:
            listen = partial(listen_tcp, tls=tls_context(config.tls_cert, config.tls_key))
            secured = await nursery.start(listen, service, config.nnrp_host, config.nnrp_tls_port)
        nursery.start_soon(_drain, service, drain)
        try:
            yield NnrpServing(service, tuple(addresses), tuple(secured))
        finally:
            service.begin_drain()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + policy.limits.drain_timeout + _MARGIN):
                await service.wait_quiet()
            nursery.cancel_scope.cancel()


def choose_worker(config: Config, engine: Any) -> WorkerMaker:
    """What carries out operations, by --nnrp-runner."""
    if config.nnrp_runner == "echo":
        echo = EchoWorker()
        return lambda _: echo
    return lambda machine: AgentWorker(engine, machine)


def _policy(config: Config) -> ServingPolicy:
    """Sessions of an agent are of the token profile, and queue no more prompts than the engine admits: credit is how NNRP
    says that (13.6), where REST says prompt_queue_full."""
    policy = ServingPolicy.of(config)
    if config.nnrp_runner == "echo":
        return policy
    opening = attrs.evolve(policy.opening, profiles=frozenset({int(ProfileId.TOKEN)}))
    pending = config.max_pending_prompts_per_session
    if pending:
        opening = attrs.evolve(
            opening,
            max_in_flight_operations=min(opening.max_in_flight_operations, pending),
            operation_credit=min(opening.operation_credit, pending),
        )
    return attrs.evolve(policy, opening=opening)


async def _drain(service: NnrpService, drain: Drain) -> None:
    await drain.wait_begun()
    service.begin_drain()
