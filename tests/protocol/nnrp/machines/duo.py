"""Two connection machines and a link between them that may cut the bytes anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from protocol.nnrp.enums import OperationFeatures, PayloadKind, SessionFlags
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.machines.connection import Connection, ConnectionLimits, Side
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import Event, HelloReceived, SessionOpened, SessionOpenReceived
from protocol.nnrp.machines.hello import HelloPolicy
from protocol.nnrp.machines.opening import OpenPolicy
from protocol.nnrp.machines.operation import Operation
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Session
from protocol.nnrp.messages import ClientHello, FrameSubmit, Message, SessionOpen
from protocol.nnrp.packet import Packet, decode_packet
from protocol.nnrp.splitter import Splitter

E = TypeVar("E")

ALL_FEATURES = OperationFeatures(31)
ALL_FLAGS = SessionFlags(15)
HELLO = ClientHello(
    supported_profile_bitmap=3,
    supported_payload_kind_bitmap=PayloadKind(0x7F),
    cache_object_bitmap=0x1FF,
    max_lane_count=1,
    max_cache_entries=16,
    max_cache_bytes=1 << 20,
)
TOKEN_SUBMIT = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK)


class End:
    """One machine with what it has received and how it fared."""

    def __init__(self, machine: Connection) -> None:
        self.machine = machine
        self.splitter = Splitter()
        self.events: list[Event] = []
        self.errors: list[NnrpError] = []

    def feed(self, data: bytes, now: float) -> None:
        self.splitter.receive_data(data)
        try:
            for raw in self.splitter.packets():
                try:
                    self.events.append(self.machine.receive_raw(raw, now))
                except NnrpError as error:
                    self.errors.append(error)
        except NnrpError as error:
            self.errors.append(error)
            self.machine.receive_violation(error)

    def last(self, kind: type[E]) -> E:
        found = [each for each in self.events if isinstance(each, kind)]
        assert found, f"no {kind.__name__} among {self.events}"
        return found[-1]


Cut = Callable[[bytes], Iterable[bytes]]


def whole(data: bytes) -> Iterable[bytes]:
    return (data,)


def bytewise(data: bytes) -> Iterable[bytes]:
    return (data[index : index + 1] for index in range(len(data)))


class Duo:
    """A client and a server machine. ``pump`` carries everything until neither has anything to say."""

    def __init__(
        self,
        *,
        strict: bool = True,
        limits: ConnectionLimits | None = None,
        client_dialect: Dialect = Dialect.UNKNOWN,
        cut: Cut = whole,
        policy: OpenPolicy | None = None,
        hello: HelloPolicy | None = None,
        answer: bool = True,
    ) -> None:
        self.now = 0.0
        self.cut = cut
        self.policy = policy or OpenPolicy(max_in_flight_operations=8, operation_credit=4)
        self.hello_policy = hello or HelloPolicy()
        self.answer = answer
        self.tokens = count(1)
        schemas = builtin_registry()
        self.client = End(
            Connection(Side.CLIENT, now=0.0, schemas=schemas, limits=limits, strict=strict, dialect=client_dialect)
        )
        self.server = End(Connection(Side.SERVER, now=0.0, schemas=schemas, limits=limits, strict=strict))
        self.wire: list[tuple[str, Packet]] = []

    def pump(self) -> None:
        for _ in range(1000):
            moved = self._carry(self.client, self.server, "c2s") + self._carry(self.server, self.client, "s2c")
            if not moved:
                return
        raise AssertionError("the machines never stop talking")

    def to_server(self, message: Message, body: Any = b"", **ids: Any) -> None:
        """Bytes that no client machine would send, or that its driver sends by itself."""
        self._deliver(self.server, "c2s", Outgoing(message, body=body, **ids))
        self.pump()

    def to_client(self, message: Message, body: Any = b"", **ids: Any) -> None:
        self._deliver(self.client, "s2c", Outgoing(message, body=body, **ids))
        self.pump()

    def connect(self) -> None:
        self.client.machine.send_hello(HELLO)
        self.pump()

    def open(
        self,
        *,
        features: OperationFeatures | None = None,
        flags: SessionFlags = ALL_FLAGS,
        session_id: int = 0,
        max_in_flight: int = 8,
    ) -> tuple[Session, Session]:
        """A session as both ends hold it: (client's, server's)."""
        self.client.machine.open_session(
            SessionOpen(
                requested_session_id=session_id,
                profile_id=2,
                session_flags=flags,
                schema_id=0x1001,
                schema_version=3,
                max_in_flight_operations=max_in_flight,
            ),
            features=features,
        )
        self.pump()
        mine = self.client.last(SessionOpened).session
        return mine, self.server.machine.sessions[mine.session_id]

    def submit(self, session: Session, message: FrameSubmit = TOKEN_SUBMIT, **wanted: Any) -> Operation:
        """The client starts an operation and its driver sends the packet."""
        operation = self.client.machine.submit(session, self.now, **wanted)
        self._deliver(
            self.server,
            "c2s",
            Outgoing(message, session.session_id, operation.frame_id, operation.view_id),
        )
        self.pump()
        return operation

    def sent(self, direction: str, message: type[Message]) -> list[Packet]:
        return [packet for way, packet in self.wire if way == direction and isinstance(packet.metadata, message)]

    def _carry(self, source: End, target: End, direction: str) -> int:
        messages = source.machine.messages()
        for outgoing in messages:
            self._deliver(target, direction, outgoing, strict=True)
        return len(messages)

    def _deliver(self, target: End, direction: str, outgoing: Outgoing, *, strict: bool = False) -> None:
        """``strict``: what a machine sends is encoded as its driver does, which refuses what is illegal."""
        data = outgoing.encode(strict=strict)
        self.wire.append((direction, decode_packet(data, strict=False, granted=ALL_FEATURES)))
        for piece in self.cut(data):
            target.feed(piece, self.now)
        if self.answer:
            self._answer(target)

    def _answer(self, end: End) -> None:
        """What a server's driver decides at once."""
        if not end.events or end.machine.side is not Side.SERVER:
            return
        event = end.events[-1]
        machine = end.machine
        if isinstance(event, HelloReceived) and machine.answer is None and not machine.closed:
            try:
                machine.accept_hello(self.hello_policy)
            except NnrpError as error:
                end.errors.append(error)
        elif isinstance(event, SessionOpenReceived) and machine.opens_outstanding:
            decision = machine.decide_open(self.policy)
            enabled = decision.terms is not None and decision.terms.resume_enabled
            machine.answer_open(decision, resume_token=b"token-%d" % next(self.tokens) if enabled else b"")
