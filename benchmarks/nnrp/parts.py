"""Where the processor time of a 64-byte operation goes: ``python -m benchmarks.nnrp.parts``; prints a table.

Both ends are in this process, and what is counted is its processor time, so that a busy machine disturbs it little. Every
figure is the best of many short runs.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio

from benchmarks.nnrp.roles import bare_echo, echo_inline
from client.nnrp import NnrpOptions, NnrpSession, open_nnrp
from protocol.nnrp.descriptors import TypedPayloadDescriptor
from protocol.nnrp.enums import (
    ConnectionState,
    DescriptorFlags,
    OperationFeatures,
    OperationState,
    PayloadKind,
    StreamSemantics,
)
from protocol.nnrp.machines.connection import Connection, Side
from protocol.nnrp.machines.events import SubmitReceived
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.machines.session import Session
from protocol.nnrp.machines.terms import SessionTerms
from protocol.nnrp.messages import FrameSubmit, ResultPush
from protocol.nnrp.packet import RawPacket
from protocol.nnrp.template import Template
from server.nnrp.policy import ServingPolicy
from server.nnrp.service import open_service
from server.nnrp.submit import Submit
from server.nnrp.workers import EchoWorker

__all__ = ["main"]

COUNT: Final = 480
"""Operations of one run: few enough to be over before somebody else gets the processor."""
RUNS: Final = 60
DATA: Final = b"x" * 64
SUBMIT: Final = FrameSubmit(payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
RESULT: Final = ResultPush(active_profile_id=2, payload_kind_bitmap=PayloadKind.TOKEN_CHUNK, payload_frame_count=1)
DESCRIPTOR: Final = TypedPayloadDescriptor(2, DescriptorFlags.TERMINAL, 0x1001, 3, StreamSemantics.APPEND)
TERMS: Final = SessionTerms(profile_id=2, schema_id=0x1001, schema_version=3, max_in_flight_operations=COUNT)


def best(prepare: Callable[[], Callable[[], object]]) -> float:
    """Microseconds an operation takes; each run gets what ``prepare`` made for it."""
    found = []
    for _ in range(RUNS):
        run = prepare()
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return min(found) / COUNT * 1e6


def packets(message: FrameSubmit | ResultPush) -> list[RawPacket]:
    template = Template(message, DESCRIPTOR)
    return [RawPacket(bytes(template.encode_parts(DATA, 1, frame_id)[0])) for frame_id in range(1, COUNT + 1)]


def machine(side: Side) -> tuple[Connection, Session]:
    connection = Connection(side, now=0.0, schemas=builtin_registry())
    connection.state = ConnectionState.OPEN
    return connection, connection.install(1, TERMS)


def reading(message: FrameSubmit | ResultPush) -> float:
    given = packets(message)
    return best(lambda: lambda: [each.decode() for each in given])


def writing(message: FrameSubmit | ResultPush) -> float:
    template = Template(message, DESCRIPTOR)
    return best(lambda: lambda: [template.encode_parts(DATA, 1, frame_id) for frame_id in range(1, COUNT + 1)])


def serving_machines() -> float:
    given = [each.decode() for each in packets(SUBMIT)]

    def run(connection: Connection, session: Session) -> None:
        for packet in given:
            event = connection.receive(packet, 0.0)
            assert isinstance(event, SubmitReceived)
            connection.finish(session, event.operation, OperationState.COMPLETED, 0.0)

    return best(lambda: partial(run, *machine(Side.SERVER)))


def asking_machines() -> float:
    given = [each.decode() for each in packets(RESULT)]

    def run(connection: Connection, session: Session) -> None:
        for packet in given:
            connection.submit(session, 0.0)
            connection.receive(packet, 0.0)

    return best(lambda: partial(run, *machine(Side.CLIENT)))


def working() -> float:
    connection, session = machine(Side.SERVER)
    events = [connection.receive(each.decode(), 0.0) for each in packets(SUBMIT)]
    submits = [
        Submit(each.packet.metadata, each.packet.content, each.operation, session)  # type: ignore[arg-type]  # of submits
        for each in events
        if isinstance(each, SubmitReceived)
    ]
    worker = EchoWorker()
    return best(lambda: lambda: [worker.answer_nowait(each) for each in submits])


async def whole(width: int) -> float:
    """Both ends over loopback TCP, with all there is between a caller's bytes and the worker."""
    async with open_service(ServingPolicy(), lambda _: EchoWorker()) as service, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, partial(service.serve_stream, transport="tcp"), [listener])
        url = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with open_nnrp(url, NnrpOptions()) as connection:
            session = await connection.open_session(max_in_flight=width, features=OperationFeatures(0))
            found = await best_of(partial(ask, session, width))
        nursery.cancel_scope.cancel()
    return found


async def ask(session: NnrpSession, width: int) -> None:
    under_way = deque([await session.submit(DATA) for _ in range(width)])
    for left in range(COUNT, 0, -1):
        await under_way.popleft().result()
        if left > width:
            under_way.append(await session.submit(DATA))


async def bare(width: int) -> float:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, bare_echo, [listener])
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        packet = len(DATA).to_bytes(4, "little") + DATA
        found = await best_of(partial(echo_inline, stream, packet, COUNT, width))
        nursery.cancel_scope.cancel()
    return found


async def best_of(run: Callable[[], Awaitable[None]]) -> float:
    found = []
    for _ in range(RUNS):
        started = time.process_time()
        await run()
        found.append(time.process_time() - started)
    return min(found) / COUNT * 1e6


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.collect()
    gc.freeze()
    rows = {
        "reading two packets": reading(SUBMIT) + reading(RESULT),
        "writing two packets": writing(SUBMIT) + writing(RESULT),
        "machines: submit, result": asking_machines(),
        "machines: admit, finish": serving_machines(),
        "worker": working(),
    }
    many, one = trio.run(whole, 32), trio.run(whole, 1)
    rows["drivers, sessions, splitters, queues, sockets, Trio"] = many - sum(rows.values())
    rows["**both ends, 32 in flight**"] = many
    rows["**both ends, serial**"] = one
    rows["bare echo, both ends, 32 in flight"] = trio.run(bare, 32)
    rows["bare echo, both ends, serial"] = trio.run(bare, 1)
    print("| of one 64-byte operation | µs |\n|---|---:|")
    for name, value in rows.items():
        print(f"| {name} | {value:.1f} |")


if __name__ == "__main__":
    main()
