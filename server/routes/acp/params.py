"""Reading parameters: each function returns a checked value or raises the error to answer with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from protocol.jsonrpc import Notification, Request
from server.routes.acp.errors import invalid_params

__all__ = ["caller_session_id", "meta", "optional_text", "params_of", "required_text", "workspace_path"]

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_SESSION_ID_KEY: Final = "qwen-code/sessionId"


def params_of(message: Request | Notification) -> dict[str, Any]:
    """The parameters of any message, ``initialize`` among them: an object; absent and ``null`` count as an empty one."""
    if message.params is None:
        return {}
    try:
        params = msgspec.json.decode(message.params)
    except (msgspec.DecodeError, RecursionError):
        # JSON, but a number that no float can hold.
        params = msgspec.UNSET
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise invalid_params("`params` must be an object")
    return params


def required_text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise invalid_params(f"`{name}` is required and must be a non-empty string")
    return value


def optional_text(params: Mapping[str, Any], name: str, longest: int = 256) -> str | None:
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise invalid_params(f"`{name}` must be a non-empty string of at most {longest} characters when provided")
    return value


def workspace_path(params: Mapping[str, Any], name: str = "cwd") -> str | None:
    """An absolute path; None when it is not given."""
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or "\0" in value or not PurePath(value).is_absolute():
        raise invalid_params(f"`{name}` must be an absolute path when provided")
    return value


def meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    value = params.get("_meta")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid_params("`_meta` must be an object when provided")
    return value


def caller_session_id(params: Mapping[str, Any]) -> str | None:
    """The id the caller wants for a new session: a UUID of version 1 to 5."""
    value = meta(params).get(_SESSION_ID_KEY)
    if value is None:
        return None
    if not isinstance(value, str) or _UUID.fullmatch(value.lower()) is None:
        raise invalid_params(
            f'`_meta["{_SESSION_ID_KEY}"]` must be a UUID of version 1 to 5',
            httpStatus=400,
            errorKind="invalid_session_id",
        )
    return value.lower()
