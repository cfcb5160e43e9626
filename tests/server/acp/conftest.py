"""The parts of ``/acp`` without HTTP: a harbour, a registry, and streams pulled by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio

from server.routes.acp.binding import Binding
from server.routes.acp.buffers import Bounds
from server.routes.acp.connection import AcpConnection
from server.routes.acp.registry import Registry
from server.routes.acp.streams import Carrier, OutStream
from server.routes.acp.translate import SSE
from sessions import Harbour, Limits, open_harbour
from tests.support.acp import Frame, parse_frame
from tests.support.engine import submit
from tests.support.fake_runner import FakeRunner


@attrs.define
class Core:
    harbour: Harbour
    registry: Registry
    runner: FakeRunner
    hurried: list[float] = attrs.field(factory=list)

    @property
    def carrier(self) -> Carrier:
        return Carrier(SSE, self.hurried.append)

    def connect(self, **options: Any) -> AcpConnection:
        return self.registry.open(local=True, **options)

    async def own(self, connection: AcpConnection, **options: Any) -> Binding:
        """A new session of this connection, of which its client has been told."""
        opened = await self.harbour.create()
        binding = connection.bind(opened.session, opened.client_id, **options)
        binding.announced = True
        return binding

    def share(self, connection: AcpConnection, binding: Binding) -> Binding:
        """The same session, owned by another connection as well."""
        return connection.bind(binding.session, binding.session.register_client())


@asynccontextmanager
async def acp_core(
    runner: FakeRunner | None = None, *, bounds: Bounds | None = None, **limits: Any
) -> AsyncIterator[Core]:
    runner = runner or FakeRunner()
    async with open_harbour(runner, workspaces=["/tmp"], limits=Limits(**limits)) as harbour:
        registry = Registry(
            harbour,
            max_connections=64,
            session_grace=10.0,
            connection_grace=10.0,
            socket_grace=10.0,
            bounds=bounds or Bounds(),
        )
        yield Core(harbour, registry, runner)


def frames_of(parts: list[bytes] | None) -> list[Frame]:
    """What a stream gave, read as a client would."""
    found = []
    for part in parts or []:
        assert part.endswith(b"\n\n"), part
        frame = parse_frame(part[:-2])
        assert frame is not None
        found.append(frame)
    return found


def kinds(parts: list[bytes] | None) -> list[str]:
    return [frame.kind if frame.id is None else f"{frame.id}:{frame.kind}" for frame in frames_of(parts)]


async def take(stream: OutStream) -> list[str] | None:
    """The next frames in words; None at the end. Fails when nothing comes."""
    with trio.fail_after(1):
        parts = await stream.take()
    return None if parts is None else kinds(parts)


async def nothing(stream: OutStream) -> bool:
    """Whether the stream has nothing to say."""
    with trio.move_on_after(0.5):
        await stream.take()
        return False
    return True


def publish(binding: Binding, count: int) -> None:
    for _ in range(count):
        binding.session.update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}})


def prompt(binding: Binding, words: str, request_id: Any = 1) -> None:
    operation = submit(binding.session, words, client_id=binding.client_id)
    binding.track(request_id, operation)


def reply_body(message: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(message)
    return value
