"""A client by hand: it sends what it is told, right or wrong, and reads strictly what comes back."""

from __future__ import annotations

from typing import Final, TypeVar

import trio

from protocol.nnrp.bodies import ControlBody, DataBody
from protocol.nnrp.enums import (
    DescriptorFlags,
    ErrorScope,
    ExtensionKind,
    ExtType,
    MessageType,
    OperationFeatures,
    OperationState,
    PayloadKind,
    SessionStatus,
)
from protocol.nnrp.extensions import ALL_FEATURES, NO_FEATURES, ControlExtension, pack_extensions
from protocol.nnrp.messages import Error, FrameSubmit, Message, Pong, SessionOpen, SessionOpenAck
from protocol.nnrp.packet import BodyLike, Packet, encode_packet
from protocol.nnrp.regions import ExtensionFrame, Regions
from protocol.nnrp.splitter import Splitter
from protocol.nnrp.vendor import OperationExtensions, OperationStateBlock, ResumeFrom, SubmitContext
from server.conformance.case import Evidence, expect
from server.conformance.l1_data import token_body
from server.conformance.link import HELLO, OPEN

__all__ = ["Peer", "state_of", "text_of", "token_of"]

_READ: Final = 65_536
_QUIET: Final = 0.15
"""Seconds in which nothing must come, where that is what the case demands."""

M = TypeVar("M", bound=Message)


class Peer:
    """Packets come out in the order they came in; ``take`` looks for one of a kind and lets none pass unseen."""

    def __init__(self, stream: trio.abc.Stream, evidence: Evidence, token: str | None = None) -> None:
        self.stream = stream
        self.features: dict[int, OperationFeatures] = {}
        self._auth = b"" if token is None else token.encode("utf-8")
        self._evidence = evidence
        self._splitter = Splitter()
        self._packets: list[Packet] = []
        self._ended = False

    # Out

    async def greet(self) -> Packet:
        """Say hello; the answer."""
        await self.send(HELLO.replace(auth_bytes=len(self._auth)), self._auth)
        return await self.take(MessageType.SERVER_HELLO_ACK)

    async def send(self, message: Message, body: BodyLike = b"", *, session_id: int = 0, frame_id: int = 0) -> None:
        await self.send_raw(encode_packet(message, body, session_id=session_id, frame_id=frame_id))

    async def send_raw(self, data: bytes) -> None:
        self._evidence.note(f"sent {data[:512].hex()}{'…' if len(data) > 512 else ''}")
        await self.stream.send_all(data)

    async def open(
        self,
        request: SessionOpen = OPEN,
        *,
        token: bytes = b"",
        features: OperationFeatures = NO_FEATURES,
        resume_from: ResumeFrom | None = None,
    ) -> Packet:
        """Send SESSION_OPEN; its answer, opened or not."""
        entries = []
        if features:
            entries.append(ControlExtension.of(ExtType.OPERATION_EXTENSIONS, OperationExtensions(features=features)))
        if resume_from is not None:
            entries.append(ControlExtension.of(ExtType.RESUME_FROM, resume_from))
        extension = pack_extensions(entries)
        lengths = {"resume_token_bytes": len(token), "auth_bytes": 0, "session_extension_bytes": len(extension)}
        await self.send(request.replace(**lengths), token + extension)
        answer = await self.take(MessageType.SESSION_OPEN_ACK)
        ack = metadata(answer, SessionOpenAck)
        if ack.session_status in (SessionStatus.OPENED, SessionStatus.RESUMED):
            self.features[ack.session_id] = features & ALL_FEATURES
        return answer

    async def opened(self, request: SessionOpen = OPEN, features: OperationFeatures = NO_FEATURES) -> int:
        """Open a session that must be opened; its id."""
        ack = metadata(await self.open(request, features=features), SessionOpenAck)
        expect(ack.session_status is SessionStatus.OPENED, f"the session is opened: {ack}")
        return ack.session_id

    async def submit(
        self,
        session_id: int,
        frame_id: int,
        text: bytes = b"hello",
        *,
        context: SubmitContext | None = None,
        flags: DescriptorFlags = DescriptorFlags.TERMINAL,
    ) -> None:
        """One token payload; the echo returns it."""
        body = token_body((text, flags))
        if context is not None:
            body = Regions(body.payloads, extensions=(ExtensionFrame.of(ExtensionKind.SUBMIT_CONTEXT, context),))
        message = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
        await self.send(message, body, session_id=session_id, frame_id=frame_id)

    # In

    async def receive(self) -> Packet | None:
        """The next packet but for hints and PINGs, which may come at any time; None at the end of the stream."""
        while not self._packets and not self._ended:
            try:
                data = await self.stream.receive_some(_READ)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                self._ended = True
                break
            self._splitter.receive_data(data)
            for each in self._splitter.packets():
                granted = self.features.get(each.header.session_id, NO_FEATURES)
                packet = each.decode(strict=True, granted=granted)
                self._evidence.note(f"received {packet.header} {packet.metadata}")
                if packet.kind is MessageType.PING:
                    await self.send(Pong(), session_id=packet.header.session_id)
                elif packet.kind is not MessageType.RESULT_HINT:
                    self._packets.append(packet)
        return self._packets.pop(0) if self._packets else None

    async def take(self, kind: MessageType) -> Packet:
        """The next packet, which must be of this kind."""
        packet = await self.receive()
        if packet is None:
            expect(False, f"{kind.name} comes, not the end of the connection")
            raise AssertionError
        expect(packet.kind is kind, f"{kind.name} comes, not {packet.kind.name}: {packet.metadata}")
        return packet

    async def refused(self, code: int, demand: str, *, scope: ErrorScope | None = None, fatal: bool = False) -> Error:
        """An ERROR with this code must come; after a fatal one the end of the connection."""
        error = metadata(await self.take(MessageType.ERROR), Error)
        expect(error.error_code == code, f"{demand}: code {error.error_code:#x}, not {code:#x}")
        expect(bool(error.is_fatal) is fatal, f"{demand}: fatal is {bool(error.is_fatal)}")
        if scope is not None:
            expect(error.error_scope is scope, f"{demand}: scope {error.error_scope.name.lower()}")
        if fatal:
            await self.ended(demand)
        return error

    async def ended(self, demand: str) -> None:
        """The server must end the connection; a CLOSE may come before."""
        while (packet := await self.receive()) is not None:
            expect(packet.kind in (MessageType.CLOSE, MessageType.ERROR), f"{demand}: then {packet.kind.name} comes")

    async def quiet(self, demand: str) -> None:
        """Nothing must come for a moment."""
        with trio.move_on_after(_QUIET):
            packet = await self.receive()
            expect(False, f"{demand}, but {'the end' if packet is None else packet.kind.name} comes")

    async def finals(self, *frames: int) -> list[Packet]:
        """One terminal message for each of these frames must come, in whatever order; the parts before are let pass."""
        left, found = set(frames), []
        while left:
            packet = await self.receive()
            if packet is None:
                expect(False, f"frames {sorted(left)} end, not the connection")
                raise AssertionError
            expect(packet.header.frame_id in left, f"frame {packet.header.frame_id} ends once")
            if packet.kind is MessageType.RESULT_DROP or state_of(packet) is OperationState.COMPLETED:
                left.discard(packet.header.frame_id)
                found.append(packet)
        return found


def metadata(packet: Packet, kind: type[M]) -> M:
    message = packet.metadata
    if not isinstance(message, kind):
        expect(False, f"{kind.__name__} comes, not {packet.kind.name}")
        raise AssertionError
    return message


def token_of(answer: Packet) -> bytes:
    """The resume token of an answer."""
    return bytes(answer.content.resume_token) if isinstance(answer.content, ControlBody) else b""


def text_of(packet: Packet) -> bytes:
    """The payloads of a result, joined."""
    if not isinstance(packet.content, DataBody):
        return b""
    return b"".join(bytes(each.data) for each in packet.content.payloads)


def state_of(packet: Packet) -> OperationState | None:
    """What a result or drop says its operation has become; without a word, by its class."""
    content = packet.content
    if isinstance(content, DataBody):
        for frame in content.regions.extensions:
            if isinstance(frame.value, OperationStateBlock):
                return frame.value.operation_state
        partial = getattr(packet.metadata, "result_class", 0) == 1
        return OperationState.PARTIAL if partial else OperationState.COMPLETED
    if isinstance(content, ControlBody):
        for each in content.extensions:
            if isinstance(each.value, OperationStateBlock):
                return each.value.operation_state
    return None
