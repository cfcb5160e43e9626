"""Request bodies: one reading of JSON for every route."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from quart import Response, request

__all__ = ["InvalidJson", "json_response", "no_content", "parse_json", "parse_json_object", "read_json_object"]

_FORBIDDEN: Final = ("__proto__", "constructor", "prototype")
_BOM: Final = b"\xef\xbb\xbf"
_JSON: Final = "application/json; charset=utf-8"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class InvalidJson(ValueError):
    """The body is not JSON: answered 400 ``{"error": "Invalid JSON in request body"}`` (REST-001)."""


async def read_json_object() -> dict[str, Any]:
    """The current request's body as an object (REST-001): no body and anything but an object count as ``{}``.

    The content type is not looked at: browsers cannot make use of that, because a foreign origin never gets this far
    (C-075). Raises `InvalidJson`.
    """
    raw: bytes = await request.get_data(cache=False)  # type: ignore[assignment]  # bytes unless as_text is asked for
    return parse_json_object(raw, _charset())


def parse_json_object(raw: bytes, charset: str = "utf-8") -> dict[str, Any]:
    value = parse_json(raw, charset) if raw.strip() else None
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if key not in _FORBIDDEN}


def parse_json(raw: bytes, charset: str = "utf-8") -> Any:
    """Strict JSON: no NaN, no infinities, valid UTF-8; of equal keys the last one counts. Depth is bounded
    by the decoder, which gives up at the interpreter's recursion limit (1000).

    Raises `InvalidJson`.
    """
    text = _recode(raw, charset)
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJson(str(error)) from None


def json_response(value: Any, status: int = 200, **headers: str) -> Response:
    """``value`` as JSON in UTF-8. Header names are given with underscores: ``Retry_After="5"``."""
    response = Response(_encode(value), status=status, content_type=_JSON)
    for name, text in headers.items():
        response.headers[name.replace("_", "-")] = text
    return response


def no_content() -> Response:
    """204, without the headers of a body (RFC 9110, 8.6)."""
    response = Response(b"", status=204)
    response.headers.remove("Content-Type")
    response.headers.remove("Content-Length")
    return response


def _charset() -> str:
    return str(request.mimetype_params.get("charset", "utf-8")).strip().lower()


def _recode(raw: bytes, charset: str) -> bytes:
    if charset in ("utf-8", "utf8", "us-ascii", "ascii"):
        return raw.removeprefix(_BOM)
    if charset not in ("utf-16", "utf-16le", "utf-16be", "iso-8859-1", "latin1"):
        raise InvalidJson(f"unsupported charset {charset[:40]!r}")
    try:
        return raw.decode(charset).removeprefix("\ufeff").encode("utf-8")
    except UnicodeError as error:
        raise InvalidJson(str(error)) from None
