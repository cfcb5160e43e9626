"""SESSION_MIGRATE (nnrp-wire 13.9). A session stays where it is; moving it to another connection is done by resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.nnrp.machines.events import MigrateReceived
from protocol.nnrp.machines.migration import MigrationRefusal, decide_migration
from protocol.nnrp.messages import SessionMigrate

if TYPE_CHECKING:
    from server.nnrp.driver import Link

__all__ = ["answer_migrate"]

_GRACE_MS: Final = 500


def answer_migrate(link: Link, event: MigrateReceived, now: float) -> None:
    """Accept where the session is on this connection; refuse a session this connection does not have."""
    request = event.packet.metadata
    assert isinstance(request, SessionMigrate)
    session = event.session
    highest = 0 if session is None else session.operations.highest_frame
    answer = decide_migration(
        request.last_result_frame_id,
        refusal=MigrationRefusal.UNKNOWN_SESSION if session is None else MigrationRefusal.ACCEPTED,
        highest_frame_id=highest,
        grace_window_ms=_GRACE_MS,
    )
    link.machine.answer_migrate(event.packet, answer, now, server_migrate_ts_us=int(now * 1_000_000))
