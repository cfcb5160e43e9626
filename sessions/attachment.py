"""The binding of one connection to one session, with its grace: a scope whose deadline moves."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Final

import trio

from sessions.errors import WrongPhase

__all__ = ["TRANSITIONS", "Attachment", "AttachmentInput", "AttachmentPhase"]


class AttachmentPhase(enum.StrEnum):
    IDLE = "idle"
    """Owned, and no stream was opened yet."""
    ATTACHED = "attached"
    DETACHED = "detached"
    """The stream is gone, the grace runs."""
    ENDED = "ended"


class AttachmentInput(enum.StrEnum):
    ATTACH = "attach"
    LOST = "lost"
    GRACE_OVER = "grace_over"
    END = "end"


def _table() -> dict[tuple[AttachmentPhase, AttachmentInput], AttachmentPhase]:
    p, i = AttachmentPhase, AttachmentInput
    return {
        (p.IDLE, i.ATTACH): p.ATTACHED,
        (p.IDLE, i.END): p.ENDED,
        (p.ATTACHED, i.ATTACH): p.ATTACHED,
        (p.ATTACHED, i.LOST): p.DETACHED,
        (p.ATTACHED, i.END): p.ENDED,
        (p.DETACHED, i.ATTACH): p.ATTACHED,
        (p.DETACHED, i.GRACE_OVER): p.ENDED,
        (p.DETACHED, i.END): p.ENDED,
        (p.ENDED, i.END): p.ENDED,
    }


TRANSITIONS: Final = _table()


class Attachment:
    """One binding. `run` is its only task; attach, detach and end only move that task's deadline.

    Streams are told apart by the ticket `attach` returns, so that the late end of an old stream never detaches a newer
    one (ACP-125).
    """

    def __init__(self, grace: float, on_end: Callable[[bool], object]) -> None:
        """``grace`` in seconds; ``on_end(expired)`` is called once, synchronously, when the binding is over."""
        self._grace = grace
        self._on_end = on_end
        self._scope = trio.CancelScope()
        self._ticket = 0
        self.phase = AttachmentPhase.IDLE

    @property
    def live(self) -> bool:
        return self.phase is not AttachmentPhase.ENDED

    @property
    def in_grace(self) -> bool:
        return self.phase is AttachmentPhase.DETACHED

    @property
    def deadline(self) -> float:
        """When the grace is over, in Trio's clock; infinity while attached."""
        return self._scope.deadline

    async def run(self) -> None:
        """Wait for the end of the binding. Cancelling this from outside does not count as an end."""
        while True:
            with self._scope:
                await trio.sleep_forever()
            if self.phase is AttachmentPhase.DETACHED:
                self._step(AttachmentInput.GRACE_OVER)
                self._on_end(True)
            if self.phase is AttachmentPhase.ENDED:
                return
            # Attached between the grace running out and this task noticing: the stream won, start over.
            self._scope = trio.CancelScope()

    def attach(self) -> int:
        """A stream takes the binding, superseding any other; returns its ticket. Raises `WrongPhase` after the end."""
        self._step(AttachmentInput.ATTACH)
        self._scope.deadline = math.inf
        self._ticket += 1
        return self._ticket

    def detach(self, ticket: int) -> bool:
        """The stream with this ticket was lost: start the grace. False when it is not the present stream."""
        if ticket != self._ticket or self.phase is not AttachmentPhase.ATTACHED:
            return False
        self._step(AttachmentInput.LOST)
        self._scope.deadline = trio.current_time() + self._grace
        return True

    def end(self) -> bool:
        """End at once, without grace. False if it was over."""
        if self.phase is AttachmentPhase.ENDED:
            return False
        self._step(AttachmentInput.END)
        self._scope.cancel()
        self._on_end(False)
        return True

    def _step(self, given: AttachmentInput) -> None:
        try:
            self.phase = TRANSITIONS[self.phase, given]
        except KeyError:
            raise WrongPhase(self.phase, given) from None
