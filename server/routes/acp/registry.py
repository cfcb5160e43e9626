"""Every ``/acp`` connection of the process: by id, up to a number, swept when idle (ACP-063, ACP-151)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import attrs
import trio

from server.routes.acp.binding import Binding
from server.routes.acp.buffers import DEFAULT_BOUNDS, Bounds, Meter
from server.routes.acp.connection import AcpConnection, ConnectionEnd
from sessions import Harbour

__all__ = ["IDLE_AFTER", "SWEEP_EVERY", "Registry", "RegistryStatistics", "TooManyConnections"]

IDLE_AFTER: Final = 1800.0
SWEEP_EVERY: Final = 60.0
"""Seconds (ACP-151)."""


class TooManyConnections(Exception):
    """The cap is reached (ACP-063)."""


@attrs.frozen(slots=True)
class RegistryStatistics:
    """A look at all connections."""

    connections: int
    bindings: int
    attached: int
    in_grace: int
    waiting_frames: int
    waiting_bytes: int


class Registry:
    """One per application. Synchronous; its background work lives in the harbour's nursery and ends with it.

    ``max_connections`` 0: no cap. Times are seconds.
    """

    def __init__(
        self,
        harbour: Harbour,
        *,
        max_connections: int,
        session_grace: float,
        connection_grace: float,
        socket_grace: float,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.harbour = harbour
        self.socket_grace = socket_grace
        self._max_connections = max_connections
        self._session_grace = session_grace
        self._connection_grace = connection_grace
        self._bounds = bounds
        self._meter = Meter(bounds.process_frames, bounds.process_bytes)
        self._connections: dict[str, AcpConnection] = {}
        self._sweeping = False

    # What is there

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[AcpConnection]:
        return iter(list(self._connections.values()))

    def find(self, connection_id: str) -> AcpConnection | None:
        return self._connections.get(connection_id)

    def statistics(self) -> RegistryStatistics:
        bindings = [each for connection in self for each in connection.bindings.values()]
        return RegistryStatistics(
            connections=len(self._connections),
            bindings=len(bindings),
            attached=sum(1 for each in bindings if each.attached),
            in_grace=sum(1 for each in bindings if each.in_grace),
            waiting_frames=self._meter.frames,
            waiting_bytes=self._meter.bytes,
        )

    def unattended(self, session_id: str, besides: AcpConnection) -> list[Binding]:
        """Bindings of other connections to this session that nobody listens on: their own grace runs, or their
        connection's does while they have no stream."""
        return [
            binding
            for connection in self
            if connection is not besides and (binding := connection.bindings.get(session_id)) is not None
            if binding.in_grace or (connection.in_grace and not binding.attached)
        ]

    # What happens

    def open(self, *, local: bool, connection_id: str | None = None, resumable: bool = False) -> AcpConnection:
        """A new connection. ``resumable``: over a WebSocket whose client wants its sessions kept when the socket is lost.

        Raises `TooManyConnections`.
        """
        if 0 < self._max_connections <= len(self._connections):
            raise TooManyConnections
        connection = AcpConnection(
            self,
            connection_id or self.new_id(),
            local=local,
            bounds=self._bounds,
            meter=self._meter,
            session_grace=self.socket_grace if resumable else self._session_grace,
            connection_grace=self.socket_grace if resumable else self._connection_grace,
        )
        connection.resumable = resumable
        self._connections[connection.id] = connection
        if not self._sweeping:
            self._sweeping = True
            self.spawn(self._sweep)
        return connection

    def forget(self, connection: AcpConnection) -> None:
        """For the connection itself, when it is destroyed."""
        self._connections.pop(connection.id, None)

    def new_id(self) -> str:
        """A random UUID."""
        return self.harbour.new_id()

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self.harbour.spawn(function, *args)

    def remove_session(self, session_id: str) -> None:
        """Close and forget a session nobody was told of."""
        self.spawn(self._remove, session_id)

    async def _remove(self, session_id: str) -> None:
        await self.harbour.remove(session_id)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_EVERY)
            before = trio.current_time() - IDLE_AFTER
            for connection in self:
                if connection.last_active < before:
                    connection.destroy(ConnectionEnd.IDLE)
