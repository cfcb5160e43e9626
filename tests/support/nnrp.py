"""NNRP over loopback sockets: the served side, and a peer that sends what it is told and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import attrs
import trio

from client.nnrp import NnrpOptions
from client.nnrp.dialling import dial
from protocol.nnrp.bodies import ControlBody, DataBody
from protocol.nnrp.enums import (
    DescriptorFlags,
    ExtensionKind,
    ExtType,
    MessageType,
    OperationFeatures,
    PayloadKind,
    ProfileId,
    SessionFlags,
    SessionStatus,
    StreamSemantics,
)
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.header import Header
from protocol.nnrp.messages import ClientHello, FrameSubmit, Message, Pong, SessionOpen, SessionOpenAck
from protocol.nnrp.packet import BodyLike, Packet, encode_packet
from protocol.nnrp.regions import ExtensionFrame, Regions, TypedPayload
from protocol.nnrp.splitter import Splitter
from protocol.nnrp.vendor import OperationExtensions, ResumeFrom, SubmitContext
from server.nnrp.listener import listen_tcp
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import NnrpService, open_service
from server.nnrp.submit import Handler, WorkerMaker
from server.nnrp.workers.echo import EchoWorker
from server.nnrp.workers.function import FunctionWorker

__all__ = [
    "HELLO",
    "OPEN",
    "Peer",
    "Served",
    "functions",
    "raw",
    "serving_nnrp",
    "submit_packet",
    "text_of",
    "token_of",
]

M = TypeVar("M", bound=Message)

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
    profile_id=ProfileId.TOKEN,
    session_flags=SessionFlags(0),
    schema_id=0x1001,
    schema_version=3,
    max_in_flight_operations=8,
)


def functions(handler: Handler) -> WorkerMaker:
    """Workers that run ``handler``."""
    return lambda _: FunctionWorker(handler)


@attrs.frozen
class Served:
    """The service, where it listens, and what a client needs to know there."""

    service: NnrpService
    url: str
    options: NnrpOptions = attrs.field(factory=NnrpOptions)

    @property
    def host(self) -> str:
        host = urlsplit(self.url).hostname
        assert host is not None
        return host

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[trio.abc.Stream]:
        """A connection on which nothing has been said."""
        async with trio.open_nursery() as nursery:
            stream = await dial(self.url, self.options, nursery)
            try:
                yield stream
            finally:
                await trio.aclose_forcefully(stream)
                nursery.cancel_scope.deadline = trio.current_time() + 2

    @asynccontextmanager
    async def peer(self, *, hello: bool = True) -> AsyncIterator[Peer]:
        async with self.stream() as stream:
            peer = Peer(stream)
            if hello:
                await peer.send(HELLO)
                await peer.receive(MessageType.SERVER_HELLO_ACK)
            yield peer

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110  # what is waited for has no event
                await trio.sleep(0.005)


@asynccontextmanager
async def serving_nnrp(
    policy: ServingPolicy | None = None, make_worker: WorkerMaker = lambda _: EchoWorker()
) -> AsyncIterator[Served]:
    """The service on a free loopback port, for the length of the block."""
    async with open_service(policy or ServingPolicy(), make_worker) as service, trio.open_nursery() as nursery:
        ((host, port),) = await nursery.start(listen_tcp, service, "127.0.0.1", 0)
        yield Served(service, f"tcp://{host}:{port}")
        nursery.cancel_scope.cancel()


class Peer:
    """A client by hand. What is received is decoded strictly, with the features its session was granted."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.features: dict[int, OperationFeatures] = {}
        self.hints: deque[Packet] = deque()
        self.answers = True
        """Whether a PING that comes while something else is waited for is answered, by itself, or only passed over."""
        self._splitter = Splitter()
        self._packets: deque[Packet] = deque()

    async def send(
        self, message: Message, body: BodyLike = b"", *, session_id: int = 0, frame_id: int = 0, strict: bool = True
    ) -> None:
        await self.stream.send_all(
            encode_packet(message, body, session_id=session_id, frame_id=frame_id, strict=strict)
        )

    async def receive(self, kind: MessageType | None = None, *, seconds: float = 5.0, strict: bool = True) -> Packet:
        """The next packet; it must be of ``kind``. Raises EOFError at the end. RESULT_HINTs, which may come at any time, are
        put aside in ``hints`` unless one is asked for. ``strict`` False is for answers in a shape that this peer has chosen."""
        waiting = self.hints if kind is MessageType.RESULT_HINT else self._packets
        with trio.fail_after(seconds):
            while not waiting:
                data = await self.stream.receive_some(65_536)
                if not data:
                    raise EOFError
                self._splitter.receive_data(data)
                for each in self._splitter.packets():
                    granted = self.features.get(each.header.session_id, NO_FEATURES)
                    packet = each.decode(strict=strict, granted=granted)
                    if packet.kind is MessageType.PING and kind is not MessageType.PING:
                        if self.answers:
                            await self.stream.send_all(encode_packet(Pong()))
                        continue
                    (self.hints if packet.kind is MessageType.RESULT_HINT else self._packets).append(packet)
        packet = waiting.popleft()
        if kind is not None:
            assert packet.kind is kind, f"{packet.kind.name} instead of {kind.name}: {packet.metadata} {packet.body!r}"
        return packet

    async def nothing_comes(self, seconds: float = 0.1) -> None:
        with trio.move_on_after(seconds):
            raise AssertionError(f"unexpected {(await self.receive()).kind.name}")

    async def open(
        self,
        request: SessionOpen = OPEN,
        *,
        token: bytes = b"",
        auth: bytes = b"",
        features: OperationFeatures = NO_FEATURES,
        resume_from: ResumeFrom | None = None,
    ) -> Packet:
        """Send SESSION_OPEN; its answer. Granted features are taken note of."""
        entries = []
        if features:
            entries.append(ControlExtension.of(ExtType.OPERATION_EXTENSIONS, OperationExtensions(features=features)))
        if resume_from is not None:
            entries.append(ControlExtension.of(ExtType.RESUME_FROM, resume_from))
        extension = pack_extensions(entries)
        request = request.replace(
            resume_token_bytes=len(token), auth_bytes=len(auth), session_extension_bytes=len(extension)
        )
        await self.send(request, token + auth + extension)
        answer = await self.receive(MessageType.SESSION_OPEN_ACK)
        ack = answer.metadata
        assert isinstance(ack, SessionOpenAck)
        if ack.session_status in (SessionStatus.OPENED, SessionStatus.RESUMED):
            self.features[ack.session_id] = features & ALL_FEATURES
        return answer

    async def submit(
        self, frame_id: int, data: bytes = b"hello", *, session_id: int = 1, context: SubmitContext | None = None
    ) -> None:
        await self.stream.send_all(submit_packet(frame_id, data, session_id=session_id, context=context))


def token_of(answer: Packet) -> bytes:
    content = answer.content
    assert isinstance(content, ControlBody)
    return bytes(content.resume_token)


def text_of(packet: Packet) -> bytes:
    """The payloads of a result, joined."""
    content = packet.content
    assert isinstance(content, DataBody)
    return b"".join(bytes(each.data) for each in content.payloads)


def submit_packet(
    frame_id: int,
    data: bytes = b"hello",
    *,
    session_id: int = 1,
    context: SubmitContext | None = None,
    metadata: FrameSubmit | None = None,
) -> bytes:
    """A FRAME_SUBMIT with one token payload."""
    payload = TypedPayload.of(
        data,
        profile_id=ProfileId.TOKEN,
        schema_id=0x1001,
        schema_version=3,
        stream_semantics=StreamSemantics.APPEND,
        flags=DescriptorFlags.TERMINAL,
    )
    frames = () if context is None else (ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context),)
    message = (metadata or FrameSubmit()).replace(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
    return encode_packet(message, Regions((payload,), extensions=frames), session_id=session_id, frame_id=frame_id)


def raw(message: Message, body: bytes = b"", *, session_id: int = 0, frame_id: int = 0, trace_id: int = 0) -> bytes:
    """The bytes of a message as they stand, right or wrong."""
    header = Header(
        message.TYPE,
        meta_len=message.SIZE,
        body_len=len(body),
        session_id=session_id,
        frame_id=frame_id,
        trace_id=trace_id,
    )
    return header.pack() + message.pack() + body
