"""A client and a server machine with real bytes between them, for the cases about exchanges."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

from protocol.nnrp.enums import OperationFeatures, OperationState, PayloadKind, SessionFlags
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.nnrp.header import Header
from protocol.nnrp.machines.connection import Connection, ConnectionLimits, Side
from protocol.nnrp.machines.events import (
    Event,
    HelloReceived,
    SessionOpened,
    SessionOpenReceived,
    SubmitReceived,
)
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.schemas import ANCHOR, builtin_registry
from protocol.nnrp.machines.session import Ending, Session
from protocol.nnrp.messages import ClientHello, FrameSubmit, Message, ResultDrop, ResultPush, SessionOpen
from protocol.nnrp.packet import BodyLike, RawPacket, encode_packet
from protocol.nnrp.splitter import Splitter
from server.conformance.case import Evidence, expect

__all__ = ["ALL_FEATURES", "HELLO", "OPEN", "End", "Link", "raw_packet"]

E = TypeVar("E")

ALL_FEATURES = OperationFeatures(31)
HELLO = ClientHello(
    supported_profile_bitmap=3,
    supported_payload_kind_bitmap=PayloadKind(0x7F),
    supported_dtype_bitmap=0x1F,
    supported_layout_bitmap=3,
    cache_object_bitmap=0x1FF,
    max_lane_count=1,
    max_cache_entries=16,
    max_cache_bytes=1 << 20,
)
OPEN = SessionOpen(
    profile_id=ANCHOR.profile_id,
    session_flags=SessionFlags(15),
    schema_id=ANCHOR.schema_id,
    schema_version=ANCHOR.schema_version,
    max_in_flight_operations=8,
)


def raw_packet(message: Message, body: bytes = b"", *, session_id: int = 0, frame_id: int = 0) -> bytes:
    """The bytes of a message as they stand, right or wrong."""
    header = Header(message.TYPE, meta_len=message.SIZE, body_len=len(body), session_id=session_id, frame_id=frame_id)
    return header.pack() + message.pack() + body


class End:
    """One side: its machine, what it reported, what it refused."""

    def __init__(self, machine: Connection, name: str, evidence: Evidence) -> None:
        self.machine = machine
        self.events: list[Event] = []
        self.refusals: list[NnrpError] = []
        self._splitter = Splitter()
        self._name = name
        self._evidence = evidence

    def receive(self, data: bytes) -> None:
        self._splitter.receive_data(data)
        try:
            for raw in self._splitter.packets():
                self._take(raw)
        except NnrpError as error:
            self.refusals.append(error)
            self.machine.receive_violation(error)

    def _take(self, raw: RawPacket) -> None:
        self._evidence.note(f"{self._name} receives {raw.header.msg_type.name} {raw.data.hex()}")
        try:
            event = self.machine.receive_raw(raw, 0.0)
        except NnrpError as error:
            self._evidence.note(f"{self._name} refuses: {error}")
            self.refusals.append(error)
        else:
            self._evidence.note(f"{self._name} reports {type(event).__name__}")
            self.events.append(event)

    def last(self, kind: type[E]) -> E:
        found = [each for each in self.events if isinstance(each, kind)]
        expect(found, f"{self._name} reports {kind.__name__}")
        return found[-1]

    def refused(self, outcome: Outcome, demand: str) -> NnrpError:
        """The last packet was refused with this outcome."""
        expect(self.refusals and self.refusals[-1].outcome is outcome, f"{demand}: {outcome.value}")
        return self.refusals.pop()


class Link:
    """Both sides, strict, with a driver that grants what is asked and carries results by hand."""

    def __init__(self, evidence: Evidence, *, policy: OpenPolicy | None = None, hello: bool = True) -> None:
        schemas = builtin_registry()
        limits = ConnectionLimits(reduction_tolerance=0.0)
        client = Connection(Side.CLIENT, now=0.0, schemas=schemas, limits=limits)
        server = Connection(Side.SERVER, now=0.0, schemas=schemas, limits=limits)
        self.client = End(client, "client", evidence)
        self.server = End(server, "server", evidence)
        self._policy = policy or OpenPolicy(max_in_flight_operations=8, operation_credit=4)
        self._tokens = count(1)
        if hello:
            client.send_hello(HELLO)
            self.pump()

    def pump(self) -> None:
        """Carry messages until nobody has any."""
        while self._carry(self.client, self.server) + self._carry(self.server, self.client):
            pass

    def to_server(self, message: Message, body: BodyLike = b"", *, session_id: int = 0, frame_id: int = 0) -> None:
        self._send(self.server, Outgoing(message, session_id, frame_id), body)
        self.pump()

    def to_client(self, message: Message, body: BodyLike = b"", *, session_id: int = 0, frame_id: int = 0) -> None:
        self._send(self.client, Outgoing(message, session_id, frame_id), body)
        self.pump()

    def open(self, request: SessionOpen = OPEN, features: OperationFeatures | None = None) -> tuple[Session, Session]:
        """A session as the client and the server hold it."""
        self.client.machine.open_session(request, features=features)
        self.pump()
        mine = self.client.last(SessionOpened).session
        return mine, self.server.machine.sessions[mine.session_id]

    def submit(self, session: Session, message: FrameSubmit, body: BodyLike = b"") -> tuple[Operation, Operation]:
        """Start an operation; as the client and as the server hold it."""
        mine = self.client.machine.submit(session, 0.0)
        self.to_server(message, body, session_id=session.session_id, frame_id=mine.frame_id)
        return mine, self.server.last(SubmitReceived).operation

    def finish(self, session: Session, operation: Operation, wanted: OperationState, result: ResultPush) -> Ending:
        """The server's runner ends an operation; its terminal message goes out, if there is to be one."""
        ending = self.server.machine.finish(session, operation, wanted, 0.0)
        if ending is not Ending.SILENT:
            message = result if ending is Ending.PUSH else ResultDrop()
            self.to_client(message, session_id=session.session_id, frame_id=operation.frame_id)
        self.pump()
        return ending

    def nothing_refused(self) -> None:
        expect(not self.client.refusals and not self.server.refusals, "nothing in the exchange is refused")

    def _carry(self, source: End, target: End) -> int:
        messages = source.machine.messages()
        for outgoing in messages:
            target.receive(outgoing.encode())
            self._answer(target)
        return len(messages)

    def _send(self, target: End, outgoing: Outgoing, body: BodyLike) -> None:
        target.receive(
            encode_packet(outgoing.message, body, session_id=outgoing.session_id, frame_id=outgoing.frame_id)
        )
        self._answer(target)

    def _answer(self, end: End) -> None:
        event = end.events[-1] if end.events else None
        machine = end.machine
        if isinstance(event, HelloReceived) and machine.answer is None:
            machine.accept_hello(HelloPolicy())
        elif isinstance(event, SessionOpenReceived) and machine.opens_outstanding:
            decision = machine.decide_open(self._policy)
            enabled = decision.terms is not None and decision.terms.resume_enabled
            machine.answer_open(decision, resume_token=b"token-%d" % next(self._tokens) if enabled else b"")
