"""What a connection machine reports of a received packet: one event each, for the driver to act on.

Events are made once per packet and dropped at once. ``session`` is None where the event is about the connection.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from protocol.nnrp.enums import CancelReason, OperationState
from protocol.nnrp.machines.cache_records import CacheEntry, CacheKey, PutAnswer
from protocol.nnrp.machines.closing import CloseStep
from protocol.nnrp.machines.credit import Applied
from protocol.nnrp.machines.migration import MigrationEffect
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.resume import ResumeOutcome
from protocol.nnrp.machines.session import Delivery, Session
from protocol.nnrp.packet import Packet

__all__ = [
    "BackgroundReceived",
    "CacheAnswered",
    "CacheInvalidated",
    "CachePutDone",
    "CancelReceived",
    "ConnectionClosing",
    "DropReceived",
    "EndCause",
    "ErrorReceived",
    "Event",
    "FlowReceived",
    "HelloAccepted",
    "HelloReceived",
    "HelloRefused",
    "HintReceived",
    "Ignored",
    "IgnoredBecause",
    "MigrateAnswered",
    "MigrateReceived",
    "PatchAnswered",
    "PatchReceived",
    "PingReceived",
    "PongReceived",
    "ProbeAnswered",
    "ProbeReceived",
    "ResultReceived",
    "RetryDue",
    "SessionCloseProgress",
    "SessionOpenReceived",
    "SessionOpened",
    "SessionRefused",
    "SubmitReceived",
]


class EndCause(IntEnum):
    """Why a connection ended, the same in logs and metrics."""

    PEER_CLOSED = 1
    WE_CLOSED = 2
    END_OF_STREAM = 3
    TRANSPORT_LOST = 4
    PROTOCOL_ERROR = 5
    """The peer broke a rule that is fatal."""
    PEER_ERROR = 6
    """The peer reported a fatal error of ours."""
    REFUSED = 7
    """The hello was refused."""
    HANDSHAKE_TIMEOUT = 8
    IDLE_TIMEOUT = 9


class IgnoredBecause(IntEnum):
    UNKNOWN_CANCEL_TARGET = 1
    """It may have ended before the cancel arrived."""
    CLOSE_CROSSED = 2
    """Both ends closed at once."""
    ERROR_REPEATED = 3
    REDELIVERED = 4
    """After a resume the server sends everything again, also of operations that had ended here."""


class HelloReceived(msgspec.Struct, gc=False):
    """Answer with ``accept_hello`` or ``refuse_hello``."""

    packet: Packet


class HelloAccepted(msgspec.Struct, gc=False):
    packet: Packet
    implicit: Session | None


class HelloRefused(msgspec.Struct, gc=False):
    packet: Packet


class SessionOpenReceived(msgspec.Struct, gc=False):
    """Answer with ``answer_open``, in the order the requests came."""

    packet: Packet


class SessionOpened(msgspec.Struct, gc=False):
    session: Session
    packet: Packet
    outcome: ResumeOutcome
    resume_token: bytes


class SessionRefused(msgspec.Struct, gc=False):
    packet: Packet
    outcome: ResumeOutcome


class SubmitReceived(msgspec.Struct, gc=False):
    """Carry the operation out. ``opened``: the submit opened the implicit session. ``superseded`` is to be stopped.
    ``objects`` are what its references name, in their order."""

    session: Session
    operation: Operation
    packet: Packet
    superseded: Operation | None
    opened: bool
    objects: tuple[CacheEntry, ...] = ()


class CancelReceived(msgspec.Struct, gc=False):
    """Stop these, by ascending id. They are cancelled already, and settle when they are finished."""

    session: Session
    operations: tuple[Operation, ...]
    reason: CancelReason


class ResultReceived(msgspec.Struct, gc=False):
    session: Session
    operation: Operation
    packet: Packet
    delivery: Delivery
    state: OperationState


class DropReceived(msgspec.Struct, gc=False):
    """The operation is settled; its state says as what."""

    session: Session
    operation: Operation
    packet: Packet


class BackgroundReceived(msgspec.Struct, gc=False):
    """A result, or the end, of work that was not submitted here: somebody else uses the same session."""

    session: Session
    packet: Packet
    state: OperationState


class HintReceived(msgspec.Struct, gc=False):
    session: Session | None
    packet: Packet


class PatchReceived(msgspec.Struct, gc=False):
    """Answer with ``answer_patch``."""

    session: Session
    packet: Packet


class PatchAnswered(msgspec.Struct, gc=False):
    session: Session
    packet: Packet


class SessionCloseProgress(msgspec.Struct, gc=False):
    """A close began, went on or completed. Stop what ``step`` names; the acks are queued already."""

    session: Session
    step: CloseStep
    packet: Packet | None


class FlowReceived(msgspec.Struct, gc=False):
    session: Session | None
    packet: Packet
    applied: Applied


class RetryDue(msgspec.Struct, gc=False):
    """The time is over for which the peer had put off new operations, in the session or in the whole connection (13.6)."""

    session: Session | None


class CachePutDone(msgspec.Struct, gc=False):
    """Stored or refused, and answered."""

    session: Session | None
    packet: Packet
    answer: PutAnswer


class CacheAnswered(msgspec.Struct, gc=False):
    session: Session | None
    packet: Packet


class CacheInvalidated(msgspec.Struct, gc=False):
    session: Session | None
    packet: Packet
    keys: tuple[CacheKey, ...]


class MigrateReceived(msgspec.Struct, gc=False):
    """Answer with ``answer_migrate``. ``session`` is None when it is not on this connection."""

    session: Session | None
    packet: Packet


class MigrateAnswered(msgspec.Struct, gc=False):
    session: Session | None
    packet: Packet
    effect: MigrationEffect


class ProbeReceived(msgspec.Struct, gc=False):
    """Answered already."""

    packet: Packet


class ProbeAnswered(msgspec.Struct, gc=False):
    """Not ``matched``: the answer to another probe than any of ours; the sample has failed (7.18)."""

    packet: Packet
    matched: bool


class PingReceived(msgspec.Struct, gc=False):
    """Answered already."""

    packet: Packet


class PongReceived(msgspec.Struct, gc=False):
    packet: Packet


class ErrorReceived(msgspec.Struct, gc=False):
    """The peer reports a fault of ours. ``operation`` was ended by it. ``put_back`` was not: there was no credit to send it again,
    and it is to be sent once more when there may be."""

    packet: Packet
    session: Session | None
    operation: Operation | None
    put_back: Operation | None = None


class ConnectionClosing(msgspec.Struct, gc=False):
    """The peer closes. What is in flight may still end; nothing new starts."""

    packet: Packet | None
    cause: EndCause


class Ignored(msgspec.Struct, gc=False):
    """Legal, and without effect."""

    packet: Packet
    because: IgnoredBecause


Event: TypeAlias = (
    HelloReceived
    | HelloAccepted
    | HelloRefused
    | SessionOpenReceived
    | SessionOpened
    | SessionRefused
    | SubmitReceived
    | CancelReceived
    | ResultReceived
    | DropReceived
    | BackgroundReceived
    | HintReceived
    | PatchReceived
    | PatchAnswered
    | SessionCloseProgress
    | FlowReceived
    | RetryDue
    | CachePutDone
    | CacheAnswered
    | CacheInvalidated
    | MigrateReceived
    | MigrateAnswered
    | ProbeReceived
    | ProbeAnswered
    | PingReceived
    | PongReceived
    | ErrorReceived
    | ConnectionClosing
    | Ignored
)
