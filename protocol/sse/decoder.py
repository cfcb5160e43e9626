"""An incremental event-stream parser (CLI-020, ACP-098).

Works on bytes: a line end can never be part of a longer UTF-8 sequence, so lines are cut first and decoded whole, and
a character split between two reads needs no special care. ``bytes.splitlines`` ends a line at LF, CR and CRLF and
nowhere else, unlike its ``str`` counterpart (C-042).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_EVENT_LIMIT", "SseDecoder", "SseEvent", "SseFramingError"]

DEFAULT_EVENT_LIMIT: Final = 16 * 1024 * 1024
"""Bytes that may arrive without a blank line. The reference client has the same guard."""

_BOM = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 12


class SseFramingError(ValueError):
    """The peer sent more than the limit without ending an event. The stream cannot be trusted any more."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event.

    ``id`` is the ``id:`` field of this very block, ``None`` if the block had none; a reader must not take an earlier
    block's id for it (CLI-021). ``terminated`` is false only for what :meth:`SseDecoder.receive_eof` salvages.
    """

    data: str
    event: str = ""
    id: str | None = None
    terminated: bool = True


class SseDecoder:
    """Bytes in, events out. No I/O; after :class:`SseFramingError` the decoder stays unusable.

    Feed every chunk to :meth:`receive_data`, and call :meth:`receive_eof` once when the stream ended.
    """

    def __init__(self, *, limit: int = DEFAULT_EVENT_LIMIT) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._pending = 0
        self._after_cr = False
        self._at_start = True
        self._failed = False
        self._last_event_id: str | None = None
        self._retry: int | None = None
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None

    @property
    def last_event_id(self) -> str | None:
        """The last id seen in a complete block, with or without data (C-043)."""
        return self._last_event_id

    @property
    def retry(self) -> int | None:
        """The last reconnect hint of the server in milliseconds."""
        return self._retry

    def receive_data(self, chunk: bytes) -> list[SseEvent]:
        """The events completed by ``chunk``, in order.

        Raises :class:`SseFramingError` when more than the limit arrived without ending an event.
        """
        if self._failed:
            raise SseFramingError("the stream already broke its framing")
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            # The CR already ended the line; this LF is the second half of the same line end (C-040).
            chunk = chunk[1:]
        self._after_cr = False
        events: list[SseEvent] = []
        for line in self._complete_lines(chunk):
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        self._guard(len(self._partial))
        return events

    def receive_eof(self) -> SseEvent | None:
        """What the unterminated rest of the stream amounts to, marked ``terminated=False``; ``None`` if nothing.

        The rest moves neither the cursor nor the retry hint. REST readers parse it, ``/acp`` readers use it only if
        its data is complete JSON (CLI-020).
        """
        if self._failed:
            return None
        cursor, retry = self._last_event_id, self._retry
        if self._partial:
            line = bytes(self._partial)
            self._partial.clear()
            self._take_line(line)
        event = self._dispatch(terminated=False)
        self._last_event_id, self._retry = cursor, retry
        return event

    def _complete_lines(self, chunk: bytes) -> list[bytes]:
        lines = chunk.splitlines()
        if chunk.endswith((b"\n", b"\r")):
            self._after_cr = chunk.endswith(b"\r")
            rest = b""
        else:
            rest = lines.pop() if lines else b""
        if lines and self._partial:
            lines[0] = bytes(self._partial) + lines[0]
            self._partial.clear()
        self._partial += rest
        return lines

    def _take_line(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch(terminated=True)
        self._pending += len(line) + 1
        self._guard(0)
        if line.startswith(b":"):
            return None
        name, _, value = line.partition(b":")
        self._take_field(name, value.removeprefix(b" "))
        return None

    def _take_field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._retry = int(value)

    def _dispatch(self, *, terminated: bool) -> SseEvent | None:
        if self._id is not None:
            self._last_event_id = self._id
        event = None
        if self._data:
            text = b"\n".join(self._data).decode("utf-8", "replace")
            event = SseEvent(text, self._event, self._id, terminated)
        self._reset_block()
        return event

    def _reset_block(self) -> None:
        self._data = []
        self._event = ""
        self._id = None
        self._pending = 0

    def _guard(self, partial: int) -> None:
        if self._pending + partial > self._limit:
            self._failed = True
            self._partial.clear()
            self._reset_block()
            raise SseFramingError(f"more than {self._limit} bytes without the end of an event")
