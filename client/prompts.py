"""Prompts on their way: who waits for which turn, and what settles it (CLI-016, CLI-027)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

import trio

from client.errors import DaemonStreamEndedError, DaemonTurnError
from client.events import Event
from client.results import PromptResult, prompt_result

__all__ = ["TERMINALS", "PromptLedger", "Ticket"]

TERMINALS: Final = ("turn_complete", "turn_error")
"""Every accepted prompt has exactly one of these (REST-090)."""

REMEMBERED_TURNS: Final = 64
"""Outcomes kept for prompts whose acceptance is read after their end: the stream may be faster than the answer."""


class Ticket:
    """One waiting prompt. Settled once, with a result or an error; whatever comes later is ignored."""

    def __init__(self) -> None:
        self.prompt_id: str | None = None
        self.abandoned = False
        self.lost = False
        self.on_settled: Callable[[], None] | None = None
        self._done = trio.Event()
        self._result: PromptResult | None = None
        self._error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether the outcome is known."""
        return self._done.is_set()

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


class PromptLedger:
    """The open tickets of one session, oldest first. Reads every event of the stream."""

    def __init__(self, on_abandoned_head: Callable[[Ticket], None] | None = None) -> None:
        self._open: list[Ticket] = []
        self._terminals: OrderedDict[str, Event] = OrderedDict()
        self._high = 0
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
        """The caller gave up. True if it is this session's oldest prompt, hence the one a cancel would hit.

        Otherwise the ticket stays, and ``on_abandoned_head`` is called when its turn has come: a cancel sent now would
        end somebody else's turn.
        """
        ticket.abandoned = True
        self._drop_settled()
        return bool(self._open) and self._open[0] is ticket

    def take(self, event: Event) -> None:
        """Learn from one event. Replayed events are recognised by their id."""
        if event.type not in TERMINALS:
            return
        if event.id is not None and event.id <= self._high:
            return
        self._high = event.id or self._high
        if event.prompt_id is not None:
            self._remember(event.prompt_id, event)
        ticket = self._match(event)
        if ticket is not None:
            ticket.finish(event)

    def forget_ids(self) -> None:
        """The session's ids start again."""
        self._high = 0

    def mark_lost(self) -> None:
        """The connection the open prompts were sent on is gone, and maybe their answers with it."""
        for ticket in self:
            ticket.lost = True

    def fail_lost(self, error: DaemonStreamEndedError) -> None:
        """No answer can come any more for prompts of a lost connection."""
        for ticket in self:
            if ticket.lost:
                ticket.fail(error)

    def fail_all(self, error: BaseException) -> None:
        """The stream is over for good."""
        failing, self._open = self._open, []
        for ticket in failing:
            ticket.fail(error)

    def _advance(self) -> None:
        # A ticket was settled: if the next one was abandoned, it is time to cancel it.
        self._drop_settled()
        if self._open and self._open[0].abandoned and self._on_abandoned_head is not None:
            self._on_abandoned_head(self._open[0])

    def _match(self, event: Event) -> Ticket | None:
        for ticket in self:
            if ticket.prompt_id is not None and ticket.prompt_id == event.prompt_id:
                return ticket
        # On /acp the client does not know its prompt ids. After a lost connection the end of a turn can only be taken
        # for the one prompt that is out (CLI-027).
        candidates = [ticket for ticket in self if ticket.prompt_id is None]
        if len(candidates) == 1 and candidates[0].lost:
            return candidates[0]
        return None

    def _remember(self, prompt_id: str, event: Event) -> None:
        self._terminals[prompt_id] = event
        while len(self._terminals) > REMEMBERED_TURNS:
            self._terminals.popitem(last=False)

    def _drop_settled(self) -> None:
        self._open = [ticket for ticket in self._open if not ticket.settled]
