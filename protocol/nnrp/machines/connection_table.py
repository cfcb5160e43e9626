"""The life of one connection (nnrp-wire 13.1) and what its first packet tells about the peer (2.6), as tables."""

from __future__ import annotations

from enum import IntEnum

from protocol.nnrp.enums import ConnectionState, MessageType
from protocol.transitions import Table

__all__ = [
    "CONNECTION",
    "DIALECT",
    "INPUTS",
    "ConnectionEffect",
    "ConnectionInput",
    "Dialect",
    "DialectEffect",
    "DialectInput",
]


class ConnectionInput(IntEnum):
    """What can happen to a connection; sent or received makes no difference."""

    HELLO = 0
    HELLO_ACK = 1
    HELLO_REFUSED = 2
    SESSION_OPEN = 3
    MIGRATE = 4
    PROBE = 5
    """TRANSPORT_PROBE and its ACK."""
    PING = 6
    """PING and PONG."""
    WORK = 7
    """New work in a session that is there: FRAME_SUBMIT, SESSION_PATCH."""
    TRAFFIC = 8
    """Every other message of a session."""
    FAULT = 9
    """An ERROR that is not fatal."""
    FATAL = 10
    """An ERROR that is fatal for the connection."""
    CLOSE = 11
    DRAINED = 12
    """Nothing is in flight any more, or the time for that is over."""
    LOST = 13
    """End of the stream, transport loss, or bytes that cannot be framed."""


class ConnectionEffect(IntEnum):
    NOTHING = 0
    NEGOTIATE = 1
    START = 2
    START_WITHOUT_HELLO = 3
    PASS = 4
    DRAIN = 5
    END = 6


_S, _I, _E = ConnectionState, ConnectionInput, ConnectionEffect
_QUIET = (_I.PROBE, _I.PING)

CONNECTION: Table[ConnectionState, ConnectionInput, ConnectionEffect] = Table(
    "connection",
    ConnectionState,
    ConnectionInput,
    {
        (_S.INIT, _I.HELLO): (_S.NEGOTIATING, _E.NEGOTIATE),
        (_S.INIT, _I.SESSION_OPEN): (_S.OPEN, _E.START_WITHOUT_HELLO),
        (_S.INIT, _I.MIGRATE): (_S.OPEN, _E.START_WITHOUT_HELLO),
        (_S.INIT, _I.FATAL): (_S.CLOSED, _E.END),
        (_S.NEGOTIATING, _I.HELLO_ACK): (_S.OPEN, _E.START),
        (_S.NEGOTIATING, _I.HELLO_REFUSED): (_S.CLOSED, _E.END),
        (_S.NEGOTIATING, _I.FAULT): (_S.NEGOTIATING, _E.PASS),
        (_S.NEGOTIATING, _I.FATAL): (_S.CLOSED, _E.END),
        (_S.NEGOTIATING, _I.CLOSE): (_S.CLOSED, _E.END),
        (_S.OPEN, _I.CLOSE): (_S.DRAINING, _E.DRAIN),
        (_S.OPEN, _I.FATAL): (_S.DRAINING, _E.DRAIN),
        (_S.DRAINING, _I.TRAFFIC): (_S.DRAINING, _E.PASS),
        (_S.DRAINING, _I.FAULT): (_S.DRAINING, _E.PASS),
        (_S.DRAINING, _I.FATAL): (_S.DRAINING, _E.NOTHING),
        (_S.DRAINING, _I.DRAINED): (_S.CLOSED, _E.END),
        (_S.CLOSED, _I.LOST): (_S.CLOSED, _E.NOTHING),
        (_S.CLOSED, _I.DRAINED): (_S.CLOSED, _E.NOTHING),
    }
    | {(_S.OPEN, given): (_S.OPEN, _E.PASS) for given in (_I.SESSION_OPEN, _I.MIGRATE, _I.WORK, _I.TRAFFIC, _I.FAULT)}
    | {(state, given): (state, _E.PASS) for state in _S if state is not _S.CLOSED for given in _QUIET}
    | {(state, _I.LOST): (_S.CLOSED, _E.END) for state in _S if state is not _S.CLOSED},
    initial=frozenset({_S.INIT}),
    terminal=frozenset({_S.CLOSED}),
)

_M = MessageType
#: CLOSE, ERROR, CLIENT_HELLO's answer and SESSION_OPEN's need more than the type; their handlers name the input.
INPUTS: dict[MessageType, ConnectionInput] = {
    _M.CLIENT_HELLO: _I.HELLO,
    _M.SERVER_HELLO_ACK: _I.HELLO_ACK,
    _M.SESSION_OPEN: _I.SESSION_OPEN,
    _M.SESSION_MIGRATE: _I.MIGRATE,
    _M.SESSION_MIGRATE_ACK: _I.TRAFFIC,
    _M.TRANSPORT_PROBE: _I.PROBE,
    _M.TRANSPORT_PROBE_ACK: _I.PROBE,
    _M.PING: _I.PING,
    _M.PONG: _I.PING,
    _M.FRAME_SUBMIT: _I.WORK,
    _M.SESSION_PATCH: _I.WORK,
    _M.CLOSE: _I.CLOSE,
    _M.ERROR: _I.FAULT,
} | dict.fromkeys(
    (
        _M.SESSION_PATCH_ACK,
        _M.SESSION_OPEN_ACK,
        _M.SESSION_CLOSE,
        _M.SESSION_CLOSE_ACK,
        _M.FRAME_CANCEL,
        _M.RESULT_PUSH,
        _M.RESULT_DROP,
        _M.RESULT_HINT,
        _M.CACHE_PUT,
        _M.CACHE_ACK,
        _M.CACHE_INVALIDATE,
        _M.FLOW_UPDATE,
    ),
    _I.TRAFFIC,
)


class Dialect(IntEnum):
    """The shape of the peer. A client that is told whom it dials starts in it; a server finds out."""

    UNKNOWN = 0
    NATIVE = 1
    """Full preview3: hello, then sessions."""
    IMPLICIT = 2
    """nnrp-py: hello, then submits in the session named by the hello."""
    BARE = 3
    """nnrp-rs: no hello, one session, reads only the message it waits for."""


class DialectInput(IntEnum):
    HELLO = 0
    SESSION_OPEN = 1
    MIGRATE = 2
    PROBE = 3
    PING = 4
    IMPLICIT_SUBMIT = 5
    """A submit in the session that the hello reserved, which was never opened."""


class DialectEffect(IntEnum):
    WAIT = 0
    LEARNED = 1
    KEEP = 2


_D, _F, _L = Dialect, DialectInput, DialectEffect
DIALECT: Table[Dialect, DialectInput, DialectEffect] = Table(
    "dialect",
    Dialect,
    DialectInput,
    {
        (_D.UNKNOWN, _F.HELLO): (_D.NATIVE, _L.LEARNED),
        (_D.UNKNOWN, _F.SESSION_OPEN): (_D.BARE, _L.LEARNED),
        (_D.UNKNOWN, _F.MIGRATE): (_D.IMPLICIT, _L.LEARNED),
        (_D.UNKNOWN, _F.PROBE): (_D.UNKNOWN, _L.WAIT),
        (_D.UNKNOWN, _F.PING): (_D.UNKNOWN, _L.WAIT),
        (_D.NATIVE, _F.IMPLICIT_SUBMIT): (_D.IMPLICIT, _L.LEARNED),
    }
    | {
        (state, given): (state, _L.KEEP)
        for state in (_D.NATIVE, _D.IMPLICIT, _D.BARE)
        for given in _F
        if (state, given) != (_D.NATIVE, _F.IMPLICIT_SUBMIT) and (state, given) != (_D.BARE, _F.IMPLICIT_SUBMIT)
    },
    initial=frozenset({_D.UNKNOWN}),
    terminal=frozenset({_D.IMPLICIT, _D.BARE}),
)
