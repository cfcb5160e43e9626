"""The ``Last-Event-ID`` and epoch rules, one parser for both wires (ACP-110 to ACP-114)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

__all__ = ["MAX_EVENT_ID", "parse_epoch", "parse_last_event_id", "sanitise_for_log"]

MAX_EVENT_ID: Final = 2**53 - 1
"""Largest id a cursor may name: the safe integer limit of the clients (ACP-111)."""

_DIGITS = re.compile(r"[0-9]+")
_EPOCH = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIGNIFICANT_DIGITS = len(str(MAX_EVENT_ID))
# Control (Cc), format (Cf: bidi marks and isolates, zero-width characters, BOM), surrogates, line and paragraph
# separators: everything that could move text around in a terminal or a log viewer.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def parse_last_event_id(value: str | None) -> int | None:
    """The cursor in a ``Last-Event-ID`` header or ``id:`` line; ``None`` if there is none or it is not acceptable.

    Accepted is one or more ASCII digits with a value of at most 2^53-1; leading zeros are fine and 0 is a cursor
    (ACP-111). A refused value is the same as an absent one, never an error (ACP-112); the caller logs a non-empty
    refused value once, through :func:`sanitise_for_log`.
    """
    if not value or _DIGITS.fullmatch(value) is None:
        return None
    significant = value.lstrip("0")
    if len(significant) > _SIGNIFICANT_DIGITS:
        return None
    number = int(significant or "0")
    return number if number <= MAX_EVENT_ID else None


def parse_epoch(value: str | None) -> str | None:
    """The epoch token of an ``X-Qwen-Event-Epoch`` header, or ``None`` (ACP-114)."""
    if value is None or _EPOCH.fullmatch(value) is None:
        return None
    return value


def sanitise_for_log(text: str, limit: int = 64) -> str:
    """``text`` without control, bidi and zero-width characters, at most ``limit`` characters (ACP-112, ACP-257).

    Looks at no more of ``text`` than it needs, so a hostile header costs nothing.
    """
    kept: list[str] = []
    for character in text:
        if len(kept) >= limit:
            break
        if unicodedata.category(character) not in _UNSAFE_CATEGORIES:
            kept.append(character)
    return "".join(kept)
