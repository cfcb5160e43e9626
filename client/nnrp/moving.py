"""Moving a connection's sessions to another transport while they are in use (nnrp-wire 13.9)."""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import urlsplit

import trio

from client.nnrp.errors import NnrpClientError, NnrpConnectionLost, NnrpRefused
from client.nnrp.link import Link
from client.nnrp.openings import Openings
from client.nnrp.session import NnrpSession
from protocol.nnrp.enums import TransportId
from protocol.nnrp.machines.events import MigrateAnswered
from protocol.nnrp.machines.migration import MigrationEffect
from protocol.nnrp.messages import SessionMigrate, SessionMigrateAck

__all__ = ["Mover"]

logger = logging.getLogger("moorline.client")

_TRANSPORTS: Final = {
    "tcp": TransportId.TCP,
    "nnrp": TransportId.TCP,
    "tls": TransportId.TCP,
    "quic": TransportId.QUIC,
}
"""WebSocket has no number: a session moves there, and from there, by resume."""


class Mover:
    """One move. The new transport is there, and greeted, before the old one is left.

    A session that can be resumed is resumed there, from the last event seen on: what the old transport still brings is not
    looked at, because it comes again. Any other is moved by SESSION_MIGRATE, for which it must be at rest: nothing of it
    comes again.
    """

    def __init__(self, openings: Openings, sessions: dict[int, NnrpSession], old_url: str, new_url: str) -> None:
        self._openings = openings
        self._sessions = sessions
        self._old = _TRANSPORTS.get(urlsplit(old_url).scheme, TransportId.UNSPECIFIED)
        self._new = _TRANSPORTS.get(urlsplit(new_url).scheme, TransportId.UNSPECIFIED)
        self._resumed: list[NnrpSession] = []
        self._migrated: dict[int, NnrpSession] = {}
        self._changed = trio.Event()

    def check(self) -> None:
        """Take the sessions that there are now. Raises `NnrpClientError` where one could neither be resumed nor migrated."""
        self._resumed = [each for each in self._sessions.values() if each.resumable]
        self._migrated = {each.session_id: each for each in self._sessions.values() if not each.resumable}
        if not self._migrated:
            return
        if TransportId.UNSPECIFIED in (self._old, self._new) or self._old is self._new:
            raise NnrpClientError("a session that cannot be resumed moves between TCP and QUIC only")
        if any(each.in_flight for each in self._migrated.values()):
            raise NnrpClientError("a session that cannot be resumed must be at rest to be moved")

    @property
    def migrating(self) -> bool:
        """Whether a SESSION_MIGRATE is not answered. Once the move is given up, nobody takes the answer."""
        return bool(self._migrated)

    def begin(self, link: Link) -> None:
        """Ask for every session on the new, greeted connection."""
        for session in self._resumed:
            self._openings.resume(link, session)
        now_us = int(trio.current_time() * 1_000_000)
        for session_id, session in self._migrated.items():
            logger.debug("nnrp_session_migrate session=%d client_migrate_ts_us=%d", session_id, now_us)
            link.machine.migrate_session(
                session_id, SessionMigrate(self._old, self._new, session.machine.next_frame_id - 1, now_us)
            )
        link.flush()

    def answered(self, link: Link, event: MigrateAnswered) -> None:
        session = self._migrated.pop(event.packet.header.session_id, None)
        if session is None:
            return
        if event.effect is MigrationEffect.REBIND:
            answer = event.packet.metadata
            assert isinstance(answer, SessionMigrateAck)
            machine = link.machine.install(session.session_id, session.machine.terms)
            machine.resume_frames_at(answer.resume_from_frame_id)
            machine.attachment = session
            session.attach(machine, b"")
        else:
            session.fail(NnrpRefused("the server refused to move the session"))
        self.note()

    def note(self) -> None:
        """Something has changed: a session has come back, or the connection is gone."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_moved(self, link: Link) -> None:
        """Until every session is on the new connection, or over. Raises `NnrpConnectionLost` when that is gone meanwhile:
        then it is made again as after any loss."""
        while self._migrated or any(not each.attached and not each.over for each in self._resumed):
            if link.machine.closed:
                raise NnrpConnectionLost("the new transport was lost while sessions moved to it")
            await self._changed.wait()
