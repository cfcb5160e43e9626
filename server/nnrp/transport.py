"""What the driver asks of a transport that is not a plain byte stream."""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

import trio

__all__ = ["STRANGER_BYTES", "PacketTransport"]

STRANGER_BYTES: Final = 1024 * 1024
"""What is gathered of a peer that has not shown who it is, by its hello or its session. Of what may come before that, a probe is
the largest: about 32 KiB (nnrp-wire 2.7)."""


class PacketTransport(trio.abc.Stream):
    """A transport that carries whole packets and looks like a stream to the driver.

    ``receive_some`` returns whole packets, in one or several per call, whatever its argument says; b"" at the end. Beside
    the stream's own errors it raises ``NnrpError`` where the peer's framing is wrong: the driver answers that with an ERROR
    and ends the connection. ``send_all`` is given packets cut anywhere; it waits while the peer takes nothing.
    """

    @abstractmethod
    async def part(self, *, violated: bool) -> None:
        """Say goodbye after everything was sent: let the peer take in what it was told. ``violated``: because the peer
        broke a rule. The driver bounds the time."""

    def trust(self) -> None:  # most gather nothing before the peer has shown who it is
        """The peer has shown who it is: no longer hold it to `STRANGER_BYTES`."""

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
