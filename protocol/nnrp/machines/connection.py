"""The machine of one connection: packets in, events and messages out. No socket, no clock, the same for both sides.

Driving it::

    connection = Connection(Side.SERVER, now=now(), schemas=builtin_registry())
    splitter.receive_data(data)
    try:
        for raw in splitter.packets():
            try:
                event = connection.receive_raw(raw, now())
            except NnrpError:                                    # reported to the peer already
                ...                                              # log; look at connection.closed
            else:
                ...                                              # act on the event
    except NnrpError as error:                                   # the framing is lost
        connection.receive_violation(error)
    for outgoing in connection.messages():
        write(outgoing.encode())
    # connection.closed: send what is left, close the transport
    # a timer: when now() >= connection.next_deadline(): events = connection.handle_deadline(now())
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from protocol.nnrp.catalogue import CATALOGUE
from protocol.nnrp.enums import ConnectionState, MessageType
from protocol.nnrp.errors import NnrpError
from protocol.nnrp.extensions import NO_FEATURES
from protocol.nnrp.header import Header
from protocol.nnrp.machines.connection_table import Dialect
from protocol.nnrp.machines.events import EndCause, Event, RetryDue, SessionCloseProgress
from protocol.nnrp.machines.layers.core import ConnectionCounters, ConnectionLimits, Side
from protocol.nnrp.machines.layers.data import DataFlow
from protocol.nnrp.machines.outgoing import Outgoing
from protocol.nnrp.messages import Ping
from protocol.nnrp.packet import Packet, RawPacket
from protocol.registry import Direction

__all__ = ["Connection", "ConnectionCounters", "ConnectionLimits", "Side"]

_HANDLERS: dict[MessageType, str] = {
    MessageType.CLIENT_HELLO: "_on_hello",
    MessageType.SERVER_HELLO_ACK: "_on_hello_ack",
    MessageType.SESSION_PATCH: "_on_patch",
    MessageType.SESSION_PATCH_ACK: "_on_patch_ack",
    MessageType.CLOSE: "_on_close",
    MessageType.ERROR: "_on_error",
    MessageType.SESSION_OPEN: "_on_session_open",
    MessageType.SESSION_OPEN_ACK: "_on_session_open_ack",
    MessageType.SESSION_CLOSE: "_on_session_close",
    MessageType.SESSION_CLOSE_ACK: "_on_session_close_ack",
    MessageType.FRAME_SUBMIT: "_on_submit",
    MessageType.FRAME_CANCEL: "_on_cancel",
    MessageType.RESULT_PUSH: "_on_result",
    MessageType.RESULT_DROP: "_on_drop",
    MessageType.CACHE_PUT: "_on_cache_put",
    MessageType.CACHE_ACK: "_on_cache_ack",
    MessageType.CACHE_INVALIDATE: "_on_cache_invalidate",
    MessageType.FLOW_UPDATE: "_on_flow",
    MessageType.RESULT_HINT: "_on_hint",
    MessageType.TRANSPORT_PROBE: "_on_probe",
    MessageType.TRANSPORT_PROBE_ACK: "_on_probe_ack",
    MessageType.SESSION_MIGRATE: "_on_migrate",
    MessageType.SESSION_MIGRATE_ACK: "_on_migrate_ack",
    MessageType.PING: "_on_ping",
    MessageType.PONG: "_on_pong",
}

_SESSION_ID = Header.LAYOUT.field("session_id").offset

_OPEN, _DRAINING, _CLOSED = ConnectionState.OPEN, ConnectionState.DRAINING, ConnectionState.CLOSED
_BEFORE_OPEN = (ConnectionState.INIT, ConnectionState.NEGOTIATING)
_CLIENT = Side.CLIENT
_PING = MessageType.PING

Handler = Callable[[Any, Packet, float], Event]


def _wrong_direction(connection: Connection, packet: Packet, now: float) -> Event:
    raise connection._bad_state(packet.header, "this message goes the other way")


class Connection(DataFlow):
    """One transport connection of one side.

    Methods are of four kinds: getters; things that happened (``receive``, ``receive_violation``, ``receive_eof``,
    ``lose_transport``, ``handle_deadline``); things the application wants; things to collect (``messages``,
    ``next_deadline``). What breaks the rules of the peer raises `NnrpError` after the machine has queued the ERROR and
    taken the consequences; what breaks ours raises `NnrpLocalError`, and nothing has happened.
    """

    __slots__ = ("_handlers",)

    def _prepare(self) -> None:
        super()._prepare()
        self._handlers = _DISPATCH[self.side]

    def receive_raw(self, raw: RawPacket, now: float) -> Event:
        """Decode one packet as its session was granted, and take it in. Raises NnrpError as ``receive`` does."""
        granted = NO_FEATURES
        if self._extended:
            start = raw.start + _SESSION_ID
            granted = self.granted(int.from_bytes(raw.buffer[start : start + 4], "little"))
        try:
            packet = raw.decode(strict=self.strict, granted=granted)
        except NnrpError as error:
            self._last_received = now
            self.receive_violation(error, raw.header)
            raise
        return self.receive(packet, now)

    def receive(self, packet: Packet, now: float) -> Event:
        """Take in one decoded packet and say what it means. Raises NnrpError for what is not legal now."""
        kind = packet.header.msg_type
        self._last_received = now
        self._peer_sent |= 1 << kind
        try:
            if self.state is _CLOSED:
                raise self._bad_state(packet.header)
            return self._handlers[kind](self, packet, now)
        except NnrpError as error:
            self._refuse(error, packet.header)
            raise

    def handle_deadline(self, now: float) -> list[SessionCloseProgress | RetryDue]:
        """Time has come to ``now``: end what is over, cut drains, keep alive, let go what was put off. The events are to be
        acted on."""
        if self.closed:
            return []
        if self.state in _BEFORE_OPEN:
            if now >= self._created_at + self.limits.handshake_timeout:
                self._end(EndCause.HANDSHAKE_TIMEOUT)
            return []
        if now >= self._last_received + self.limits.idle_timeout:
            if not self._waits_in_silence:
                self._end(EndCause.IDLE_TIMEOUT)
                return []
            self._last_received = now
        events: list[SessionCloseProgress | RetryDue] = [*self._close_deadlines(now), *self._retries_due(now)]
        for store in list(self._stores.values()):
            store.cache.handle_deadline(now)
        if self.state is _DRAINING and now >= self._drain_deadline:
            events += self._cut_drain(now)
        elif now >= self._keepalive_at():
            self._last_sent = now
            self._outbox.append(Outgoing(Ping()))
            self._note_ping(now)
        return events

    def next_deadline(self) -> float:
        """The monotonic instant at which ``handle_deadline`` is wanted, ``math.inf`` for never. It moves with every
        packet, always later by itself: a timer that comes early asks again."""
        if self.state is _CLOSED:
            return math.inf
        if self.state in _BEFORE_OPEN:
            return self._created_at + self.limits.handshake_timeout
        limits = self.limits
        soonest = self._last_received + limits.idle_timeout
        if self._last_sent + limits.keepalive_interval < soonest:
            soonest = min(soonest, self._keepalive_at())
        if self.state is _DRAINING:
            soonest = min(soonest, self._drain_deadline)
        if self._closing:
            soonest = min(soonest, self._next_close_deadline())
        if self._put_offs:
            soonest = min(soonest, *[each.retry_at or 0.0 for each in self._put_offs])
        if self._stores:
            soonest = min(soonest, *[store.cache.next_deadline() for store in self._stores.values()])
        return soonest

    def is_steady(self) -> bool:
        """Whether submits and results leave ``next_deadline`` where it is, or move it away: nothing but silence is timed. After
        any other packet, and when this is false, a driver asks for it."""
        return self.state is _OPEN and not (self._closing or self._put_offs or self._stores)

    def _keepalive_at(self) -> float:
        """When to send a PING: as a client after silence of our own, as a server after the peer's, to hear that it is there.
        A server asks only who has opened a session after a hello: the other dialects do not answer (2.6, 13.8)."""
        if not self.may_send(_PING):
            return math.inf
        if self.side is _CLIENT:
            return self._last_sent + self.limits.keepalive_interval
        if self.dialect is not Dialect.NATIVE or not self.sessions:
            return math.inf
        return max(self._last_sent, self._last_received) + self.limits.keepalive_interval

    @property
    def _waits_in_silence(self) -> bool:
        """Whether the silent peer waits for a result of ours, and is one that could not be asked whether it is there."""
        asked = self.side is _CLIENT or self.dialect is Dialect.NATIVE
        return not asked and self.window.in_flight > 0

    def note_sent(self, now: float) -> None:
        """Something was written: keepalive counts from here."""
        self._last_sent = now


def _handlers_of(side: Side) -> tuple[Handler, ...]:
    """Who takes what, by message number: messages of the other direction are refused in every state."""
    incoming = Direction.TO_SERVER if side is Side.SERVER else Direction.TO_CLIENT
    taken: list[Handler] = [_wrong_direction] * (max(_HANDLERS) + 1)
    for kind, name in _HANDLERS.items():
        if CATALOGUE[kind].direction in (incoming, Direction.BOTH):
            taken[kind] = getattr(Connection, name)
    return tuple(taken)


_DISPATCH: dict[Side, tuple[Handler, ...]] = {side: _handlers_of(side) for side in Side}
