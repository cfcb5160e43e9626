"""Votes on permission requests (rest.md section 7)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from quart import Blueprint, Response, request

from server.ground import Ground
from server.routes.body import json_response, read_json_object
from server.routes.rest.asking import client_header, session_of
from server.routes.rest.errors import BAD_FIELD, PERMISSION_NOT_PENDING, Refused
from sessions import PermissionOutcome, Session, Voter, VoteResult

__all__ = ["parse_outcome", "register", "voter_of_request"]

_SHAPE = '`outcome` must be `{ outcome: "cancelled" }` or `{ outcome: "selected", optionId: string }`'


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.post("/session/<session_id>/permission/<request_id>")
    async def vote_in_session(session_id: str, request_id: str) -> Response:
        """Vote on a permission request of this session (REST-100 to REST-102).

        A request of another session is as unknown as one that never was (C-038).
        """
        body = await read_json_object()
        client_id = client_header()
        outcome = parse_outcome(body)
        session = session_of(ground, session_id, client_id)
        if _vote(session, request_id, outcome, client_id):
            return json_response({})
        raise Refused(
            PERMISSION_NOT_PENDING,
            "No pending permission request for session",
            sessionId=session.id,
            requestId=request_id,
            **_recorded(session, request_id),
        )

    @routes.post("/permission/<request_id>")
    async def vote(request_id: str) -> Response:
        """Vote on a permission request; its session is found by it (REST-103)."""
        body = await read_json_object()
        client_id = client_header()
        outcome = parse_outcome(body)
        session = _session_with(ground, request_id)
        recorded: Mapping[str, Any] = {}
        if session is not None:
            session.check_client(client_id)
            if _vote(session, request_id, outcome, client_id):
                return json_response({})
            recorded = _recorded(session, request_id)
        raise Refused(PERMISSION_NOT_PENDING, "No pending permission request", requestId=request_id, **recorded)


def parse_outcome(body: Mapping[str, Any]) -> PermissionOutcome:
    """The vote in a body (REST-100). Raises `Refused`."""
    outcome = body.get("outcome")
    answers = body.get("answers")
    meta = body.get("_meta")
    if answers is not None and not _is_texts(answers):
        raise Refused(BAD_FIELD, "`answers` must be an object of strings when provided")
    if isinstance(outcome, dict):
        if outcome.get("outcome") == "cancelled":
            return PermissionOutcome(None, answers, meta if isinstance(meta, dict) else None)
        option_id = outcome.get("optionId")
        if outcome.get("outcome") == "selected" and isinstance(option_id, str):
            return PermissionOutcome(option_id, answers, meta if isinstance(meta, dict) else None)
    raise Refused(BAD_FIELD, _SHAPE)


def voter_of_request(client_id: str | None) -> Voter:
    """The caller of the current request. Whether it is local is the socket's word (REST-104)."""
    client: Any = request.scope.get("client")
    host = client[0] if client else None
    return Voter(client_id, local=host is not None and _is_loopback(host), key=("address", host))


def _vote(session: Session, request_id: str, outcome: PermissionOutcome, client_id: str | None) -> bool:
    """True when the vote counted, also under a quorum that is not reached yet (REST-101)."""
    result = session.permissions.vote(request_id, outcome, voter_of_request(client_id))
    return result in (VoteResult.RESOLVED, VoteResult.RECORDED)


def _recorded(session: Session, request_id: str) -> dict[str, Any]:
    """A late voter is told what was decided; the agent hears nothing of it."""
    outcome = session.permissions.outcome_of(request_id)
    return {} if outcome is None else {"outcome": outcome.as_json()}


def _session_with(ground: Ground, request_id: str) -> Session | None:
    sessions: list[Session] = ground.engine.sessions
    return next((each for each in sessions if each.live and each.permissions.knows(request_id)), None)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
