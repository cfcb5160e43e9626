"""The base of every NNRP structure: violations become `NnrpError` with the code and reach of nnrp-wire 15."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from protocol.errors import Reach
from protocol.layout import Structure, Violation
from protocol.nnrp.enums import MessageType
from protocol.nnrp.errors import MESSAGE_REACH, NnrpError, Outcome

__all__ = ["Block", "Message", "Record"]


class Record(Structure, frozen=True, gc=False):
    """A structure of NNRP."""

    REACH: ClassVar[Reach] = Reach.OPERATION
    """What a fault in this structure takes down with it, when nothing nearer says so."""

    @classmethod
    def fail(cls, violation: Violation) -> NoReturn:
        raise NnrpError(
            Outcome(violation.outcome),
            violation.rule,
            subject=violation.structure,
            field=violation.field,
            offset=violation.offset,
            code=violation.code,
            reach=cls.REACH,
        )


class Message(Record, frozen=True, gc=False):
    """The fixed metadata of one message type."""

    TYPE: ClassVar[MessageType]
    BASE: ClassVar[int] = 40

    def __init_subclass__(cls) -> None:
        if "TYPE" in cls.__dict__:
            cls.REACH = MESSAGE_REACH[cls.TYPE]


class Block(Record, frozen=True, gc=False):
    """A structure that stands in a body."""
