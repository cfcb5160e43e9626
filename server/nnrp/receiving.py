"""Reading from a transport what has arrived."""

from __future__ import annotations

import os
from typing import Final

import trio

__all__ = ["receive_some"]

_READ: Final = 16_384
"""Some seventy small packets. A larger buffer costs more to get than it saves."""
_BULK: Final = 65_536
"""For the rest of a large packet."""


async def receive_some(stream: trio.abc.ReceiveStream, *, burst: bool, bulk: bool) -> bytes | bytearray:
    """As the stream's own ``receive_some``. ``burst``: more is probably there already. Where it is not, because the peer has
    sent one packet and waits for the answer, a plain socket is not asked before it is readable: that spares a system call
    that fails, and most of what goes with it. ``bulk``: it is the rest of a packet.
    """
    size = _BULK if bulk else _READ
    if not isinstance(stream, trio.SocketStream):
        return await stream.receive_some(size)
    try:
        if burst:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(stream.socket)
        return os.read(stream.socket.fileno(), size)
    except BlockingIOError:
        return await stream.receive_some(size)  # nothing is there after all
    except (OSError, ValueError) as problem:
        # The socket tells a failure once: whoever asks again is told that this is the end.
        if stream.socket.fileno() < 0:
            raise trio.ClosedResourceError from problem
        raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem
