"""JSON from peers who are not careful.

Agents written in JavaScript emit escaped lone surrogates, and raw bytes may not be UTF-8. Both would either stop the
decoder or, worse, pass through a raw copy and break the next reader's stream. They become U+FFFD here (C-048). What
is not JSON stays refused: NaN, trailing text, and nesting deeper than the decoder can follow.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["InvalidJson", "clean_json", "decode_json"]

# An escaped backslash is matched first so that its second half cannot start an escape; then proper pairs, then the
# halves that have no partner.
_SURROGATE = re.compile(
    rb"\\\\"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_REPLACEMENT = rb"\ufffd"


class InvalidJson(ValueError):
    """The text is not JSON, or nested too deeply to be read."""


def clean_json(data: bytes) -> bytes:
    """``data`` as valid UTF-8 without escaped lone surrogates; the very same object if there is nothing to mend."""
    if not data.isascii():
        text = data.decode("utf-8", "replace")
        if "\ufffd" in text:
            data = text.encode("utf-8")
    if b"\\ud" in data or b"\\uD" in data:
        return _SURROGATE.sub(_mend, data)
    return data


def decode_json(data: bytes | str | msgspec.Raw) -> Any:
    """The value of a JSON text, with the leniency of :func:`clean_json`.

    Duplicate keys keep the last value. Raises :class:`InvalidJson` for anything that is not JSON.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
    try:
        return msgspec.json.decode(clean_json(raw))
    except msgspec.DecodeError as exc:
        raise InvalidJson(str(exc)) from exc
    except RecursionError as exc:
        raise InvalidJson("nested too deeply") from exc


def _mend(match: re.Match[bytes]) -> bytes:
    return _REPLACEMENT if match.group(1) else match.group(0)
