"""Whether a peer that says goodbye can have read everything it was sent."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["everything_arrived"]

_CLOSED: Final = 7
"""TCP_CLOSE among Linux' states of a connection: here, that a reset has come behind the goodbye."""


def _asking() -> Callable[[trio.socket.SocketType], bool] | None:
    try:
        from fcntl import ioctl
        from socket import IPPROTO_TCP, TCP_INFO
        from termios import TIOCOUTQ
    except ImportError:
        return None

    def ask(socket: trio.socket.SocketType) -> bool:
        (unacknowledged,) = struct.unpack("i", ioctl(socket.fileno(), TIOCOUTQ, bytes(4)))
        state = socket.getsockopt(IPPROTO_TCP, TCP_INFO, 1)[0]
        return unacknowledged == 0 and state != _CLOSED

    return ask


_ask: Final = _asking()


def everything_arrived(socket: trio.socket.SocketType) -> bool:
    """To be asked when the peer's end has been read. False when something was still on its way: nobody will read it.

    A peer that closes before it has read what its system has ends with a reset, so what was acknowledged has been read.
    Where the system cannot be asked (only Linux can), a goodbye is believed.
    """
    if _ask is None:
        return True
    try:
        return _ask(socket)
    except OSError:
        return False
