"""NNRP as a part of the application: its service and listeners for as long as the application runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import trio
from prometheus_client.core import Metric

from protocol.nnrp.agent_schemas import announcements
from protocol.nnrp.enums import ProfileId
from protocol.nnrp.machines.closing import SETTLE_GRACE
from server.config import Config, is_loopback
from server.nnrp.listener import listen_tcp, tls_context
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import NnrpService, open_service
from server.nnrp.submit import WorkerMaker
from server.nnrp.workers import AgentWorker, EchoWorker
from server.shutdown import Drain
from server.telemetry import log

__all__ = ["NnrpServing", "choose_worker", "serving_nnrp"]

_MARGIN: Final = SETTLE_GRACE + 0.5
"""Seconds past the drain in which what was cut settles and the last packets go out."""


Addresses: TypeAlias = tuple[tuple[str, int], ...]


@attrs.define(slots=True)
class NnrpServing:
    service: NnrpService
    addresses: Addresses = ()
    """Where TCP is listened on."""
    secured: Addresses = ()
    """Where TLS is."""
    quic: Addresses = ()
    """Where QUIC is, over UDP."""


@asynccontextmanager
async def serving_nnrp(
    config: Config,
    engine: Any,
    drain: Drain,
    watch: Callable[[Callable[[], Iterable[Metric]]], None],
    default_port: int | None = None,
) -> AsyncIterator[NnrpServing | None]:
    """Serve NNRP as the configuration says; None where it says not to. ``watch`` takes the gauges.

    A port that is asked for and cannot be bound is an ``OSError``; ``default_port``, tried where no TCP port is named, is a
    line in the log then, because nobody has asked for it. Raises ``RuntimeError`` where others could reach a listener without
    a token, where TLS or QUIC has no certificate, and where QUIC's library is not installed.

    When the drain begins, or the block ends, nothing new is accepted, clients are told with CLOSE, and operations in flight
    have the policy's ``drain_timeout``; then what is left is cancelled.
    """
    if config.nnrp_off:
        yield None
        return
    _check(config, default_port)
    policy = _policy(config)
    async with open_service(policy, choose_worker(config, engine)) as service, trio.open_nursery() as nursery:
        watch(service.gauges)
        serving = NnrpServing(service)
        await _listen(serving, nursery, config, default_port)
        nursery.start_soon(_drain, service, drain)
        try:
            yield serving
        finally:
            service.begin_drain()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + policy.limits.drain_timeout + _MARGIN):
                await service.wait_quiet()
            nursery.cancel_scope.cancel()


def _check(config: Config, default_port: int | None) -> None:
    ports = (config.nnrp_port, config.nnrp_tls_port, config.nnrp_quic_port, default_port)
    if any(each is not None for each in ports) and config.token is None and not is_loopback(config.nnrp_host):
        raise RuntimeError("NNRP on an address others can reach needs a token: set MOORLINE_TOKEN (ACP-250)")
    if config.tls_cert is None:
        for flag, port in (("--nnrp-tls-port", config.nnrp_tls_port), ("--nnrp-quic-port", config.nnrp_quic_port)):
            if port is not None:
                raise RuntimeError(f"{flag} needs --tls-cert and --tls-key")


async def _listen(serving: NnrpServing, nursery: trio.Nursery, config: Config, default_port: int | None) -> None:
    service, host = serving.service, config.nnrp_host
    if config.nnrp_port is not None:
        serving.addresses = await _start(nursery, "--nnrp-port", listen_tcp, service, host, config.nnrp_port)
    elif default_port is not None:
        try:
            serving.addresses = tuple(await nursery.start(listen_tcp, service, host, default_port))
        except* OSError as failures:
            log.warning("nnrp_port_taken", host=host, port=default_port, reason=str(failures.exceptions[0]))
    if config.tls_cert is None or config.tls_key is None:
        return
    if config.nnrp_tls_port is not None:
        listen = partial(listen_tcp, tls=tls_context(config.tls_cert, config.tls_key))
        serving.secured = await _start(nursery, "--nnrp-tls-port", listen, service, host, config.nnrp_tls_port)
    if config.nnrp_quic_port is not None:
        from server.nnrp.quic_listener import listen_quic

        alpn = None if config.nnrp_quic_alpn == "none" else config.nnrp_quic_alpn
        quic = partial(listen_quic, certificate=config.tls_cert, key=config.tls_key, alpn=alpn)
        serving.quic = await _start(nursery, "--nnrp-quic-port", quic, service, host, config.nnrp_quic_port)


async def _start(
    nursery: trio.Nursery, flag: str, listen: Callable[..., Awaitable[None]], service: NnrpService, host: str, port: int
) -> tuple[tuple[str, int], ...]:
    """Where it listens. Raises ``OSError`` that says which of the ports could not be had."""
    try:
        return tuple(await nursery.start(listen, service, host, port))
    except* OSError as failures:
        raise OSError(f"{flag}: cannot listen on {host}:{port}: {failures.exceptions[0]}") from failures


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
    return attrs.evolve(policy, opening=opening, announced=tuple(announcements()))


async def _drain(service: NnrpService, drain: Drain) -> None:
    await drain.wait_begun()
    service.begin_drain()
