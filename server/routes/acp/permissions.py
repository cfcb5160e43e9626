"""Permission requests towards one connection, and the two ways to vote (acp-http 6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from protocol.acp import PERMISSION_ID_PREFIX
from protocol.jsonrpc import InvalidJson, Response, decode_json
from server.routes.acp.errors import RpcError, invalid_params
from server.telemetry import log
from sessions import PermissionOutcome, Voter, VoteResult
from sessions.errors import InvalidOption, VoteForbidden

if TYPE_CHECKING:
    from server.routes.acp.binding import Binding
    from server.routes.acp.connection import AcpConnection

__all__ = ["OUTCOME_RULE", "Question", "Questions", "parse_vote", "vote_by_request", "vote_by_response"]

OUTCOME_RULE: Final = '`outcome` must be {outcome:"selected",optionId:<non-empty string>} or {outcome:"cancelled"}'
KEPT: Final = 1024
"""Questions one connection remembers. Those beyond it are forgotten, the oldest first; a later replay asks anew."""


@attrs.frozen(slots=True)
class Question:
    """A permission request this connection has been shown and has not answered."""

    outbound_id: str
    session_id: str
    request_id: str


class Questions:
    """Outbound ids of one connection: one per (session, request) for as long as it is unanswered (ACP-171)."""

    def __init__(self, connection_id: str) -> None:
        self._prefix = f"{PERMISSION_ID_PREFIX}{connection_id}_"
        self._count = 0
        self._by_id: OrderedDict[str, Question] = OrderedDict()
        self._by_key: dict[tuple[str, str], Question] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def outbound_id(self, session_id: str, request_id: str) -> str:
        """The JSON-RPC id to ask with: the same one when the question is sent again."""
        question = self._by_key.get((session_id, request_id))
        if question is None:
            self._count += 1
            question = Question(f"{self._prefix}{self._count}", session_id, request_id)
            self._add(question)
        return question.outbound_id

    def take(self, outbound_id: object) -> Question | None:
        """The question an answer belongs to; it is answered then. None for anything we did not ask."""
        if not isinstance(outbound_id, str) or outbound_id not in self._by_id:
            return None
        question = self._by_id.pop(outbound_id)
        del self._by_key[question.session_id, question.request_id]
        return question

    def take_request(self, session_id: str, request_id: str) -> None:
        """The request was voted on by its own id: its question here is answered."""
        question = self._by_key.get((session_id, request_id))
        if question is not None:
            self.take(question.outbound_id)

    def forget_session(self, session_id: str) -> list[str]:
        """Forget a session's questions; returns their request ids."""
        gone = [each for each in self._by_id.values() if each.session_id == session_id]
        for each in gone:
            self.take(each.outbound_id)
        return [each.request_id for each in gone]

    def move(self, session_id: str, other: Questions) -> None:
        """Give a session's questions to another connection of the same client, with the ids it was shown."""
        for each in [each for each in self._by_id.values() if each.session_id == session_id]:
            self.take(each.outbound_id)
            other._add(each)

    def _add(self, question: Question) -> None:
        self._by_id[question.outbound_id] = question
        self._by_key[question.session_id, question.request_id] = question
        if len(self._by_id) > KEPT:
            self.take(next(iter(self._by_id)))


def parse_vote(value: Mapping[str, Any]) -> PermissionOutcome | None:
    """A vote from ``{outcome, answers?, _meta?}``; None when it is not one (ACP-174)."""
    outcome = value.get("outcome")
    if not isinstance(outcome, Mapping):
        return None
    answers, meta = value.get("answers"), value.get("_meta")
    if answers is not None and not (
        isinstance(answers, Mapping) and all(isinstance(each, str) for each in answers.values())
    ):
        return None
    if meta is not None and not isinstance(meta, Mapping):
        return None
    option: str | None = None
    if outcome.get("outcome") == "selected":
        option = outcome.get("optionId")
        if not isinstance(option, str) or not option:
            return None
    elif outcome.get("outcome") != "cancelled":
        return None
    return PermissionOutcome(option, answers, meta)


def vote_by_response(connection: AcpConnection, response: Response) -> None:
    """Vote 1: a response to the id we asked with. There is no answer to it, so what is wrong with it is logged."""
    question = connection.questions.take(response.id)
    if question is None:
        return
    binding = connection.bindings.get(question.session_id)
    if binding is None:
        return
    vote = PermissionOutcome() if response.error is not None else _vote_in(response.result)
    about = {"session_id": question.session_id, "request_id": question.request_id}
    if vote is None:
        log.warning("permission_vote_invalid", **about)
        vote = PermissionOutcome()
    try:
        _cast(binding, question.request_id, vote)
    except InvalidOption as problem:
        log.warning("permission_vote_invalid", option=problem.option_id, **about)
        _cast(binding, question.request_id, PermissionOutcome())
    except VoteForbidden as problem:
        log.warning("permission_vote_refused", reason=problem.reason, **about)


def vote_by_request(connection: AcpConnection, params: Mapping[str, Any]) -> dict[str, Any]:
    """Vote 2: ``session/permission`` (ACP-175). Raises `RpcError`."""
    request_id = params.get("requestId")
    if not isinstance(request_id, str) or not request_id:
        raise invalid_params("`requestId` is required", httpStatus=400)
    vote = parse_vote(params)
    if vote is None:
        raise invalid_params(OUTCOME_RULE, httpStatus=400)
    binding = _asked_in(connection, params.get("sessionId"), request_id)
    session_id = binding.session.id
    try:
        result = _cast(binding, request_id, vote)
    except InvalidOption as problem:
        raise invalid_params(
            str(problem), httpStatus=400, code="invalid_option_id", requestId=request_id, optionId=problem.option_id
        ) from None
    except VoteForbidden as problem:
        raise invalid_params(
            str(problem),
            httpStatus=403,
            code="permission_forbidden",
            requestId=request_id,
            sessionId=session_id,
            reason=problem.reason,
        ) from None
    if result is VoteResult.ALREADY_RESOLVED:
        raise invalid_params("Permission request is already resolved", httpStatus=409, requestId=request_id)
    if result is VoteResult.NOT_PENDING:
        raise _nothing_pending(request_id)
    connection.questions.take_request(session_id, request_id)
    return {}


def _asked_in(connection: AcpConnection, session_id: object, request_id: str) -> Binding:
    holders = [each for each in connection.bindings.values() if each.session.permissions.knows(request_id)]
    if session_id is None:
        if not holders:
            raise _nothing_pending(request_id)
        return holders[0]
    binding = connection.bindings.get(connection.canonical(session_id)) if isinstance(session_id, str) else None
    if binding is None:
        raise invalid_params("Session not owned by this connection", httpStatus=403)
    if binding in holders:
        return binding
    if holders:
        raise invalid_params("Permission request belongs to another session", httpStatus=409, requestId=request_id)
    raise _nothing_pending(request_id)


def _nothing_pending(request_id: str) -> RpcError:
    return invalid_params("No pending permission request", httpStatus=404, requestId=request_id)


def _vote_in(result: msgspec.Raw | None) -> PermissionOutcome | None:
    try:
        value = decode_json(result) if result is not None else None
    except InvalidJson:
        return None
    return parse_vote(value) if isinstance(value, Mapping) else None


def _cast(binding: Binding, request_id: str, vote: PermissionOutcome) -> VoteResult:
    connection = binding.connection
    voter = Voter(binding.client_id, connection.local, connection.id)
    return binding.session.permissions.vote(request_id, vote, voter)
