"""What this server grants and refuses: the configuration in the words of the machines."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

import attrs

from protocol.nnrp.machines.cache_records import CacheLimits, CachePool
from protocol.nnrp.machines.connection import ConnectionLimits
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.patching import PatchPolicy
from protocol.nnrp.messages import CachePut
from server.config import Config
from server.nnrp.scheduler import SchedulingPolicy

__all__ = ["Authenticate", "Principal", "ServingPolicy", "token_check"]

Principal = bytes
"""Who a session belongs to: a digest of the token that opened it, empty where no token is asked for."""
Authenticate = Callable[[bytes], Principal | None]
"""The principal for an auth block, None when it is wrong or missing. It must not say by its timing how wrong."""

_DRAIN: Final = 5.0
"""Seconds operations in flight may go on after a CLOSE (nnrp-wire 13.1)."""
_ASKS: Final = 3
"""A silent client is asked with PING when the first of so many parts of the idle timeout has passed."""


def token_check(token: str | None) -> Authenticate:
    """Without a token the block is ignored: one peer puts a model name there (nnrp-extensions, Authentication)."""
    if token is None:
        return lambda block: b""
    wanted = token.encode("utf-8")
    principal = hashlib.sha256(wanted).digest()
    return lambda block: principal if hmac.compare_digest(block, wanted) else None


@attrs.frozen(slots=True, kw_only=True)
class ServingPolicy:
    """Bounds and grants of one NNRP service. Times in seconds but where a field of the protocol says ms."""

    strict: bool = False
    hello: HelloPolicy = attrs.field(factory=HelloPolicy)
    opening: OpenPolicy = attrs.field(factory=OpenPolicy)
    patching: PatchPolicy = attrs.field(factory=PatchPolicy)
    """Narrowed by what the hello has agreed on."""
    limits: ConnectionLimits = attrs.field(factory=ConnectionLimits)
    authenticate: Authenticate = attrs.field(factory=lambda: token_check(None))
    scheduling: SchedulingPolicy = attrs.field(factory=SchedulingPolicy)
    max_interactive: int = 0
    """Sessions of class interactive; those opened beyond it are lowered to balanced, and told so. 0: no limit."""
    announced: tuple[tuple[CachePut, bytes], ...] = ()
    """Schemas that are installed at a session's client when it has opened, where it may have them."""
    send_timeout: float = 30.0
    max_connections: int = 1024
    """Of all transports together. 0: no limit."""
    max_detached: int = 4096
    """Sessions that wait for their client to resume them; the oldest goes when there is one more."""
    journal_entries: int = 1024
    journal_bytes: int = 4 * 1024 * 1024
    """Results one resumable session keeps for redelivery."""

    def admits(self, connections: int) -> bool:
        """Whether there may be one more beside so many."""
        return not self.max_connections or connections < self.max_connections

    @classmethod
    def of(cls, config: Config) -> ServingPolicy:
        in_flight = config.nnrp_max_in_flight
        lease_ms = config.nnrp_lease_ttl_ms
        return cls(
            strict=config.nnrp_strict,
            opening=OpenPolicy(
                max_in_flight_operations=in_flight,
                operation_credit=min(config.nnrp_operation_credit, 65_535),
                lease_ttl_ms=lease_ms,
                resume_window_ms=config.nnrp_resume_window_ms,
                max_sessions=config.nnrp_max_sessions_per_connection,
            ),
            limits=ConnectionLimits(
                handshake_timeout=config.nnrp_handshake_timeout_ms / 1000,
                idle_timeout=config.nnrp_idle_timeout_ms / 1000,
                keepalive_interval=config.nnrp_idle_timeout_ms / _ASKS / 1000,
                drain_timeout=min(_DRAIN, config.drain_ms / 2000) if config.drain_ms else 0.0,
                cache=CacheLimits(default_ttl_ms=lease_ms),
                cache_pool=CachePool(config.nnrp_cache_bytes),
            ),
            authenticate=token_check(config.token),
            scheduling=SchedulingPolicy(slots=config.nnrp_max_running),
            max_interactive=config.nnrp_max_interactive,
            send_timeout=config.send_timeout_ms / 1000,
            max_connections=config.max_connections,
        )
