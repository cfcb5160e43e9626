"""Bounds of the HTTP server's connections, and how their number and their ends are counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from server.shutdown import Drain

if TYPE_CHECKING:
    from server.guard import GuardedTCPServer

__all__ = ["GuardPolicy"]


class GuardPolicy:
    """Bounds of all connections of one application, and the connections themselves. Times are seconds; 0 connections: no cap."""

    def __init__(
        self,
        drain: Drain | None = None,
        *,
        max_connections: int = 0,
        send_timeout: float = 30.0,
        head_timeout: float = 10.0,
        keep_alive: float = 65.0,
        drain_send: float = 1.0,
        tls_timeout: float = 10.0,
    ) -> None:
        self.drain = drain if drain is not None else Drain()
        self.max_connections = max_connections
        self.send_timeout = send_timeout
        self.head_timeout = head_timeout
        self.keep_alive = keep_alive
        self.drain_send = drain_send
        """What a send that is stuck when the drain begins still gets."""
        self.tls_timeout = tls_timeout
        self.connections: set[GuardedTCPServer] = set()
        self.refused = 0
        self.ended: Counter[str] = Counter()
        """Ended connections by `EndReason`."""

    @property
    def full(self) -> bool:
        return 0 < self.max_connections <= len(self.connections)
