"""Permission requests: shown once, answered once (CLI-028, CLI-035, CLI-037)."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any, Final

import attrs

from client.events import Event
from client.requests import Vote
from protocol.jsonrpc import Id

__all__ = ["Answer", "PermissionDesk", "Showing"]

REMEMBERED: Final = 256
"""Requests kept in mind per session; a server has at most 64 pending."""


class Showing(enum.Enum):
    """What to do with a permission request that arrives."""

    SHOW = "show"
    """It is new: the consumer decides."""
    HIDE = "hide"
    """The consumer has seen it."""
    REPEAT = "repeat"
    """It has been answered: answer the same again, without showing it."""


@attrs.define(eq=False)
class _Known:
    outbound_id: Id | None = None
    answer: Vote | None = None
    shown: bool = False
    resolved: bool = False


@attrs.frozen
class Answer:
    """A vote that must be sent again."""

    request_id: str
    vote: Vote
    outbound_id: Id | None


class PermissionDesk:
    """Keeps the requests of one session by request id: a replay brings the same one again, on ``/acp`` with another
    JSON-RPC id once it has been answered (ACP-173)."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def arrive(self, event: Event) -> Showing:
        """A ``permission_request`` was read."""
        request_id = event.request_id
        if request_id is None:
            return Showing.SHOW
        known = self._remember(request_id)
        known.outbound_id = event.outbound_id if event.outbound_id is not None else known.outbound_id
        if known.answer is not None:
            return Showing.REPEAT if event.outbound_id is not None and not known.resolved else Showing.HIDE
        return Showing.HIDE if known.shown or known.resolved else Showing.SHOW

    def show(self, event: Event) -> None:
        """The consumer has got it. Not before: what is queued may still be dropped and fetched again."""
        if event.request_id is not None:
            self._remember(event.request_id).shown = True

    def learn(self, event: Event) -> None:
        """A ``permission_resolved`` or ``permission_already_resolved`` was read: nothing is left to answer."""
        if event.request_id is not None:
            self._remember(event.request_id).resolved = True

    def record(self, request_id: str, vote: Vote) -> Id | None:
        """The vote is about to be sent. Returns the JSON-RPC id to answer, if the request came with one."""
        known = self._remember(request_id)
        known.answer = vote
        return known.outbound_id

    def forget_shown(self) -> None:
        """Another consumer, or the session starts again: what was shown may have been forgotten."""
        for known in self._known.values():
            known.shown = False

    def answer_again(self, event: Event) -> Answer | None:
        """What to send for a request that :meth:`arrive` wants repeated."""
        known = self._known.get(event.request_id or "")
        if known is None or known.answer is None or event.request_id is None:
            return None
        return Answer(event.request_id, known.answer, known.outbound_id)

    def unresolved(self) -> list[Answer]:
        """Votes that were given and not seen to have an effect. If they went out on a lost connection they may be lost."""
        return [
            Answer(request_id, known.answer, known.outbound_id)
            for request_id, known in self._known.items()
            if known.answer is not None and not known.resolved
        ]

    def statistics(self) -> dict[str, Any]:
        """Counts, for tests and logs."""
        return {"known": len(self._known)}

    def _remember(self, request_id: str) -> _Known:
        known = self._known.setdefault(request_id, _Known())
        self._known.move_to_end(request_id)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known
