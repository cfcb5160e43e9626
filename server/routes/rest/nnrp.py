"""From REST to NNRP: the token that attaches a session there (issue 5, One session, two wires)."""

from __future__ import annotations

import base64

from quart import Blueprint, Response

from server.ground import Ground
from server.nnrp.ticket import issue_ticket
from server.routes.body import json_response, read_json_object
from server.routes.rest.asking import client_header, session_of
from server.routes.rest.errors import NOT_SUPPORTED, Refused

__all__ = ["register"]


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.post("/session/<session_id>/nnrp-token")
    async def nnrp_token(session_id: str) -> Response:
        """A token for one NNRP client to attach to this session: SESSION_OPEN with ``nnrpSessionId`` and it."""
        await read_json_object()
        session = session_of(ground, session_id, client_header())
        if ground.nnrp is None:
            raise Refused(NOT_SUPPORTED, "This server does not serve NNRP")
        service, token = ground.nnrp.service, ground.config.token
        principal = service.policy.authenticate(b"" if token is None else token.encode("utf-8"))
        if principal is None:
            # Another check of tokens was put in by the program that embeds us: it has no principal for this one.
            raise Refused(NOT_SUPPORTED, "This server's NNRP does not know the token of its REST")
        ticket = issue_ticket(service, ground.engine, session, principal)
        return json_response(
            {
                "token": base64.urlsafe_b64encode(ticket.token).decode("ascii"),
                "nnrpSessionId": ticket.session_id,
                "profileId": ticket.profile_id,
                "schemaId": ticket.schema_id,
                "schemaVersion": ticket.schema_version,
                "expiresInMs": ticket.expires_in_ms,
            }
        )
