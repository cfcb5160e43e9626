"""``hypercorn server.app`` and ``hypercorn -k trio server.app``: the application for the hypercorn command.

hypercorn's default worker is asyncio, where a Trio application cannot run. Loaded by one of its asyncio workers, this
module hands that worker's configuration, sockets and shutdown event to the Trio worker and ends when that returns: same
flags, same sockets, native speed. Whatever does not look as expected ends in a start-up failure with a sentence.
"""

from __future__ import annotations

from server.application import Application
from server.guard import install
from server.handover import find_worker, hand_over
from server.memory import give_back_large_blocks
from server.telemetry import set_up_logging

__all__ = ["app"]

_worker = find_worker()
if _worker is not None:
    set_up_logging()
    give_back_large_blocks()

install()
app = Application(
    # The hypercorn command is a start of ours: its log is our log.
    set_up_logs=_worker is not None,
    # Loaded by something that cannot be asked where it listens: assume that others can reach it.
    loopback=_worker.loopback if _worker is not None else False,
    workers=_worker.workers if _worker is not None else 1,
)

if _worker is not None and _worker.foreign:
    hand_over(_worker)
