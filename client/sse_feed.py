"""An event stream over HTTP as a feed; REST and ``/acp`` differ only in what a frame means."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from client.errors import DaemonConnectionError
from client.events import BadEventError, Event
from client.http import StreamAnswer
from client.transport import Feed
from protocol.acp import EPOCH_HEADER
from protocol.sse import SseDecoder, SseEvent, parse_epoch, sanitise_for_log

__all__ = ["SseFeed", "report_bad_event"]

logger = logging.getLogger("moorline.client")


class SseFeed(Feed):
    """Reads an open response. ``translate`` returns the event in a frame, or ``None`` if it dealt with the frame."""

    def __init__(self, answer: StreamAnswer, translate: Callable[[SseEvent], Event | None]) -> None:
        self._answer = answer
        self._translate = translate
        self._decoder = SseDecoder()
        self._ended: BaseException | None = None
        self.epoch = parse_epoch(answer.headers.get(EPOCH_HEADER))

    @property
    def retry(self) -> float | None:
        milliseconds = self._decoder.retry
        return None if milliseconds is None else milliseconds / 1000

    async def receive(self) -> list[Event]:
        if self._ended is not None:
            raise self._ended
        try:
            chunk = await self._answer.read()
        except DaemonConnectionError as exc:
            return self._end(exc)
        if not chunk:
            return self._end(trio.EndOfChannel())
        return self._translate_all(self._decoder.receive_data(chunk))

    async def aclose(self) -> None:
        await self._answer.aclose()

    def _end(self, reason: BaseException) -> list[Event]:
        # The rest of a cut stream may still hold a whole event without its blank line (CLI-020).
        self._ended = reason
        rest = self._decoder.receive_eof()
        return self._translate_all([rest]) if rest is not None else []

    def _translate_all(self, frames: list[SseEvent]) -> list[Event]:
        events = []
        for frame in frames:
            try:
                event = self._translate(frame)
            except BadEventError as exc:
                # A frame cut short is no news; a whole one that makes no sense is reported once (C-107).
                if frame.terminated:
                    report_bad_event(exc, frame.data)
                continue
            if event is not None:
                events.append(event)
        return events


def report_bad_event(error: Exception, text: str) -> None:
    """One warning per bad event, with a harmless excerpt of it."""
    logger.warning("skipped a bad event: %s: %s", error, sanitise_for_log(text))
