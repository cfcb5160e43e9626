"""The two families of protocol error: we asked for something illegal, or the peer did."""

from __future__ import annotations

from enum import Enum

__all__ = ["LocalProtocolError", "ProtocolError", "Reach", "RemoteProtocolError"]


class Reach(Enum):
    """How far an error goes: what is lost when it is reported."""

    PACKET = "packet"
    """Only the packet; it is dropped and counted."""
    OPERATION = "operation"
    SESSION = "session"
    CONNECTION = "connection"


class ProtocolError(Exception):
    """Something on a wire is not legal. Never raised itself: always one of the two families below."""


class LocalProtocolError(ProtocolError):
    """This side tried to do or to send what the protocol forbids. A bug or a misuse here; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer did or sent what the protocol forbids. Subclasses carry the code to answer with and the reach."""
