"""Prompts: submit, cancel, poll, and the queue (rest.md section 5)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from quart import Blueprint, Response, request

from protocol.acp import IDEMPOTENCY_KEY_HEADER
from server.connection import on_request_end
from server.ground import Ground
from server.routes.body import json_response, no_content, read_json_object
from server.routes.rest.asking import client_header, known_session, session_of
from server.routes.rest.errors import BAD_FIELD, INVALID_DEADLINE, INVALID_IDEMPOTENCY_KEY, Refused
from sessions import Operation, OperationState, PromptRequest
from sessions.errors import PromptNotFound

__all__ = ["register"]

_FURTHEST_MS: Final = 2**53
_KEY = re.compile(r"[\x20-\x7e]{1,128}")
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_STATES: Final = {
    OperationState.ACCEPTED: "queued",
    OperationState.RUNNING: "running",
    OperationState.PARTIAL: "running",
    OperationState.WAITING_TOOL: "running",
    OperationState.COMPLETED: "completed",
    OperationState.FAILED: "failed",
    OperationState.CANCELLED: "cancelled",
    OperationState.SUPERSEDED: "cancelled",
}


def register(routes: Blueprint, ground: Ground) -> None:
    @routes.post("/session/<session_id>/prompt")
    async def submit(session_id: str) -> Response:
        """Accept a prompt: 202 with its id, or 503 when the queue is full (REST-060 to REST-066).

        The last await is the reading of the body: a caller that left before is never admitted, one that leaves afterwards
        changes nothing (REST-064).
        """
        body = await read_json_object()
        client_id = client_header()
        prompt = _prompt(body)
        deadline = _deadline(body)
        idempotency = _idempotency(body)
        session = session_of(ground, session_id, client_id)
        operation, head = session.submit_prompt(prompt, client_id=client_id, deadline=deadline, idempotency=idempotency)
        if not operation.settled and operation.told is None:
            scope: Any = request.scope
            on_request_end(scope, session.tell(operation))
        accepted = {"promptId": operation.id, "lastEventId": head, "eventEpoch": session.ring.epoch}
        return json_response(accepted, 202)

    @routes.post("/session/<session_id>/cancel")
    async def cancel(session_id: str) -> Response:
        """Cancel the running prompt, or with ``promptId`` that prompt and no other (REST-069, C-057)."""
        body = await read_json_object()
        client_id = client_header()
        prompt_id = body.get("promptId")
        if prompt_id is not None and not isinstance(prompt_id, str):
            # Taken for absent it would end whatever runs now.
            raise Refused(BAD_FIELD, "`promptId` must be a string when provided")
        session = session_of(ground, session_id, client_id)
        if prompt_id is not None:
            session.cancel_operation(session.prompt(prompt_id))
        else:
            session.cancel_prompt()
        return no_content()

    @routes.get("/session/<session_id>/prompts/<prompt_id>")
    async def outcome(session_id: str, prompt_id: str) -> Response:
        """What became of an accepted prompt; also after the session was closed, for as long as it is kept."""
        session = known_session(ground, session_id, client_header())
        return json_response(_outcome(session.prompt(prompt_id)))

    @routes.get("/session/<session_id>/pending-prompts")
    async def pending(session_id: str) -> Response:
        """Accepted, unsettled prompts in order (REST-068)."""
        session = session_of(ground, session_id, client_header())
        return json_response({"pendingPrompts": [_pending(each) for each in session.prompts.pending]})

    @routes.delete("/session/<session_id>/pending-prompts/<prompt_id>")
    async def remove(session_id: str, prompt_id: str) -> Response:
        """Take a waiting prompt out of the queue; false for one that runs, is over, or never was (REST-068)."""
        session = session_of(ground, session_id, client_header())
        try:
            removed = session.remove_prompt(prompt_id)
        except PromptNotFound:
            removed = False
        return json_response({"removed": removed})


def _prompt(body: Mapping[str, Any]) -> PromptRequest:
    blocks = body.get("prompt")
    if not isinstance(blocks, list) or not blocks:
        raise Refused(BAD_FIELD, "`prompt` is required and must be a non-empty array of content blocks")
    if not all(isinstance(block, dict) for block in blocks):
        raise Refused(BAD_FIELD, "each `prompt` element must be an object (content block)")
    meta = body.get("_meta")
    return PromptRequest(blocks, meta if isinstance(meta, dict) else None)


def _deadline(body: Mapping[str, Any]) -> float | None:
    """In seconds."""
    value = body.get("deadlineMs")
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise Refused(INVALID_DEADLINE, "`deadlineMs` must be a positive integer (milliseconds)")
    # JSON knows integers no float can hold; a deadline only shortens, so that one further off means the same.
    return min(value, _FURTHEST_MS) / 1000


def _idempotency(body: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """The key and a digest of what the body means: white space and the order of keys do not make another body."""
    keys = request.headers.getlist(IDEMPOTENCY_KEY_HEADER)
    if not keys:
        return None
    if len(keys) > 1 or _KEY.fullmatch(keys[0]) is None:
        raise Refused(
            INVALID_IDEMPOTENCY_KEY,
            f"`{IDEMPOTENCY_KEY_HEADER}` must be given once, 1 to 128 printable ASCII characters",
        )
    return keys[0], hashlib.sha256(_SORTED.encode(body)).digest()


def _outcome(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {"promptId": operation.id, "state": _STATES[operation.state]}
    outcome = operation.outcome
    if outcome is None:
        return answer
    if outcome.stop_reason is not None:
        answer["stopReason"] = outcome.stop_reason
    if outcome.error is not None:
        error: dict[str, Any] = {"message": outcome.error.message}
        if outcome.error.code is not None:
            error["code"] = outcome.error.code
        if outcome.error.data is not None:
            error["data"] = outcome.error.data
        if outcome.error.error_kind is not None:
            error["errorKind"] = outcome.error.error_kind
        answer["error"] = error
    return answer


def _pending(operation: Operation) -> dict[str, Any]:
    prompt: PromptRequest = operation.request
    entry: dict[str, Any] = {
        "promptId": operation.id,
        "text": prompt.text(),
        "queuedAt": operation.accepted_at,
        "state": _STATES[operation.state],
    }
    if any(block.get("type") != "text" for block in prompt.blocks):
        entry["content"] = prompt.blocks
    if operation.client_id is not None:
        entry["originatorClientId"] = operation.client_id
    return entry
