"""What a worker is given, and what it answers with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec

from protocol.layout import Buffer
from protocol.nnrp.bodies import DataBody
from protocol.nnrp.enums import (
    CacheErrorCode,
    DescriptorFlags,
    ErrorCode,
    ObjectKind,
    PayloadKind,
    ProfileId,
    ResultClass,
    StreamSemantics,
)
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.machines.cache_records import CacheEntry
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import FrameSubmit
from protocol.nnrp.objects import resolve_submit_objects
from protocol.nnrp.regions import TypedPayload
from protocol.nnrp.tensor import TensorBody

__all__ = ["Answer", "Emit", "Handler", "OperationFailed", "Submit", "Worker", "WorkerMaker", "text_payload"]

_NO_KIND: Final = PayloadKind(0)
_NO_FLAGS: Final = DescriptorFlags(0)


class Submit(msgspec.Struct, frozen=True, eq=False):
    """One FRAME_SUBMIT. Large payloads are views of what was read; copy what is kept for long."""

    metadata: FrameSubmit
    content: DataBody
    operation: Operation
    session: Session
    objects: tuple[CacheEntry, ...] = ()
    """The cache objects its references name, in their order, as they are now."""

    @property
    def tensor(self) -> TensorBody:
        """The tensor, what is referred to included. Raises `OperationFailed`, schema_mismatch, where an object is not what
        the metadata takes it for (nnrp-wire 13.10 item 5)."""
        if not self.metadata.object_ref_mask:
            return self.content.tensor
        found = {each.key.object_kind: each.content for each in self.objects}
        try:
            return resolve_submit_objects(self.metadata, self.content.regions, found)  # type: ignore[arg-type]  # the enum's numbers
        except NnrpError as fault:
            raise OperationFailed(str(fault), CacheErrorCode.SCHEMA_MISMATCH) from fault

    def referenced(self, kind: ObjectKind) -> list[bytes]:
        """The contents of the objects of one kind that it refers to, in their order."""
        return [each.content for each in self.objects if each.key.object_kind == kind]

    def data(self) -> list[Buffer]:
        """The submitted payloads: typed ones, a bare one, or the tensor's sections. Raises as ``tensor`` does."""
        content = self.content
        if content.regions.payloads:
            return [each.data for each in content.regions.payloads]
        if content.raw_kind is not None:
            return [content.raw]
        return [each.payload for each in self.tensor.sections]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One result, or with `Emit` a part of one. ``tensor`` and ``payloads`` may both be given."""

    payloads: tuple[TypedPayload, ...] = ()
    kinds: PayloadKind = _NO_KIND
    """Payload kinds of ``payloads``."""
    tensor: TensorBody | None = None
    profile_id: int = 0
    result_class: ResultClass = ResultClass.COMPLETE
    dropped_tiles: int = 0
    """Of a tensor that is partial: the tiles that are missing."""
    event_id: int = 0
    """The id of the event in an engine session's ring that this is, 0 where there is none."""

    @property
    def flat(self) -> bool:
        """Whether it goes as a tensor and nothing else, in the form that has no place for an event id (nnrp-wire 8.1)."""
        return self.tensor is not None and not self.payloads

    @property
    def size(self) -> int:
        """Bytes of its payloads."""
        sections = () if self.tensor is None else self.tensor.sections
        return sum([len(each.data) for each in self.payloads]) + sum([len(each.payload) for each in sections])


class OperationFailed(Exception):
    """A worker's operation has failed; ``code`` is what an ERROR would carry."""

    def __init__(self, message: str, code: int = ErrorCode.INTERNAL_ERROR, event_id: int = 0) -> None:
        super().__init__(message)
        self.code = int(code)
        self.event_id = event_id


class Emit(Protocol):
    """How a worker reports while it works. False from either: the operation has ended, nothing was sent."""

    async def partial(self, answer: Answer, *, waits: bool = False) -> bool:
        """Send a part of the result; with ``waits`` the operation waits for a tool from then on. Waits for room on the
        connection."""
        ...

    def keep(self, answer: Answer) -> None:
        """The best there is so far: what the client gets if the budget ends before the work does and it allows that
        (nnrp-wire 12.5). Replaces what was kept before."""
        ...

    async def waiting_tool(self, waiting: bool) -> bool:
        """The operation waits for a tool, or goes on after that."""
        ...


class Worker(Protocol):
    """What carries out the operations of one session."""

    def answer_nowait(self, submit: Submit) -> Answer | None:
        """The result, if it takes no waiting at all; None: `run` it."""
        ...

    async def run(self, submit: Submit, emit: Emit) -> Answer:
        """Carry out one operation inside its cancel scope. Raises `OperationFailed`."""
        ...

    def close(self) -> None:
        """The session is over. Synchronous; what takes time is somebody else's task."""
        ...


WorkerMaker = Callable[[Session], Worker]
"""Makes the worker of a session when its first operation comes."""

Handler = Callable[[Submit, Emit], Awaitable[Answer]]


def text_payload(
    data: Buffer, *, terminal: bool, schema: tuple[int, int] = (0, 0), flags: DescriptorFlags = _NO_FLAGS
) -> TypedPayload:
    """A token chunk: bare UTF-8 text, or with ``flags`` profile_hint_present a hint and then text."""
    return TypedPayload.of(
        data,
        profile_id=ProfileId.TOKEN,
        schema_id=schema[0],
        schema_version=schema[1],
        stream_semantics=StreamSemantics.APPEND,
        flags=flags | (DescriptorFlags.TERMINAL if terminal else DescriptorFlags.PARTIAL),
    )
