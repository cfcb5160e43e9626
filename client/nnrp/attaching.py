"""From a session of REST or /acp to NNRP: attach with the token that the server gives out for it."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote

import attrs

from client.daemon import DaemonClient
from client.errors import DaemonProtocolError
from client.nnrp.connection import NnrpConnection
from client.nnrp.session import NnrpSession

__all__ = ["NnrpTicket", "attach_session", "nnrp_ticket"]


@attrs.frozen(slots=True)
class NnrpTicket:
    """The answer of ``POST /session/:id/nnrp-token``. ``token`` is good for one attach within ``expires_in`` seconds."""

    token: bytes = attrs.field(repr=False)
    session_id: int
    profile_id: int
    schema: tuple[int, int]
    expires_in: float

    @classmethod
    def of(cls, body: Any) -> NnrpTicket:
        """From the decoded answer. Raises `DaemonProtocolError` where it is not one."""
        try:
            return cls(
                base64.urlsafe_b64decode(body["token"]),
                int(body["nnrpSessionId"]),
                int(body["profileId"]),
                (int(body["schemaId"]), int(body["schemaVersion"])),
                int(body["expiresInMs"]) / 1000,
            )
        except (KeyError, TypeError, ValueError, binascii.Error) as problem:
            raise DaemonProtocolError("the answer is no NNRP token") from problem


async def nnrp_ticket(daemon: DaemonClient, session_id: str) -> NnrpTicket:
    """Ask the daemon for a token. Raises `DaemonHttpError` (404 where the session, or NNRP, is not there)."""
    answer = await daemon.rest("POST", f"/session/{quote(session_id, safe='')}/nnrp-token", {})
    return NnrpTicket.of(answer.json())


async def attach_session(
    connection: NnrpConnection, ticket: NnrpTicket, *, last_event_id: int = 0, max_in_flight: int = 32
) -> NnrpSession:
    """The session on this connection: what others do in it comes by `NnrpSession.background`, own submits by their own
    results. ``last_event_id``: the cursor of another wire to go on from; 0 begins with what happens now.

    Raises `NnrpRefused` when the token is used, expired or of somebody else, `NnrpConnectionLost`.
    """
    return await connection.open_session(
        profile_id=ticket.profile_id,
        schema=ticket.schema,
        resumable=True,
        max_in_flight=max_in_flight,
        session_id=ticket.session_id,
        token=ticket.token,
        last_event_id=last_event_id,
    )
