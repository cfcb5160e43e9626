"""Moving a live session to another transport (nnrp-wire 13.9): the decision, and the two paths while it happens."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

import attrs

from protocol.errors import Reach
from protocol.nnrp.errors import NnrpError, Outcome
from protocol.transitions import Table

__all__ = [
    "MIGRATION",
    "Migration",
    "MigrationAnswer",
    "MigrationEffect",
    "MigrationInput",
    "MigrationRefusal",
    "PathState",
    "decide_migration",
]

_U64: Final = 0xFFFF_FFFF_FFFF_FFFF


class PathState(IntEnum):
    """The transport path a session was on when the migration began."""

    PRIMARY = 0
    MOVING = 1
    """SESSION_MIGRATE is under way, the path still carries everything."""
    GRACE = 2
    """Another path is primary; only results of work in flight still flow here."""
    RETIRED = 3


class MigrationInput(IntEnum):
    ASKED = 0
    ACCEPTED = 1
    REJECTED = 2
    GRACE_OVER = 3
    PATH_LOST = 4


class MigrationEffect(IntEnum):
    WAIT = 0
    REBIND = 1
    KEEP = 2
    """The migration failed: stay, and report that, never as a plain loss of frames."""
    RETIRE = 3


_P, _I, _E = PathState, MigrationInput, MigrationEffect
MIGRATION: Table[PathState, MigrationInput, MigrationEffect] = Table(
    "migration",
    PathState,
    MigrationInput,
    {
        (_P.PRIMARY, _I.ASKED): (_P.MOVING, _E.WAIT),
        (_P.PRIMARY, _I.PATH_LOST): (_P.RETIRED, _E.RETIRE),
        (_P.MOVING, _I.ACCEPTED): (_P.GRACE, _E.REBIND),
        (_P.MOVING, _I.REJECTED): (_P.PRIMARY, _E.KEEP),
        (_P.MOVING, _I.PATH_LOST): (_P.RETIRED, _E.RETIRE),
        (_P.GRACE, _I.GRACE_OVER): (_P.RETIRED, _E.RETIRE),
        (_P.GRACE, _I.PATH_LOST): (_P.RETIRED, _E.RETIRE),
    },
    initial=frozenset({_P.PRIMARY}),
    terminal=frozenset({_P.RETIRED}),
)


class MigrationRefusal(IntEnum):
    """accept_code values of ours; the protocol registers only 0, accepted."""

    ACCEPTED = 0
    UNKNOWN_SESSION = 1
    WRONG_TRANSPORT = 2
    NOT_OPEN = 3
    OTHER_PRINCIPAL = 4


@attrs.frozen(slots=True)
class MigrationAnswer:
    """The decided fields of SESSION_MIGRATE_ACK; its timestamp is the driver's."""

    accept_code: int
    resume_from_frame_id: int
    grace_window_ms: int

    @property
    def accepted(self) -> bool:
        return self.accept_code == MigrationRefusal.ACCEPTED


def decide_migration(
    last_result_frame_id: int,
    *,
    refusal: MigrationRefusal = MigrationRefusal.ACCEPTED,
    highest_frame_id: int = 0,
    grace_window_ms: int,
) -> MigrationAnswer:
    """What to answer a SESSION_MIGRATE.

    The client need not replay what the server has: frames up to ``highest_frame_id`` (0: unknown) were received, so new
    frame ids go on after it, and never below ``last_result_frame_id`` + 1, as far as there are such numbers.
    """
    if refusal is not MigrationRefusal.ACCEPTED:
        return MigrationAnswer(int(refusal), last_result_frame_id, 0)
    return MigrationAnswer(0, min(max(last_result_frame_id, highest_frame_id) + 1, _U64), grace_window_ms)


class Migration:
    """One migration as either side sees it, from the point of view of the old path."""

    __slots__ = ("_grace_until", "last_result_frame_id", "resume_from_frame_id", "state")

    def __init__(self) -> None:
        self.state = PathState.PRIMARY
        self.last_result_frame_id = 0
        self.resume_from_frame_id = 0
        self._grace_until = math.inf

    def ask(self, last_result_frame_id: int) -> None:
        """SESSION_MIGRATE was sent or received."""
        self.state, _ = MIGRATION.step(self.state, MigrationInput.ASKED)
        self.last_result_frame_id = last_result_frame_id

    def answer(self, answer: MigrationAnswer, now: float) -> MigrationEffect:
        """SESSION_MIGRATE_ACK was sent or received. Raises NnrpError BadCombination when it resumes behind the cursor."""
        if answer.accepted and answer.resume_from_frame_id < self.last_result_frame_id:
            raise NnrpError(
                Outcome.BAD_COMBINATION,
                "resume_from_frame_id must not lie behind last_result_frame_id",
                subject="SESSION_MIGRATE_ACK",
                field="resume_from_frame_id",
                reach=Reach.SESSION,
            )
        given = MigrationInput.ACCEPTED if answer.accepted else MigrationInput.REJECTED
        self.state, effect = MIGRATION.step(self.state, given)
        if answer.accepted:
            self.resume_from_frame_id = answer.resume_from_frame_id
            self._grace_until = now + answer.grace_window_ms / 1000
        return effect

    def lose_path(self) -> MigrationEffect:
        """The old transport is gone."""
        self.state, effect = MIGRATION.step(self.state, MigrationInput.PATH_LOST)
        return effect

    def handle_deadline(self, now: float) -> MigrationEffect | None:
        """RETIRE once the grace window of the old path is over, else None."""
        if self.state is not PathState.GRACE or now < self._grace_until:
            return None
        self.state, effect = MIGRATION.step(self.state, MigrationInput.GRACE_OVER)
        return effect

    def next_deadline(self) -> float:
        return self._grace_until if self.state is PathState.GRACE else math.inf

    def check_new_work(self, session_id: int, frame_id: int) -> None:
        """Raises NnrpError BadState for a submit on the old path once another one is primary."""
        if self.state in (PathState.GRACE, PathState.RETIRED):
            raise NnrpError(
                Outcome.BAD_STATE,
                "the session has moved to another transport",
                subject="FRAME_SUBMIT",
                reach=Reach.OPERATION,
                session_id=session_id,
                frame_id=frame_id,
            )

    def replay(self, frame_id: int) -> bool:
        """Whether the client may send this frame again on the new path."""
        return frame_id >= self.resume_from_frame_id
