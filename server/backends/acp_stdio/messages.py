"""JSON-RPC 2.0 messages as they cross an agent's pipe: the envelope is parsed, everything in it stays JSON text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "METHOD_NOT_FOUND",
    "RESOURCE_NOT_FOUND",
    "Envelope",
    "RemoteError",
    "decode_envelope",
    "decode_json",
    "encode_json",
    "error_line",
    "notification_line",
    "request_line",
    "result_line",
]

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
"""ACP's own: agents map it to "no such file" (ENOENT)."""

_ABSENT: Final = Raw(b"")


class Envelope(msgspec.Struct, gc=False):
    """Any message from the agent. Absent members are empty; ``params`` is split one level deep, values untouched."""

    id: Raw = _ABSENT
    method: str | None = None
    """None also when it is null: some agents write every member of a message, those that it does not have as null."""
    params: dict[str, Raw] | None = None
    result: Raw = _ABSENT
    error: Raw = _ABSENT


class RemoteError(msgspec.Struct):
    """A JSON-RPC error object, as tolerant as agents are careless."""

    code: int | str | float | None = None
    message: Any = None
    data: Any = None

    def text(self) -> str:
        return self.message if isinstance(self.message, str) else "The agent answered with an error"


encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode
decode_envelope = msgspec.json.Decoder(Envelope).decode


class _Request(msgspec.Struct):
    id: int
    method: str
    params: Any
    jsonrpc: str = "2.0"


class _Notification(msgspec.Struct):
    method: str
    params: Any
    jsonrpc: str = "2.0"


class _Result(msgspec.Struct):
    id: Raw
    result: Any
    jsonrpc: str = "2.0"


class _Error(msgspec.Struct):
    id: Raw
    error: Mapping[str, Any]
    jsonrpc: str = "2.0"


def request_line(number: int, method: str, params: object) -> bytes:
    return encode_json(_Request(number, method, params)) + b"\n"


def notification_line(method: str, params: object) -> bytes:
    return encode_json(_Notification(method, params)) + b"\n"


def result_line(number: Raw, result: object) -> bytes:
    return encode_json(_Result(number, result)) + b"\n"


def error_line(number: Raw, code: int, message: str, data: object = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return encode_json(_Error(number, error)) + b"\n"
