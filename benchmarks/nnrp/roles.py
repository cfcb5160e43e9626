"""The processes of the NNRP measures: ``python -m benchmarks.nnrp.roles ROLE …``; each client role prints one JSON number.

Servers print the port they listen on. Every client does the same: COUNT times SIZE bytes there and back, WIDTH at a time.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable

import trio

__all__ = ["bare_echo", "echo_inline", "main"]

_LENGTH = struct.Struct("<I")
INLINE = 1 << 17
"""Bytes under way that the sockets hold, so that one task can send them before it reads."""


def _say(value: object) -> None:
    print(value, flush=True)


# A bare echo on Trio: length, bytes


async def bare_echo(stream: trio.SocketStream) -> None:
    buffer = bytearray()
    async with stream:
        while data := await stream.receive_some(1 << 18):
            buffer += data
            start, out = 0, []
            while len(buffer) - start >= 4:
                end = start + 4 + _LENGTH.unpack_from(buffer, start)[0]
                if end > len(buffer):
                    break
                out.append(bytes(buffer[start:end]))
                start = end
            del buffer[:start]
            if out:
                await stream.send_all(b"".join(out))


async def bare_server() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    _say(listener.socket.getsockname()[1])
    await trio.serve_listeners(bare_echo, [listener])


async def bare_client(port: int, count: int, width: int, size: int) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    packet = _LENGTH.pack(size) + b"x" * size
    credit = trio.Semaphore(width)
    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        if len(packet) * width > INLINE:
            nursery.start_soon(_send_packets, stream, packet, count, credit)
            await _count_echoes(stream, packet, count, credit.release)
        else:
            await echo_inline(stream, packet, count, width)
    _say(count / (time.perf_counter() - started))


async def echo_inline(stream: trio.SocketStream, packet: bytes, count: int, width: int) -> None:
    """One task, nothing between a reply and the next request: what a protocol costs is measured against this."""
    sent = min(width, count)
    await stream.send_all(packet * sent)
    received = done = 0
    while done < count:
        received += len(await stream.receive_some(1 << 18))
        came, received = divmod(received, len(packet))
        done += came
        more = min(came, count - sent)
        if more:
            await stream.send_all(packet * more)
            sent += more


async def _send_packets(stream: trio.SocketStream, packet: bytes, count: int, credit: trio.Semaphore) -> None:
    for _ in range(count):
        await credit.acquire()
        await stream.send_all(packet)


async def _count_echoes(stream: trio.SocketStream, packet: bytes, count: int, release: Callable[[], object]) -> None:
    received = done = 0
    while done < count:
        received += len(await stream.receive_some(1 << 18))
        came, received = divmod(received, len(packet))
        done += came
        for _ in range(came):
            release()


# Ours


async def our_client(url: str, count: int, width: int, size: int, ca_file: str | None = None) -> None:
    from client.nnrp import NnrpOptions, open_nnrp
    from protocol.nnrp.enums import OperationFeatures

    payload = b"x" * size
    async with open_nnrp(url, NnrpOptions(ca_file=ca_file)) as connection:
        session = await connection.open_session(max_in_flight=width, features=OperationFeatures(0))
        started = time.perf_counter()
        # One task that keeps WIDTH in flight, as the others do.
        under_way = deque([await session.submit(payload) for _ in range(min(width, count))])
        left = count - len(under_way)
        while under_way:
            result = await under_way.popleft().result()
            assert len(result.data) == size
            if left:
                left -= 1
                under_way.append(await session.submit(payload))
        _say(count / (time.perf_counter() - started))


async def our_opens(url: str, count: int) -> None:
    """Sessions opened per second on one connection, 64 requests under way at a time."""
    from client.nnrp import open_nnrp
    from protocol.nnrp.enums import OperationFeatures

    left = count
    async with open_nnrp(url) as connection:

        async def one_after_another() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await connection.open_session(features=OperationFeatures(0))

        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(one_after_another)
        _say(count / (time.perf_counter() - started))


async def our_idle(url: str, count: int) -> None:
    """Open COUNT sessions, say so, and keep them until standard input ends."""
    from client.nnrp import open_nnrp
    from protocol.nnrp.enums import OperationFeatures

    async with open_nnrp(url) as connection:
        for _ in range(count):
            await connection.open_session(features=OperationFeatures(0))
        _say(count)
        await trio.to_thread.run_sync(sys.stdin.read)


# nnrp-py


async def their_server() -> None:
    from nnrp.adapters.tcp import create_tcp_server_configuration, serve_tcp
    from nnrp.server.transport import accept_server_connection

    async with serve_tcp("127.0.0.1", 0, configuration=create_tcp_server_configuration(idle_timeout=60)) as listener:
        _say(listener._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]  # it does not tell otherwise
        tasks = set()

        async def serve(connection: object) -> None:
            try:
                session = await accept_server_connection(connection, session_id=7)
                while True:
                    submit = await session.receive_submit()
                    await session.send_result(
                        frame_id=submit.packet.header.frame_id, typed_payloads=submit.request.typed_payloads
                    )
            except Exception:
                # The client has left; whatever the library calls that.
                return

        while True:
            task = asyncio.create_task(serve(await listener.accept(timeout=600)))
            tasks.add(task)


async def their_client(port: int, count: int, width: int, size: int) -> None:
    from nnrp.client.transport import SubmitRequest, TypedPayload, connect_client_session
    from nnrp.core import TransportId

    payload = TypedPayload.token_chunk(b"x" * size, profile_id=2)
    async with connect_client_session(
        "127.0.0.1", tcp_port=port, requested_session_id=7, forced_transport_id=TransportId.TCP
    ) as session:
        started = time.perf_counter()
        sent = 0
        while sent < min(width, count):
            sent += 1
            await session.send_submit(SubmitRequest(frame_id=sent, typed_payloads=(payload,)))
        for _ in range(count):
            result = await session.receive_result()
            assert len(result.token_chunks[0]) == size
            if sent < count:
                sent += 1
                await session.send_submit(SubmitRequest(frame_id=sent, typed_payloads=(payload,)))
        _say(count / (time.perf_counter() - started))


async def their_hellos(port: int, count: int) -> None:
    """Connections with their hello answered, per second; that is what makes a session there."""
    from nnrp.client.transport import connect_client_session
    from nnrp.core import TransportId

    started = time.perf_counter()
    for _ in range(count):
        async with connect_client_session(
            "127.0.0.1", tcp_port=port, requested_session_id=7, forced_transport_id=TransportId.TCP
        ):
            pass
    _say(count / (time.perf_counter() - started))


_TRIO: dict[str, Callable[..., Awaitable[None]]] = {
    "bare-server": bare_server,
    "bare-client": bare_client,
    "our-client": our_client,
    "our-opens": our_opens,
    "our-idle": our_idle,
}
_ASYNCIO: dict[str, Callable[..., Awaitable[None]]] = {
    "their-server": their_server,
    "their-client": their_client,
    "their-hellos": their_hellos,
}


def main() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # nnrp-py calls its packet transport a tool
    role, *words = sys.argv[1:]
    arguments = [int(word) if word.isdecimal() else word for word in words]
    if role in _TRIO:
        trio.run(_TRIO[role], *arguments)
    else:
        asyncio.run(_ASYNCIO[role](*arguments))  # type: ignore[arg-type]  # all of these are coroutine functions


if __name__ == "__main__":
    main()
