"""One transport connection of a client: a stream, the machine, a reader, a writer, a timer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

import trio

from client.nnrp.errors import NnrpClientError
from client.nnrp.receiving import receive_some
from client.nnrp.transport import PacketTransport
from client.nnrp.writer import Writer
from protocol.nnrp.enums import ConnectionState, MessageType
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.header import Header
from protocol.nnrp.machines.connection import Connection, ConnectionLimits, Side
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import Event, ResultReceived
from protocol.nnrp.machines.schemas import builtin_registry
from protocol.nnrp.splitter import Splitter

__all__ = ["Link"]

logger = logging.getLogger("moorline.client")

_LINGER: Final = 5.0
"""Seconds the last packets may take to go out."""
_PARTING: Final = 0.5
"""Seconds for the goodbye of a transport that has one."""
_RESULTS: Final = (MessageType.RESULT_PUSH, MessageType.RESULT_DROP)
_CLOSED: Final = ConnectionState.CLOSED
_SCHEMAS: Final = builtin_registry()


class Link:
    """Drives one machine. ``act`` is called synchronously for every event, ``spoilt`` for a result that is refused, however
    little of it can be read; ``run`` ends when the connection is over, and closes it when it is cancelled."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        act: Callable[[Event], None],
        *,
        spoilt: Callable[[Connection, Header, NnrpError], None] = lambda *_: None,
        dialect: Dialect,
        strict: bool,
        limits: ConnectionLimits,
        send_timeout: float,
    ) -> None:
        self.machine = Connection(
            Side.CLIENT,
            now=trio.current_time(),
            schemas=_SCHEMAS,
            limits=limits,
            strict=strict,
            dialect=dialect,
        )
        self.machine.ordered = not isinstance(stream, PacketTransport) or stream.ordered
        self.writer = Writer(stream, send_timeout)
        self._act = act
        self._spoilt = spoilt
        self._stream = stream
        self._splitter = Splitter()
        self._reading = trio.CancelScope()
        self._now = trio.lowlevel.current_clock().current_time
        self._timer = trio.CancelScope()
        self._due = math.inf
        """When the timer's present wait ends: its scope's ``deadline``, which takes longer to read than every flush should pay."""
        self._over = False
        self._muted = False
        self.greeted = trio.Event()
        """Set when the hello is answered, or the connection over, or none is said."""
        self.refusal: NnrpClientError | None = None
        """Why the hello was refused."""
        self.pings: dict[int, trio.Event] = {}
        """The caller's PINGs that are not answered, by the trace id that their PONG brings back (nnrp-wire 7.20)."""
        self.done = trio.Event()
        """Set when everything has been sent that could be, and the stream is closed."""

    def collect(self) -> None:
        """Queue what the machine wants sent."""
        if self.machine.has_messages():
            self.writer.write([each.encode() for each in self.machine.messages()])

    def flush(self) -> None:
        """The same, and see to what else may have changed: whether it is over, and when it is to act next."""
        self.collect()
        machine = self.machine
        if machine.state is _CLOSED:
            self._reading.cancel()
        deadline = machine.next_deadline()
        if deadline < self._due:
            self._due = self._timer.deadline = deadline

    def mute(self) -> None:
        """What still comes is read and thrown away: not even the machine sees it, because it comes again elsewhere, and what
        is settled here would not be waited for there."""
        self._muted = True

    def lose(self) -> None:
        """Give the connection up."""
        self.machine.lose_transport()
        self._reading.cancel()

    async def run(self) -> None:
        """Closes the stream at the end. Raises nothing but cancellation."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._keep_time)
                with self._reading:
                    await self._read()
                self._over = True
                self._timer.cancel()
                self.writer.end()
                nursery.cancel_scope.deadline = trio.current_time() + _LINGER
            if isinstance(self._stream, PacketTransport):
                await self._part(self._stream)
        finally:
            self._over = True
            self._close()
            self.machine.lose_transport()
            self.writer.end()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self._send_rest()
                await trio.aclose_forcefully(self._stream)
            self.done.set()

    def _close(self) -> None:
        """Where we are cancelled: nobody comes back for the sessions, and without a CLOSE the server would keep them."""
        machine = self.machine
        if machine.state is ConnectionState.OPEN and machine.may_send(MessageType.CLOSE):
            machine.close(trio.current_time())
            self.collect()

    async def _send_rest(self) -> None:
        """The same: what was queued when we were cancelled."""
        try:
            await self.writer.run()
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _part(self, transport: PacketTransport) -> None:
        with trio.move_on_after(_PARTING):
            try:
                await transport.part()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _read(self) -> None:
        machine, splitter, burst = self.machine, self._splitter, False
        while not machine.closed:
            count = splitter.count
            try:
                data = await receive_some(self._stream, burst=burst, bulk=splitter.buffered_bytes > 0)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                machine.lose_transport()
                return
            except NnrpError as fault:
                logger.warning("the server sent something that is no packet: %s", fault)
                machine.receive_violation(fault)
                self.flush()
                return
            if not data:
                machine.receive_eof(inside_packet=splitter.statistics().buffered_bytes > 0)
                return
            self._take(data)
            burst = splitter.count - count != 1

    def _take(self, data: bytes | bytearray) -> None:
        if self._muted:
            return
        machine, now = self.machine, self._now()
        self._splitter.receive_data(data)
        self.writer.hold()
        only_results = True
        try:
            for raw in self._splitter.packets():
                try:
                    event = machine.receive_raw(raw, now)
                except NnrpError as fault:
                    only_results = False
                    # Reported to the peer where its dialect allows; a result that came twice is nothing to report here.
                    logger.info("the server broke a rule: %s", fault)
                    if raw.header.msg_type is MessageType.SESSION_OPEN_ACK:
                        # Answers belong to requests by their order: behind a broken one nothing could be told apart.
                        self.lose()
                        break
                    if raw.header.msg_type in _RESULTS:
                        self._spoilt(machine, raw.header, fault)
                else:
                    only_results = only_results and type(event) is ResultReceived
                    self._act(event)
        except NnrpError as fault:
            logger.warning("the server's stream cannot be read: %s", fault)
            machine.receive_violation(fault)
        if only_results and machine.is_steady():
            self.collect()
        else:
            self.flush()
        self.writer.release()

    async def _write(self) -> None:
        try:
            await self.writer.run()
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.lose()

    async def _keep_time(self) -> None:
        machine = self.machine
        while not machine.closed:
            self._due = machine.next_deadline()
            with trio.CancelScope(deadline=self._due) as self._timer:
                await trio.sleep_forever()
            if self._over:
                return
            for event in machine.handle_deadline(trio.current_time()):
                self._act(event)
            self.flush()
