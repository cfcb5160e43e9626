"""A session as this server holds it: it outlives the connection when it can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.layout import Buffer
from protocol.nnrp.enums import OperationFeatures, SessionState
from protocol.nnrp.machines.history import RisingIds
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from server.nnrp.journal import Journal
from server.nnrp.policy import Principal
from server.nnrp.submit import Worker
from sessions.operation import CancelReason

if TYPE_CHECKING:
    from server.nnrp.driver import Link
    from server.nnrp.running import Running

__all__ = ["ServedSession"]


class ServedSession:
    """One NNRP session. ``machine`` is its state on the connection it is on, or was on last; ``link`` that connection's
    driver, None while it is detached. No task and no worker before its first operation."""

    __slots__ = (
        "expires_at",
        "journal",
        "last_event_id",
        "link",
        "machine",
        "over",
        "principal",
        "received",
        "token",
        "worker",
    )

    def __init__(self, machine: Session, link: Link, principal: Principal) -> None:
        self.machine = machine
        self.link: Link | None = link
        self.principal = principal
        self.worker: Worker | None = None
        self.journal: Journal | None = None
        self.received: RisingIds | None = None
        """Frame ids of every submit that was accepted, over all connections; kept where the session can be resumed."""
        self.token: bytes | None = None
        self.expires_at = 0.0
        self.last_event_id = 0
        self.over = False
        machine.attachment = self

    @property
    def tag(self) -> int:
        """What names the session in logs; 0 for an implicit one."""
        return self.machine.terms.server_session_tag

    @property
    def resumable(self) -> bool:
        return self.token is not None

    @property
    def tells_state(self) -> bool:
        return bool(self.machine.terms.features & int(OperationFeatures.OPERATION_STATE))

    def running(self) -> list[Running]:
        """What is being carried out, in the order of the submits."""
        if not self.machine.in_flight:
            return []
        attached = [each.attachment for each in self.machine.operations]
        return [each for each in attached if each is not None]  # type: ignore[misc]  # ours, set by `running.start`

    def next_event_id(self, given: int = 0) -> int:
        """The id of the next result event. An engine session's events have their own, given by its ring."""
        self.last_event_id = max(given, self.last_event_id + 1) if not given else max(given, self.last_event_id)
        return given or self.last_event_id

    def send(self, parts: list[Buffer], operation: Operation, event_id: int) -> None:
        """Keep a result packet for redelivery, and send it if anybody is there."""
        if self.journal is not None:
            self.journal.add(event_id, operation.operation_id, tuple(parts))
        if self.link is not None:
            self.link.writer.write(parts, result=True)

    def cancel_all(self, reason: CancelReason) -> None:
        for each in self.running():
            each.cancel(reason)

    @property
    def closed_here(self) -> bool:
        """Whether the session has ended by its own close while the connection goes on."""
        return self.machine.state is SessionState.CLOSED and self.link is not None and not self.link.machine.closed
