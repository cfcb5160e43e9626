"""A head start for the 202 of a message over what the message brings about."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from sessions.session import TOLD_LEAD

if TYPE_CHECKING:
    from server.routes.acp.connection import AcpConnection

__all__ = ["LEAD", "Lead"]

LEAD: Final = TOLD_LEAD
"""Seconds between a 202 and the carrying out of its message, for clients that need them apart."""


class Lead:
    """Carries messages out in order, each `LEAD` seconds after its 202 was sent.

    The shipped SDK registers who waits for a reply only when it has read the 202 (client-sdk.md 4.1, K1). Reply and 202 come
    on two sockets: sent one right after the other, they may be read in either order, and a reply read first is lost to it.
    """

    def __init__(self, connection: AcpConnection) -> None:
        self._connection = connection
        self._due: deque[tuple[float, Callable[[], object]]] = deque()

    @staticmethod
    def is_needed(initialize: dict[str, Any]) -> bool:
        """True for the one client known to listen late: it alone leaves out what the schema of ``initialize`` requires."""
        return "protocolVersion" not in initialize

    def add(self, carry_out: Callable[[], object]) -> None:
        self._due.append((trio.current_time() + LEAD, carry_out))
        if len(self._due) == 1:
            self._connection.spawn(self._run)

    async def _run(self) -> None:
        while self._due:
            due, carry_out = self._due[0]
            await trio.sleep_until(due)
            try:
                carry_out()
            finally:
                self._due.popleft()
