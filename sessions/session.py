"""One session: its ring, its operations, its prompt queue, its questions, and the runner behind it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from sessions.clients import ClientTable
from sessions.errors import (
    PromptAborted,
    PromptNotFound,
    RunnerError,
    RunnerLost,
    SessionNotFound,
    UnknownClient,
    WrongPhase,
)
from sessions.events import Event, EventType, encode
from sessions.idempotency import IdempotencyKeys
from sessions.log import LogWriter
from sessions.observer import EndReason, Note
from sessions.operation import (
    CancelReason,
    Operation,
    OperationId,
    OperationInput,
    OperationState,
    Outcome,
    Priority,
    PromptRequest,
)
from sessions.operations import Operations
from sessions.outcomes import cancelled_outcome, failure_of, outcome_of
from sessions.permissions import PermissionMediator
from sessions.phase import TRANSITIONS, SessionInput, SessionPhase
from sessions.prompts import PromptQueue, Turn
from sessions.ring import Ring
from sessions.runner import PermissionOutcome, RunnerSession, SessionSpec, TurnResult
from sessions.tasks import LazyNursery
from sessions.turn import TurnReport

if TYPE_CHECKING:
    from sessions.harbour import Harbour
    from sessions.subscription import Subscription

__all__ = ["Session"]

Work = Callable[[Operation], Awaitable[TurnResult]]
_UNTOLD: Final = frozenset({EndReason.ABANDONED, EndReason.IDLE})
"""Ends nobody is there to hear of. Whoever loads the session afterwards, to go on behind what he saw, must not read it either."""
TOLD_LEAD: Final = 0.025
"""Seconds by which the answer with a prompt's id precedes its outcome on another stream."""


class Session:
    """A session of a harbour (made by `Harbour` only); the `SessionHost` of its runner.

    The session outlives connections. It has no task until its first operation; then one nursery, inside the harbour's,
    holds its turn loop and its operations.
    """

    def __init__(self, harbour: Harbour, session_id: str, cwd: str, *, source: Mapping[str, str] | None = None) -> None:
        self._harbour = harbour
        limits = harbour.limits
        self.id = session_id
        self.cwd = cwd
        self.source = dict(source or {})
        self.counted = True
        """Whether the harbour's limits on sessions count this one."""
        self.phase = SessionPhase.STARTING
        self.created_at = self.updated_at = harbour.now_ms()
        self.display_name: str | None = None
        self.title_source: str | None = None
        self.agent_session_id: str | None = None
        self.available_commands: Any = None
        self.turn_error: dict[str, Any] | None = None
        self.end_reason: EndReason | None = None
        self.last_used = trio.current_time()
        self.clients = ClientTable(limits.max_clients)
        epoch = harbour.new_id()
        self._recording = None if harbour.log is None else LogWriter(harbour.log, epoch, self._note_log_failed)
        self.ring = Ring(
            limits,
            epoch,
            harbour.now_ms,
            log=self._recording,
            on_unserialisable=self._note_dropped,
            on_evicted=self._note_evicted,
        )
        self.operations = Operations(limits.remembered_prompts)
        self.prompts = PromptQueue(lambda: self.id, limits.max_pending_prompts)
        self.permissions = PermissionMediator(
            session_id=lambda: self.id,
            publish=self._publish_for,
            has_consumer=self.has_consumer,
            new_id=harbour.new_id,
            limits=limits,
            policy=harbour.permission_policy,
        )
        self.idempotency = IdempotencyKeys(limits.remembered_prompts)
        self._runner_session: RunnerSession | None = None
        self._holds: set[object] = set()
        self.followers: set[object] = set()
        """Readers with a cursor of their own, who need no place in the ring. While there is one, the session is in use."""
        self._current: Operation | None = None
        self._keep_id = False
        self._turns_running = False
        self._turn_held = False
        self._tasks = LazyNursery(harbour.spawn)
        self._closed = trio.Event()
        self._when_closed: list[Callable[[Session], object]] = []

    # What is there

    @property
    def session_id(self) -> str:
        return self.id

    @property
    def live(self) -> bool:
        return self.phase is SessionPhase.LIVE

    @property
    def wants_history(self) -> bool:
        return self.ring.head == 0

    @property
    def active(self) -> Operation | None:
        """The prompt that runs now."""
        return self._current

    @property
    def runner_session(self) -> RunnerSession:
        """Raises `SessionNotFound` unless the session is live."""
        if self._runner_session is None or not self.live:
            raise SessionNotFound(self.id)
        return self._runner_session

    def state(self) -> dict[str, Any]:
        """``models``, ``modes``, ``configOptions`` as the runner has them; empty when the session is not live."""
        return dict(self._runner_session.state()) if self._runner_session is not None else {}

    def has_consumer(self) -> bool:
        """Whether anybody could see a question asked now (ACP-178): a consuming subscriber, or a binding in its grace."""
        return bool(self._holds) or self.ring.consumers() > 0

    def prompt(self, prompt_id: str) -> Operation:
        """An accepted prompt, also a settled one while it is remembered. Raises `PromptNotFound`."""
        operation = self.operations.get(prompt_id)
        if operation is None or not isinstance(operation.request, PromptRequest):
            raise PromptNotFound(prompt_id)
        return operation

    # Clients and readers

    def register_client(self) -> str:
        """Issue a client id (REST-004). It may be forgotten in favour of later ones, unless it is kept (`ClientTable`)."""
        client_id = f"client_{self._harbour.new_id()}"
        self.clients.add(client_id, self._harbour.now_ms())
        self.touch()
        return client_id

    def check_client(self, client_id: str | None) -> None:
        """Raises `UnknownClient` for an id this session did not issue; None is always allowed (REST-004)."""
        if client_id is not None and not self.clients.use(client_id):
            raise UnknownClient(self.id, client_id)

    def heartbeat(self, client_id: str | None = None) -> int:
        """Update last-seen; returns the wall clock in ms (REST-053)."""
        self.check_client(client_id)
        now = self._harbour.now_ms()
        if client_id is not None:
            self.clients.see(client_id, now)
        self.touch()
        return now

    def drop_client(self, client_id: str | None) -> bool:
        """Forget a client id (REST-051). False if it was not registered."""
        self.touch()
        return client_id is not None and self.clients.drop(client_id)

    def leave(self, client_id: str | None) -> None:
        """An owner is gone for good: forget its client id, and close the session when nobody else has one or uses it (ACP-153,
        C-066). A closed session stays loadable."""
        self.drop_client(client_id)
        if not self.clients and not self.in_use:
            self.close_soon(EndReason.ABANDONED)

    @property
    def in_use(self) -> bool:
        """Whether somebody reads, waits or is waited for. A client id alone is no use, nor is a prompt being cancelled."""
        return bool(
            self.ring.subscribers
            or self._holds
            or self.followers
            or self._turn_held
            or self.prompts.first
            or self.permissions.pending
            or any(each.cancel_reason is None for each in self.operations)
        )

    def now_ms(self) -> int:
        """Wall clock, ms since 1970."""
        return self._harbour.now_ms()

    def touch(self) -> None:
        self.last_used = trio.current_time()

    def hold(self, holder: object) -> None:
        """A binding in its grace counts as a consumer until `release`."""
        self._holds.add(holder)

    def release(self, holder: object) -> None:
        self._holds.discard(holder)
        self.touch()

    def subscribe(
        self,
        cursor: int | None = None,
        *,
        epoch: str | None = None,
        max_queued: int | None = None,
        consumer: bool = True,
    ) -> Subscription:
        """Read the session's events; see `Ring.subscribe`."""
        self.touch()
        return self.ring.subscribe(cursor, epoch=epoch, max_queued=max_queued, consumer=consumer)

    # The runner's side (`SessionHost`)

    def bind(self, agent_session_id: str) -> str:
        self.agent_session_id = agent_session_id
        if not self._keep_id:
            self.id = self._harbour.adopt_id(self, agent_session_id)
        return self.id

    def publish(
        self,
        type: str,
        data: Mapping[str, Any] | msgspec.Raw,
        *,
        prompt_id: str | None = None,
        originator: str | None = None,
    ) -> Event | None:
        """Append to the ring; nothing happens (None) once the session is closed."""
        if self.ring.closed:
            return None
        self.updated_at = self._harbour.now_ms()
        return self.ring.publish(type, data, prompt_id=prompt_id, originator=originator)

    def update(
        self, update: Mapping[str, Any] | msgspec.Raw, extra: Mapping[str, msgspec.Raw] | None = None
    ) -> Event | None:
        if not isinstance(update, msgspec.Raw):
            self._note_update(update)
            try:
                update = msgspec.Raw(encode(update))
            except (TypeError, ValueError, RecursionError, OverflowError) as problem:
                self._note_dropped(EventType.SESSION_UPDATE, problem)
                return None
        elif b'"available_commands_update"' in bytes(update)[:4096]:
            self._note_raw_update(update)
        parts = [b'{"sessionId":', encode(self.id), b',"update":', bytes(update)]
        for key, value in (extra or {}).items():
            parts += [b",", encode(key), b":", bytes(value)]
        parts.append(b"}")
        return self._publish_for(EventType.SESSION_UPDATE, msgspec.Raw(b"".join(parts)), self._current, None)

    async def ask_permission(
        self,
        tool_call: Mapping[str, Any] | msgspec.Raw,
        options: Sequence[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> PermissionOutcome:
        return await self.permissions.ask(tool_call, options, self._current, meta)

    def died(self, reason: str, *, exit_code: int | None = None, signal: str | None = None) -> None:
        if (self.phase, SessionInput.DIED) not in TRANSITIONS:
            return
        error = RunnerLost(reason, error_kind="acp_channel_unavailable")
        for operation in self.operations:
            self._settle(operation, Outcome(OperationState.FAILED, error=error, reason=CancelReason.SESSION_DIED))
            operation.scope.cancel()
        self.permissions.cancel()
        data: dict[str, Any] = {"sessionId": self.id, "reason": reason}
        if exit_code is not None:
            data["exitCode"] = exit_code
        if signal is not None:
            data["signalCode"] = signal
        self.publish(EventType.SESSION_DIED, data)
        self._finish(SessionInput.DIED, EndReason.DIED)

    # Prompts

    def submit_prompt(
        self,
        request: PromptRequest,
        *,
        client_id: str | None = None,
        deadline: float | None = None,
        aborted: bool = False,
        idempotency: tuple[str, bytes] | None = None,
    ) -> tuple[Operation, int]:
        """Admit a prompt, in one synchronous step (ACP-212). Returns it and the ring's head before it (REST-062).

        ``deadline`` (seconds) only shortens a configured one (REST-061). ``idempotency`` is a key and the digest of the
        body: a known key gives the prompt that was accepted under it. Raises `SessionNotFound`, `PromptAborted`,
        `PromptQueueFull`, `UnknownClient`, `IdempotencyKeyReused`, `HarbourDraining`.
        """
        self._require_live()
        self.check_client(client_id)
        if aborted:
            raise PromptAborted("the request was aborted before admission")
        if idempotency is not None and (known := self.idempotency.find(*idempotency)) is not None:
            return known
        self._harbour.check_admitting()
        configured = self._harbour.limits.prompt_deadline
        limit = min(configured, deadline or math.inf) if configured else math.inf
        operation = Operation(
            self._harbour.new_id(),
            request,
            client_id=client_id,
            deadline=limit,
            accepted_at=self._harbour.now_ms(),
            received=trio.current_time(),
        )
        try:
            self.prompts.admit(operation)
        except Exception:
            self._harbour.observer.note(
                Note.PROMPT_REFUSED, session_id=self.id, pending=self.prompts.count, limit=self.prompts.limit
            )
            raise
        self.operations.add(operation)
        self.touch()
        if self.display_name is None:
            self.display_name = request.title()
        head = self.ring.head
        if idempotency is not None:
            self.idempotency.store(*idempotency, operation, head)
        if self._current is not None or self.prompts.waiting > 1:
            TurnReport(self, operation).added()
        self._harbour.observer.note(
            Note.PROMPT_ACCEPTED, session_id=self.id, prompt_id=operation.id, pending=self.prompts.count
        )
        if limit < math.inf:
            self._tasks.spawn(self._expire, operation)
        self._run_turns_soon()
        return operation, head

    def tell(self, operation: Operation) -> Callable[[], object]:
        """Hold back the outcome until the returned function was called, and `TOLD_LEAD` seconds more (`Operation.told`)."""
        told = operation.told = trio.Event()

        async def lead() -> None:
            await trio.sleep(TOLD_LEAD)
            told.set()

        return lambda: None if operation.settled else self._tasks.spawn(lead)

    def cancel_prompt(self, reason: CancelReason = CancelReason.USER) -> bool:
        """Cancel the running prompt, not the queue (REST-069). False when nothing runs; then nothing is remembered.

        A prompt that was accepted with nothing before it runs from then on (REST-067), whether its task has had its first
        turn or not: a cancel sent right behind it is meant for it.
        """
        self.touch()
        running = self._current
        if running is None and not self._turn_held:
            first = self.prompts.first
            running = first if isinstance(first, Operation) else None
        return running is not None and self.cancel_operation(running, reason)

    def cancel_operation(self, operation: Operation, reason: CancelReason = CancelReason.USER) -> bool:
        """Cancel one operation, waiting or running. False if it is over or being cancelled already."""
        started = operation.state is not OperationState.ACCEPTED
        if not operation.cancel(reason):
            return False
        self.permissions.cancel(operation)
        if not started:
            self._settle(operation, Outcome(OperationState.CANCELLED, stop_reason="cancelled", reason=reason))
        elif isinstance(operation.request, PromptRequest):
            TurnReport(self, operation).cancel_asked()
        return True

    def remove_prompt(self, prompt_id: str) -> bool:
        """Take a waiting prompt out of the queue (REST-068). False if it runs or is over. Raises `PromptNotFound`."""
        operation = self.prompt(prompt_id)
        return operation.state is OperationState.ACCEPTED and self.cancel_operation(operation, CancelReason.REMOVED)

    def queue_turn(self) -> Turn:
        """A place in the prompt FIFO that takes no slot (ACP-214). It also comes when the session ends."""
        self._require_live()
        turn = self.prompts.queue_turn()
        self._run_turns_soon()
        return turn

    # Other operations

    def start_operation(
        self,
        operation_id: OperationId,
        request: Any,
        *,
        parent_id: OperationId | None = None,
        group_id: OperationId | None = None,
        priority: Priority = Priority.STANDARD,
        deadline: float = math.inf,
        client_id: str | None = None,
        work: Work | None = None,
    ) -> Operation:
        """Start an operation beside the queue: another wire's submit, or a part of a running operation.

        ``work`` defaults to the runner's `RunnerSession.run`. Synchronous: the operation is registered, with its scope,
        when this returns. Raises `OperationExists`, `UnknownOperation` (parent), `SessionNotFound`.
        """
        self._require_live()
        self._harbour.check_admitting()
        operation = Operation(
            operation_id,
            request,
            parent_id=parent_id,
            group_id=group_id,
            priority=priority,
            deadline=deadline,
            client_id=client_id,
            accepted_at=self._harbour.now_ms(),
            received=trio.current_time(),
        )
        self.operations.add(operation)
        self.touch()
        self._tasks.spawn(self._operate, operation, work)
        return operation

    # Model, mode, metadata

    async def set_model(self, model_id: str, client_id: str | None = None) -> Mapping[str, Any]:
        """Switch the model; publishes ``model_switched`` or ``model_switch_failed`` (REST-120). Raises `RunnerError`."""
        try:
            result = await self.runner_session.set_model(model_id)
        except RunnerError as problem:
            details = problem.data.get("details") if isinstance(problem.data, Mapping) else None
            self.publish(
                EventType.MODEL_SWITCH_FAILED,
                {"sessionId": self.id, "requestedModelId": model_id, "error": details or problem.message},
                originator=client_id,
            )
            raise
        self.publish(EventType.MODEL_SWITCHED, {"sessionId": self.id, "modelId": model_id}, originator=client_id)
        return result

    async def set_mode(self, mode_id: str, client_id: str | None = None) -> dict[str, Any]:
        """Switch the approval mode; publishes ``approval_mode_changed`` (REST-121). Raises `RunnerError`."""
        previous = self._mode()
        await self.runner_session.set_mode(mode_id)
        self._announce_mode(previous, mode_id, client_id)
        return {"sessionId": self.id, "mode": mode_id, "previous": previous, "persisted": False}

    async def set_config_option(self, config_id: str, value: str, client_id: str | None = None) -> Mapping[str, Any]:
        """Set a configuration option; ``mode`` and ``model`` are announced like their own calls. Raises `RunnerError`."""
        previous = self._mode()
        result = await self.runner_session.set_config_option(config_id, value)
        if config_id == "model":
            self.publish(EventType.MODEL_SWITCHED, {"sessionId": self.id, "modelId": value}, originator=client_id)
        elif config_id == "mode":
            self._announce_mode(previous, value, client_id)
        return result

    def rename(self, display_name: str, client_id: str | None = None) -> dict[str, Any]:
        """Set the display name; publishes ``session_metadata_updated`` (REST-122)."""
        self.display_name, self.title_source = display_name, "manual"
        data = {"sessionId": self.id, "displayName": display_name, "titleSource": "manual"}
        self.publish(EventType.SESSION_METADATA_UPDATED, data, originator=client_id)
        return {"sessionId": self.id, "displayName": display_name}

    # Start and end

    async def start(self, spec: SessionSpec, *, keep_id: bool) -> None:
        """Bring up the runner's side. For the harbour only. Raises what `Runner.start_session` raises."""
        self._keep_id = keep_id
        try:
            runner_session = await self._harbour.runner.start_session(spec, self)
        except BaseException:
            if self.phase is SessionPhase.STARTING:
                self._finish(SessionInput.START_FAILED, EndReason.START_FAILED)
            raise
        if self.phase is not SessionPhase.STARTING:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._harbour.limits.close_grace):
                await runner_session.aclose()
            raise RunnerLost("The session ended while it was being started", error_kind="acp_channel_unavailable")
        self._runner_session = runner_session
        self._step(SessionInput.STARTED)
        self.touch()
        if self._recording is not None:
            self._harbour.record(self._recording, self.id)
        self._harbour.observer.note(Note.SESSION_STARTED, session_id=self.id, cwd=self.cwd, start=spec.start)

    def reopen(self) -> None:
        """A closed session is to be loaded: back to ``starting``, numbering goes on. For the harbour only."""
        self._step(SessionInput.LOADED)
        self._tasks.reopen()
        self._closed = trio.Event()
        self.end_reason = None
        self.ring.reopen()

    def close_soon(self, reason: EndReason, closed_by: str | None = None) -> None:
        """Ask for the end, at once and without waiting. Nothing new is admitted from here on. Idempotent."""
        if (self.phase, SessionInput.CLOSE_ASKED) not in TRANSITIONS:
            return
        self._step(SessionInput.CLOSE_ASKED)
        self.end_reason = reason
        cancel = CancelReason.SHUTDOWN if reason is EndReason.SHUTDOWN else CancelReason.SESSION_CLOSED
        for operation in self.operations:
            self.cancel_operation(operation, cancel)
        self.permissions.cancel()
        self._harbour.spawn(self._close, reason, closed_by)

    async def wait_closed(self) -> None:
        """Wait until the session is over and everything about it has been published."""
        await self._closed.wait()

    def when_closed(self, callback: Callable[[Session], object]) -> None:
        """Call ``callback(session)`` synchronously when the session is over, after its last event. Once; a session that is
        loaded again has forgotten it."""
        self._when_closed.append(callback)

    def forget_closed(self, callback: Callable[[Session], object]) -> None:
        """Take back a `when_closed`; unknown ones are ignored."""
        if callback in self._when_closed:
            self._when_closed.remove(callback)

    async def close(self, reason: EndReason = EndReason.CLIENT_CLOSE, closed_by: str | None = None) -> None:
        """Close for everybody: operations end, ``session_closed`` is published, streams end (REST-050).

        Cancelling the wait does not stop the closing.
        """
        self.close_soon(reason, closed_by)
        await self.wait_closed()

    # Inside

    def _step(self, given: SessionInput) -> None:
        try:
            self.phase = TRANSITIONS[self.phase, given]
        except KeyError:
            raise WrongPhase(self.phase, given) from None

    def _require_live(self) -> None:
        if self.phase is not SessionPhase.LIVE:
            raise SessionNotFound(self.id)

    def _publish_for(self, type: str, data: Any, operation: Operation | None, originator: str | None) -> Event | None:
        prompt_id = operation.id if operation is not None and isinstance(operation.id, str) else None
        author = originator if originator is not None or operation is None else operation.client_id
        return self.publish(type, data, prompt_id=prompt_id, originator=author)

    def _mode(self) -> Any:
        return (self.state().get("modes") or {}).get("currentModeId")

    def _announce_mode(self, previous: Any, mode_id: str, client_id: str | None) -> None:
        changed = {"sessionId": self.id, "previous": previous, "next": mode_id, "persisted": False}
        self.publish(EventType.APPROVAL_MODE_CHANGED, changed, originator=client_id)

    def _note_dropped(self, type: str, problem: Exception) -> None:
        self._harbour.observer.note(Note.EVENT_DROPPED, session_id=self.id, type=type, problem=repr(problem))

    def _note_evicted(self, cursor: int) -> None:
        self._harbour.observer.note(Note.SUBSCRIBER_EVICTED, session_id=self.id, cursor=cursor)

    def _note_log_failed(self, problem: Exception) -> None:
        self._harbour.observer.note(Note.LOG_FAILED, session_id=self.id, problem=repr(problem))
        self.publish(EventType.SESSION_RECORDING_DEGRADED, {"sessionId": self.id, "reason": "log_failed"})

    def _note_raw_update(self, update: msgspec.Raw) -> None:
        try:
            value = msgspec.json.decode(bytes(update))
        except ValueError:
            return
        if isinstance(value, dict):
            self._note_update(value)

    def _note_update(self, update: Mapping[str, Any]) -> None:
        if update.get("sessionUpdate") == "available_commands_update":
            self.available_commands = update.get("availableCommands")

    def _run_turns_soon(self) -> None:
        if not self._turns_running:
            self._turns_running = True
            self._tasks.spawn(self._run_turns)

    async def _expire(self, operation: Operation) -> None:
        """Fail a prompt that is still waiting at its deadline; one that runs has the deadline on its scope."""
        with trio.move_on_at(operation.received + operation.deadline):
            await operation.wait_settled()
            return
        if operation.state is OperationState.ACCEPTED:
            operation.scope.deadline = operation.received + operation.deadline
            self._settle(operation, cancelled_outcome(operation))

    async def _run_turns(self) -> None:
        try:
            while (turn := self.prompts.next_nowait()) is not None:
                if isinstance(turn, Turn):
                    self._turn_held = True
                    turn.come()
                    await turn.wait_over()
                    self._turn_held = False
                else:
                    await self._run_prompt(turn)
        finally:
            self._turns_running = self._turn_held = False

    async def _run_prompt(self, operation: Operation) -> None:
        report = TurnReport(self, operation)
        self._current = operation
        try:
            report.started()
            await self._operate(operation, None)
        finally:
            self._current = None
        report.completed()

    async def _operate(self, operation: Operation, work: Work | None) -> None:
        """Carry out one operation. The barrier: whatever happens in here becomes that operation's outcome."""
        outcome: Outcome | None = None
        if operation.settled:
            return
        operation.step(OperationInput.START)
        operation.started = trio.current_time()
        operation.scope.deadline = operation.received + operation.deadline
        try:
            with operation.scope:
                outcome = await self._attempt(operation, work)
                if operation.told is not None:
                    await operation.told.wait()
        finally:
            # Without an outcome the scope, or one further out, was cancelled.
            self._settle(operation, outcome or cancelled_outcome(operation))

    async def _attempt(self, operation: Operation, work: Work | None) -> Outcome:
        try:
            run = work if work is not None else self.runner_session.run
            return outcome_of(operation, await run(operation))
        except RunnerError as problem:
            return failure_of(operation, problem)
        except Exception as problem:
            self._harbour.observer.note(Note.RUNNER_FAILED, session_id=self.id, problem=repr(problem))
            return failure_of(operation, RunnerError("Internal error", error_kind="internal"))

    def _settle(self, operation: Operation, outcome: Outcome) -> None:
        """The one place where an operation ends: outcome, permission requests, terminal event."""
        if operation.settled:
            return
        self.permissions.cancel(operation)
        operation.settle(outcome)
        self.operations.note_settled(operation)
        self.touch()
        TurnReport(self, operation).ended(outcome)
        if isinstance(operation.request, PromptRequest):
            operation.request = operation.request.remembered()
        self._harbour.observer.note(
            Note.OPERATION_SETTLED,
            session_id=self.id,
            operation_id=operation.id,
            state=outcome.state,
            reason=outcome.reason,
            seconds=trio.current_time() - operation.received,
        )

    async def _close(self, reason: EndReason, closed_by: str | None) -> None:
        grace = self._harbour.limits.close_grace
        with trio.move_on_after(grace, shield=True):
            for operation in self.operations:
                await operation.wait_settled()
        if self._runner_session is not None:
            with trio.move_on_after(grace, shield=True):
                await self._runner_session.aclose()
        for operation in self.operations:
            # Its runner did not end in good order: the outcome does not wait for it.
            self._settle(operation, cancelled_outcome(operation))
        if self.phase is not SessionPhase.CLOSING:
            return
        if reason not in _UNTOLD or self.ring.subscribers or self.followers:
            data: dict[str, Any] = {"sessionId": self.id, "reason": reason}
            if closed_by is not None:
                data["closedBy"] = closed_by
            self.publish(EventType.SESSION_CLOSED, data)
        self._finish(SessionInput.LAST_DONE, reason)

    def _finish(self, given: SessionInput, reason: EndReason) -> None:
        self._step(given)
        self.end_reason = reason
        self._runner_session = None
        self.clients.clear()
        self.prompts.end()
        self.ring.close()
        if self._recording is not None:
            self._recording.close()
        self._tasks.stop()
        self._closed.set()
        self._harbour.note_ended(self)
        self._harbour.observer.note(Note.SESSION_ENDED, session_id=self.id, reason=reason)
        callbacks, self._when_closed = self._when_closed, []
        for callback in callbacks:
            callback(self)
