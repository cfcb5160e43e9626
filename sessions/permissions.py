"""The permission mediator of one session: one question, one answer, whoever asks twice."""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import trio

from sessions.errors import InvalidOption, VoteForbidden
from sessions.events import Event, EventType
from sessions.limits import Limits
from sessions.operation import Operation
from sessions.runner import PermissionOutcome

__all__ = ["PendingPermission", "PermissionMediator", "PermissionPolicy", "VoteResult", "Voter"]


class PermissionPolicy(enum.StrEnum):
    """Who decides (REST-104)."""

    FIRST_RESPONDER = "first-responder"
    DESIGNATED = "designated"
    CONSENSUS = "consensus"
    LOCAL_ONLY = "local-only"


class VoteResult(enum.Enum):
    """What became of a vote that was not refused outright."""

    RESOLVED = "resolved"
    RECORDED = "recorded"
    """Counted under a quorum policy; the request is still open."""
    ALREADY_RESOLVED = "already_resolved"
    NOT_PENDING = "not_pending"


@attrs.frozen(slots=True)
class Voter:
    """Who votes. ``local`` is the socket's word, never a header's (REST-104)."""

    client_id: str | None = None
    local: bool = True
    key: object = None
    """Tells voters without a client id apart under a quorum policy."""


@attrs.define(slots=True, eq=False)
class PendingPermission:
    """An open question."""

    request_id: str
    options: tuple[str, ...]
    operation: Operation | None
    event: Event | None = None
    outcome: PermissionOutcome | None = None
    votes: dict[object, str | None] = attrs.field(factory=dict)
    _resolved: trio.Event = attrs.field(factory=trio.Event)

    def resolve(self, outcome: PermissionOutcome) -> None:
        self.outcome = outcome
        self._resolved.set()

    async def wait(self) -> PermissionOutcome:
        await self._resolved.wait()
        assert self.outcome is not None
        return self.outcome


class PermissionMediator:
    """Asks, counts votes, remembers outcomes. Everything but the waiting in `ask` is synchronous.

    ``publish(type, data, operation, originator)`` appends to the session's ring; ``has_consumer()`` says whether anybody
    could see the question (ACP-178); ``new_id()`` makes request ids.
    """

    def __init__(
        self,
        *,
        session_id: Callable[[], str],
        publish: Callable[[str, Any, Operation | None, str | None], Event | None],
        has_consumer: Callable[[], bool],
        new_id: Callable[[], str],
        limits: Limits,
        policy: PermissionPolicy,
    ) -> None:
        self._session_id = session_id
        self._publish = publish
        self._has_consumer = has_consumer
        self._new_id = new_id
        self._limits = limits
        self.policy = policy
        self._pending: dict[str, PendingPermission] = {}
        self._resolved: OrderedDict[str, PermissionOutcome] = OrderedDict()

    # What is there

    @property
    def pending(self) -> list[PendingPermission]:
        return list(self._pending.values())

    def outcome_of(self, request_id: str) -> PermissionOutcome | None:
        """The remembered outcome of a resolved request; None when it is open or unknown."""
        return self._resolved.get(request_id)

    def knows(self, request_id: str) -> bool:
        """True for an open request and for one whose outcome is remembered."""
        return request_id in self._pending or request_id in self._resolved

    # What happens

    async def ask(
        self,
        tool_call: Mapping[str, Any] | msgspec.Raw,
        options: Sequence[Mapping[str, Any]],
        operation: Operation | None,
        meta: Mapping[str, Any] | None = None,
    ) -> PermissionOutcome:
        """Publish the question and wait for its end. Cancelling the wait resolves the request as cancelled."""
        cancelled = PermissionOutcome()
        if (
            len(self._pending) >= self._limits.max_pending_permissions
            or (operation is not None and (operation.settled or operation.cancelling))
            or not self._has_consumer()
        ):
            await trio.lowlevel.checkpoint()
            return cancelled
        request_id = self._new_id()
        ids = tuple(str(option["optionId"]) for option in options if "optionId" in option)
        pending = PendingPermission(request_id, ids, operation)
        data: dict[str, Any] = {
            "requestId": request_id,
            "sessionId": self._session_id(),
            "toolCall": tool_call,
            "options": options,
        }
        if meta:
            data["_meta"] = meta
        self._pending[request_id] = pending
        pending.event = self._publish(EventType.PERMISSION_REQUEST, data, operation, None)
        if pending.event is None:
            del self._pending[request_id]
            return cancelled
        timeout = self._limits.permission_timeout or float("inf")
        try:
            with trio.move_on_after(timeout):
                return await pending.wait()
            self._resolve(pending, cancelled, None)
            return cancelled
        finally:
            # Only a cancelled wait finds it still open: the operation is ending.
            if pending.outcome is None:
                self._resolve(pending, cancelled, None)

    def vote(self, request_id: str, outcome: PermissionOutcome, voter: Voter) -> VoteResult:
        """Cast a vote.

        Raises `InvalidOption` (the request stays open) and `VoteForbidden` (after publishing ``permission_forbidden``).
        A vote on a resolved request changes nothing but for a ``permission_already_resolved`` event.
        """
        pending = self._pending.get(request_id)
        if pending is None:
            known = self._resolved.get(request_id)
            if known is None:
                return VoteResult.NOT_PENDING
            self._publish(
                EventType.PERMISSION_ALREADY_RESOLVED,
                {"requestId": request_id, "sessionId": self._session_id(), "outcome": known.as_json()},
                None,
                voter.client_id,
            )
            return VoteResult.ALREADY_RESOLVED
        if outcome.option_id is not None and outcome.option_id not in pending.options:
            raise InvalidOption(request_id, outcome.option_id)
        self._check_voter(pending, voter)
        if self.policy is PermissionPolicy.CONSENSUS and not self._quorum(pending, outcome, voter):
            return VoteResult.RECORDED
        self._resolve(pending, outcome, voter.client_id)
        return VoteResult.RESOLVED

    def cancel(self, operation: Operation | None = None) -> None:
        """Resolve the open requests of one operation, or of all, as cancelled (ACP-179)."""
        for pending in self.pending:
            if operation is None or pending.operation is operation:
                self._resolve(pending, PermissionOutcome(), None)

    def withdraw(self, request_id: str) -> bool:
        """Resolve one open request as cancelled: nobody is left who could see it. False if it is not open."""
        pending = self._pending.get(request_id)
        if pending is not None:
            self._resolve(pending, PermissionOutcome(), None)
        return pending is not None

    # Inside

    def _resolve(self, pending: PendingPermission, outcome: PermissionOutcome, voter: str | None) -> None:
        self._pending.pop(pending.request_id, None)
        self._resolved[pending.request_id] = outcome
        while len(self._resolved) > self._limits.remembered_permissions:
            self._resolved.popitem(last=False)
        pending.resolve(outcome)
        data: dict[str, Any] = {
            "requestId": pending.request_id,
            "sessionId": self._session_id(),
            "outcome": outcome.as_json(),
        }
        if voter is not None:
            data["voterClientId"] = voter
        self._publish(EventType.PERMISSION_RESOLVED, data, pending.operation, voter)

    def _check_voter(self, pending: PendingPermission, voter: Voter) -> None:
        reason = None
        if self.policy is PermissionPolicy.LOCAL_ONLY and not voter.local:
            reason = "remote_not_allowed"
        elif self.policy is PermissionPolicy.DESIGNATED:
            author = pending.operation.client_id if pending.operation is not None else None
            if author is not None and voter.client_id != author:
                reason = "designated_mismatch"
        if reason is None:
            return
        data: dict[str, Any] = {
            "requestId": pending.request_id,
            "sessionId": self._session_id(),
            "reason": reason,
        }
        if voter.client_id is not None:
            data["clientId"] = voter.client_id
        self._publish(EventType.PERMISSION_FORBIDDEN, data, pending.operation, voter.client_id)
        raise VoteForbidden(pending.request_id, self._session_id(), reason)

    def _quorum(self, pending: PendingPermission, outcome: PermissionOutcome, voter: Voter) -> bool:
        """Record one vote; True when its option has reached the quorum."""
        pending.votes[voter.client_id or voter.key] = outcome.option_id
        needed = self._limits.permission_quorum
        tallies = Counter(pending.votes.values())
        if tallies[outcome.option_id] >= needed:
            return True
        self._publish(
            EventType.PERMISSION_PARTIAL_VOTE,
            {
                "requestId": pending.request_id,
                "sessionId": self._session_id(),
                "votesReceived": len(pending.votes),
                "votesNeeded": needed,
                "quorum": needed,
                "optionTallies": {option: count for option, count in tallies.items() if option is not None},
            },
            pending.operation,
            voter.client_id,
        )
        return False
