"""Bytes from an agent's stdout to lines, and lines to text that may be parsed and passed on.

Only LF and CRLF end a line (C-042). Linear in the input however it is cut (C-041, C-047); bounded by `LINE_LIMIT`.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LINE_LIMIT", "LineSplitter", "repaired"]

LINE_LIMIT: Final = 64 * 2**20
"""Bytes one line may have. Agents put whole files and images into one update; 20 MiB lines are known (C-046, C-097)."""


class LineSplitter:
    """Collects bytes, gives back complete lines without their end.

    A line longer than the limit is dropped whole, counted in `overlong`, and the lines after it are unharmed.
    """

    __slots__ = ("_dropping", "_limit", "_parts", "_size", "overlong")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._dropping = False
        self.overlong = 0

    @property
    def pending(self) -> int:
        """Bytes of the unfinished line."""
        return self._size

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The lines that ``data`` completes."""
        pieces = bytes(data).split(b"\n")
        tail = pieces.pop()
        lines: list[bytes] = []
        if pieces:
            if self._parts or self._dropping:
                first = pieces[0]
                pieces[0] = b""
                if self._take(first):
                    pieces[0] = b"".join(self._parts)
                self._parts.clear()
                self._size = 0
                self._dropping = False
            lines = [piece[:-1] if piece.endswith(b"\r") else piece for piece in pieces]
        if tail:
            self._take(tail)
        return lines

    def finish(self) -> bytes:
        """What stands unfinished at the end of the stream."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return rest

    def _take(self, piece: bytes) -> bool:
        if self._dropping:
            return False
        self._size += len(piece)
        if self._size > self._limit:
            self._dropping = True
            self._parts.clear()
            self._size = 0
            self.overlong += 1
            return False
        self._parts.append(piece)
        return True


_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_LONE_LENGTH: Final = 6
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def _without_lone_surrogate(match: re.Match[bytes]) -> bytes:
    found = match[0]
    return rb"\ufffd" if len(found) == _LONE_LENGTH else found


def repaired(line: bytes) -> bytes:
    r"""The line as JSON text that is safe to pass on raw: valid UTF-8, no CR, no lone surrogate escape (C-048).

    What is wrong becomes U+FFFD, as in every UTF-8 decoder; a stray CR outside a string is white space and becomes a space
    (inside a string it is no JSON in the first place). A line in order is returned as it is.
    """
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError:
            line = line.decode("utf-8", "replace").encode()
    if b"\r" in line:
        line = line.replace(b"\r", b" ")
    # One byte is looked for first: that is memchr, and most text has no escapes at all.
    if b"\\" in line and _SURROGATE.search(line):
        line = _ESCAPE.sub(_without_lone_surrogate, line)
    return line
