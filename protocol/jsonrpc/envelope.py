"""Which kind of JSON-RPC message a text is (ACP-050), without reading its parameters."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from protocol.jsonrpc.lenient import clean_json

__all__ = [
    "Id",
    "Invalid",
    "Message",
    "Notification",
    "Problem",
    "Request",
    "Response",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
    "parse_message",
]

Id: TypeAlias = str | int | float
"""An id keeps its type: 1 and "1" are different calls (C-049)."""


class Problem(enum.Enum):
    """Why a text is no message. The transports answer each differently (ACP-041, ACP-043, ACP-044, ACP-236)."""

    NOT_JSON = "not JSON"
    BATCH = "a batch"
    MALFORMED = "not a JSON-RPC message"


@dataclass(frozen=True, slots=True)
class Request:
    """A call that expects a response with the same id. ``params`` is undecoded JSON, or ``None`` if absent."""

    id: Id
    method: str
    params: Raw | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """A call without an id: nothing is ever sent back."""

    method: str
    params: Raw | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a call: exactly one of ``result`` and ``error``. The id ``None`` answers an unreadable call."""

    id: Id | None
    result: Raw | None = None
    error: Raw | None = None


@dataclass(frozen=True, slots=True)
class Invalid:
    """No message; ``detail`` is for logs."""

    problem: Problem
    detail: str = ""


Message: TypeAlias = Request | Notification | Response | Invalid


class _Envelope(msgspec.Struct):
    # Every field raw: a wrong type must be judged here, after the whole text proved to be JSON.
    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ID = msgspec.json.Decoder(Id | None)
_TEXT = msgspec.json.Decoder(str)
_ANY_JSON = msgspec.json.Decoder(Raw)


def parse_message(data: bytes | str) -> Message:
    """Classify one message. Never raises: whatever the peer sent, the answer is a value.

    ``params``, ``result`` and ``error`` stay raw; they hold valid UTF-8 without lone surrogates and may be forwarded
    as they are. Duplicate keys keep the last value.
    """
    raw = clean_json(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    try:
        envelope = _ENVELOPE.decode(raw)
    except msgspec.ValidationError:
        return _judge_other(raw)
    except msgspec.DecodeError as exc:
        return Invalid(Problem.NOT_JSON, str(exc))
    except RecursionError:
        return Invalid(Problem.NOT_JSON, "nested too deeply")
    return _classify(envelope)


def encode_request(id: Id, method: str, params: object = None) -> bytes:
    """A request as compact JSON; ``params`` of ``None`` is left out."""
    return _encode({"jsonrpc": "2.0", "id": id, "method": method} | _optional_params(params))


def encode_notification(method: str, params: object = None) -> bytes:
    """A notification as compact JSON; ``params`` of ``None`` is left out."""
    return _encode({"jsonrpc": "2.0", "method": method} | _optional_params(params))


def encode_result(id: Id | None, result: object) -> bytes:
    """A successful response as compact JSON; ``result`` may be ``msgspec.Raw``."""
    return _encode({"jsonrpc": "2.0", "id": id, "result": result})


def encode_error(id: Id | None, code: int, message: str, data: object = None) -> bytes:
    """A failed response as compact JSON; ``data`` of ``None`` is left out."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": id, "error": error})


def _encode(message: dict[str, Any]) -> bytes:
    return msgspec.json.encode(message)


def _optional_params(params: object) -> dict[str, object]:
    return {} if params is None else {"params": params}


def _judge_other(raw: bytes) -> Invalid:
    # msgspec stops at the first wrong type, so "[1" or "5 x" come here too: ask whether the rest is JSON at all.
    try:
        _ANY_JSON.decode(raw)
    except msgspec.DecodeError as exc:
        return Invalid(Problem.NOT_JSON, str(exc))
    except RecursionError:
        return Invalid(Problem.NOT_JSON, "nested too deeply")
    if raw.lstrip().startswith(b"["):
        return Invalid(Problem.BATCH)
    return Invalid(Problem.MALFORMED, "not an object")


def _classify(envelope: _Envelope) -> Message:
    if envelope.jsonrpc is UNSET or _text(envelope.jsonrpc) != "2.0":
        return Invalid(Problem.MALFORMED, 'jsonrpc is not "2.0"')
    try:
        id = None if envelope.id is UNSET else _ID.decode(envelope.id)
    except msgspec.DecodeError:
        return Invalid(Problem.MALFORMED, "id is neither a string nor a number")
    if envelope.method is UNSET:
        return _classify_response(envelope, id)
    return _classify_call(envelope, id)


def _classify_call(envelope: _Envelope, id: Id | None) -> Message:
    method = _text(envelope.method)
    if method is None:
        return Invalid(Problem.MALFORMED, "method is not a string")
    params = None if envelope.params is UNSET else envelope.params
    if envelope.id is UNSET:
        return Notification(method, params)
    if id is None:
        return Invalid(Problem.MALFORMED, "a request must not have the id null")
    return Request(id, method, params)


def _classify_response(envelope: _Envelope, id: Id | None) -> Message:
    if envelope.id is UNSET:
        return Invalid(Problem.MALFORMED, "neither method nor id")
    if (envelope.result is UNSET) == (envelope.error is UNSET):
        return Invalid(Problem.MALFORMED, "a response has exactly one of result and error")
    result = None if envelope.result is UNSET else envelope.result
    error = None if envelope.error is UNSET else envelope.error
    return Response(id, result, error)


def _text(raw: Raw | UnsetType) -> str | None:
    if raw is UNSET:
        return None
    try:
        return _TEXT.decode(raw)
    except msgspec.DecodeError:
        return None
