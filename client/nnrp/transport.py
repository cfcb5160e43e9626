"""What a link asks of a transport that is not a plain byte stream."""

from __future__ import annotations

from abc import abstractmethod

import trio

__all__ = ["PacketTransport"]


class PacketTransport(trio.abc.Stream):
    """A transport that carries whole packets and looks like a stream to the link.

    ``receive_some`` returns whole packets, one or several, whatever its argument says; b"" at the end. Beside the stream's
    own errors it raises ``NnrpError`` where the server's framing is wrong.
    """

    @property
    def ordered(self) -> bool:
        """Whether packets arrive in the order they are sent."""
        return True

    @abstractmethod
    async def part(self) -> None:
        """Say goodbye after everything was sent. The link bounds the time."""

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
