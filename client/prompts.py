"""Prompts on their way: who waits for which turn, and what settles it (CLI-016, CLI-027)."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import trio

from client.errors import DaemonTurnError
from client.events import Event
from client.results import PromptResult, prompt_result

__all__ = ["TERMINALS", "PromptLedger", "Ticket"]

TERMINALS: Final = ("turn_complete", "turn_error")
"""Every accepted prompt has exactly one of these (REST-090)."""

T = TypeVar("T")

ECHO_SOURCE: Final = "bridge-echo"
"""Marks the echo of a prompt (ACP-185)."""
REMEMBERED_TURNS: Final = 64
"""Outcomes kept for prompts whose acceptance is read after their end: the stream may be faster than the answer."""


class Ticket:
    """One waiting prompt. Settled once, with a result or an error; whatever comes later is ignored.

    ``first_block`` is the content block the prompt begins with: the stream echoes it when the turn starts, which is how
    a turn is recognised on ``/acp``, where prompts have no id that the client knows.
    """

    def __init__(self, first_block: Mapping[str, Any] | None = None) -> None:
        self.prompt_id: str | None = None
        self.first_block = first_block
        self.queued_as: str | None = None
        self.sent = False
        """Its request may have left for the daemon (on ``/acp``)."""
        self.accepted = False
        """The daemon has said that it has the request."""
        self.abandoned = False
        self.cancel_sent = False
        self.lost = False
        self.ended_by: Event | None = None
        self.on_settled: Callable[[], None] | None = None
        self._done = trio.Event()
        self._result: PromptResult | None = None
        self._error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

    def note_sent(self) -> None:
        """The request leaves."""
        self.sent = True

    def settle(self, result: PromptResult) -> None:
        """The turn ended."""
        if not self.settled:
            self._result = result
            self._close()

    def fail(self, error: BaseException) -> None:
        """The prompt has no result, and will have none."""
        if not self.settled:
            self._error = error
            self._close()

    def mark_lost(self) -> None:
        """Its answer may be lost. If its turn has been seen to end, that is the outcome."""
        self.lost = True
        if self.ended_by is not None:
            self.finish(self.ended_by)

    def finish(self, event: Event) -> None:
        """Settle from a terminal event."""
        data = event.data if isinstance(event.data, dict) else {}
        if event.type == "turn_complete":
            self.settle(prompt_result(data))
        else:
            self.fail(DaemonTurnError(data))

    async def wait(self) -> PromptResult:
        """The result. Raises what the prompt failed with. Cancellation leaves the ticket as it is."""
        await self._done.wait()
        return self.result()

    def result(self) -> PromptResult:
        """The result of a settled ticket. Raises what the prompt failed with."""
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _close(self) -> None:
        self._done.set()
        if self.on_settled is not None:
            self.on_settled()


class _Turn(enum.Enum):
    UNKNOWN = "unknown"
    """The stream was joined in mid-turn, or events are missing."""
    FOREIGN = "foreign"
    """Somebody else's prompt, or one that nobody waits for any more."""


class PromptLedger:
    """The open tickets of one session, oldest first. Reads every event of the stream.

    Turns of a session run one after another: an echo of the prompt begins each, and one terminal event ends it.
    """

    def __init__(self, on_abandoned_head: Callable[[Ticket], None] | None = None) -> None:
        self._open: list[Ticket] = []
        self._terminals: OrderedDict[str, Event] = OrderedDict()
        self._removed: OrderedDict[str, None] = OrderedDict()
        self.forgotten = 0
        """Id of the latest end of a turn that is not remembered any more."""
        self._high = 0
        self._turn: Ticket | _Turn = _Turn.UNKNOWN
        self._on_abandoned_head = on_abandoned_head

    def __len__(self) -> int:
        self._drop_settled()
        return len(self._open)

    def __iter__(self) -> Iterator[Ticket]:
        self._drop_settled()
        return iter(tuple(self._open))

    def add(self, ticket: Ticket) -> None:
        """Watch for the ticket's turn. If that has already been seen to end, the ticket is settled at once."""
        terminal = self._terminals.get(ticket.prompt_id) if ticket.prompt_id is not None else None
        if terminal is not None:
            ticket.finish(terminal)
            return
        self._open.append(ticket)
        ticket.on_settled = self._advance

    def discard(self, ticket: Ticket) -> None:
        """Watch no longer. The ticket stays as it is."""
        self._open = [other for other in self._open if other is not ticket]

    def abandon(self, ticket: Ticket) -> bool:
        """The caller gave up. True if a cancel would hit this prompt: its turn runs, or must be about to.

        Otherwise the ticket stays, and ``on_abandoned_head`` is called when its turn has come: a cancel sent now would
        end somebody else's turn. It is called then also for a prompt that the cancel may have overtaken on its way.
        """
        ticket.abandoned = True
        self._drop_settled()
        is_running = self._turn is ticket
        is_next = self._turn is _Turn.UNKNOWN and bool(self._open) and self._open[0] is ticket
        ticket.cancel_sent = is_running or (is_next and ticket.accepted)
        return is_running or is_next

    def take(self, event: Event) -> None:
        """Learn from one event. Replayed events are recognised by their id."""
        if event.id is not None:
            if event.id <= self._high:
                return
            self._high = event.id
        if event.type in TERMINALS:
            self._end_turn(event)
        elif event.update_kind == "user_message_chunk":
            self._begin_turn(event)
        elif event.type == "pending_prompt_added":
            self._recognise_queued(event)
        elif event.type == "pending_prompt_completed" and event.data.get("state") == "removed":
            _remember(self._removed, event.prompt_id or "", None)
        elif event.type == "state_resync_required":
            self._turn = _Turn.UNKNOWN

    def forget_ids(self) -> None:
        """The session's ids start again."""
        self._high = self.forgotten = 0
        self._turn = _Turn.UNKNOWN

    def mark_lost(self) -> None:
        """The stream the open prompts' answers were to come on is gone, and maybe an answer with it."""
        for ticket in self:
            ticket.mark_lost()

    @property
    def lost(self) -> list[Ticket]:
        """Prompts whose answer may have been lost."""
        return [ticket for ticket in self if ticket.lost]

    def fail_all(self, error: BaseException) -> None:
        """The stream is over for good."""
        failing, self._open = self._open, []
        for ticket in failing:
            ticket.fail(error)

    def _advance(self) -> None:
        # A ticket was settled: if the next one was abandoned, it is time to cancel it.
        self._drop_settled()
        if self._open and self._open[0].accepted and self._turn is not _Turn.FOREIGN:
            self._cancel_if_abandoned(self._open[0])

    def _cancel_if_abandoned(self, ticket: Ticket) -> None:
        # Once: what a second one hits may be the next turn.
        if ticket.abandoned and not ticket.cancel_sent and self._on_abandoned_head is not None:
            ticket.cancel_sent = True
            self._on_abandoned_head(ticket)

    def _begin_turn(self, event: Event) -> None:
        update = event.data["update"]
        meta = update.get("_meta")
        if not isinstance(meta, dict) or meta.get("source") != ECHO_SOURCE or isinstance(self._turn, Ticket):
            # Not an echo, or another block of the prompt whose turn it is.
            return
        content = update.get("content")
        mine = [t for t in self if t.prompt_id is None and t.ended_by is None and _same(t.first_block, content)]
        # One that may never have arrived is the less likely of two that look the same.
        self._turn = min(mine, key=lambda ticket: ticket.lost, default=_Turn.FOREIGN)
        if isinstance(self._turn, Ticket):
            self._cancel_if_abandoned(self._turn)

    def _recognise_queued(self, event: Event) -> None:
        content = {"type": "text", "text": event.data.get("text")}
        mine = (t for t in self if t.prompt_id is None and t.queued_as is None and _same(t.first_block, content))
        ticket = next(mine, None)
        if ticket is not None:
            ticket.queued_as = event.prompt_id

    def _end_turn(self, event: Event) -> None:
        if event.prompt_id is not None:
            for past in _remember(self._terminals, event.prompt_id, event):
                self.forgotten = max(self.forgotten, past.id or 0)
            if event.prompt_id in self._removed:
                # It never had a turn, so it ends none.
                self._end(self._known(event), event)
                return
        turn, self._turn = self._turn, _Turn.UNKNOWN
        ticket: Ticket | _Turn | None = self._known(event) or turn
        if ticket is _Turn.UNKNOWN:
            ticket = self._only_outstanding()
        self._end(ticket, event)

    def _end(self, ticket: Ticket | _Turn | None, event: Event) -> None:
        if not isinstance(ticket, Ticket):
            return
        ticket.ended_by = event
        # On /acp its answer is on the way, and says more, unless it was lost.
        if ticket.prompt_id is not None or ticket.lost:
            ticket.finish(event)

    def _known(self, event: Event) -> Ticket | None:
        if event.prompt_id is None:
            return None
        return next((t for t in self if event.prompt_id in (t.prompt_id, t.queued_as)), None)

    def _only_outstanding(self) -> Ticket | None:
        # CLI-027: after a lost connection the end of a turn can only be taken for the one prompt that is out.
        candidates = [ticket for ticket in self if ticket.prompt_id is None]
        return candidates[0] if len(candidates) == 1 and candidates[0].lost else None

    def _drop_settled(self) -> None:
        self._open = [ticket for ticket in self._open if not ticket.settled]


def _same(block: Mapping[str, Any] | None, content: object) -> bool:
    if block is None or not isinstance(content, dict):
        return False
    if block.get("type") == "text":
        return content.get("text") == block.get("text")
    return all(content.get(name) == value for name, value in block.items())


def _remember(memory: OrderedDict[str, T], name: str, value: T) -> list[T]:
    """Keep the latest; returns what had to go for it."""
    memory[name] = value
    return [memory.popitem(last=False)[1] for _ in range(len(memory) - REMEMBERED_TURNS)]
