"""Operations carried out by the runner behind the engine: every submit is a prompt, its answer a stream of token chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from protocol.nnrp.enums import ErrorCode, OperationState
from protocol.nnrp.machines.session import Session as Machine
from server.nnrp.chunks import Chunks, stop_reason
from server.nnrp.following import Follower
from server.nnrp.running import Running
from server.nnrp.submit import Answer, Emit, OperationFailed, Submit
from server.nnrp.workers.prompts import prompt_text
from server.telemetry import log
from sessions.errors import RunnerError, SessionError
from sessions.events import Event, EventType
from sessions.harbour import Harbour
from sessions.observer import EndReason
from sessions.operation import CancelReason, PromptRequest
from sessions.operation import Operation as Turn
from sessions.operation import OperationState as TurnState
from sessions.session import Session

if TYPE_CHECKING:
    from server.nnrp.session import ServedSession

__all__ = ["AgentWorker"]

_OUTCOMES: Final = frozenset({EventType.TURN_COMPLETE, EventType.TURN_ERROR})


class AgentWorker:
    """One NNRP session in front of one engine session: of its own, started by the first operation, or with ``session`` of
    one that others use as well."""

    def __init__(self, harbour: Harbour, machine: Machine, session: Session | None = None) -> None:
        served: ServedSession = machine.attachment  # type: ignore[assignment]  # the session that asks for its worker
        self._harbour = harbour
        self._shared = session is not None
        self._session = session
        self._client_id = ""
        self._lock = trio.Lock()
        self._closed = False
        self._follower = served.follower = Follower(served, harbour.spawn, always=self._shared)
        if session is not None:
            self._client_id = session.register_client()
            self._follower.hold(session, self._client_id)

    def answer_nowait(self, submit: Submit) -> Answer | None:
        return None

    async def run(self, submit: Submit, emit: Emit) -> Answer:
        text = prompt_text(submit)
        session = await self._open()
        turn = _OwnTurn(submit, emit, Chunks(submit.session.terms))
        prompt: Turn | None = None
        try:
            prompt, _ = session.submit_prompt(
                PromptRequest([{"type": "text", "text": text}]), client_id=self._client_id
            )
            turn.prompt = prompt
            self._follower.turns[str(prompt.id)] = turn
            return await turn.wait_answer()
        except SessionError as problem:
            raise OperationFailed(str(problem), _code(problem)) from problem
        finally:
            if prompt is not None:
                self._follower.turns.pop(str(prompt.id), None)
                session.cancel_operation(prompt, CancelReason.USER)

    def close(self) -> None:
        """An engine session of its own ends with it; one that others use goes on."""
        self._closed = True
        self._follower.close()
        if self._session is None:
            return
        if self._shared:
            self._session.drop_client(self._client_id)
        else:
            self._session.close_soon(EndReason.CLIENT_CLOSE)

    async def _open(self) -> Session:
        async with self._lock:
            if self._session is None:
                try:
                    opened = await self._harbour.create(source={"wire": "nnrp"}, counted=False)
                except SessionError as problem:
                    log.warning("nnrp_session_not_started", problem=str(problem))
                    raise OperationFailed(str(problem), _code(problem)) from problem
                self._session, self._client_id = opened.session, opened.client_id
                if self._closed:
                    self._session.close_soon(EndReason.CLIENT_CLOSE)
                    raise OperationFailed("the session was closed")
                self._follower.hold(self._session, self._client_id)
            self._follower.begin()
            return self._session


class _OwnTurn:
    """One prompt of this session's client on its way through the engine."""

    def __init__(self, submit: Submit, emit: Emit, chunks: Chunks) -> None:
        self.prompt: Turn | None = None
        self._submit = submit
        self._emit = emit
        self._chunks = chunks
        self._answer: Answer | None = None
        self._failure: OperationFailed | None = None
        self._ended = trio.Event()

    async def wait_answer(self) -> Answer:
        """Raises `OperationFailed`."""
        await self._ended.wait()
        if self._answer is None:
            raise self._failure or OperationFailed("the turn failed")
        return self._answer

    async def pass_on(self, event: Event) -> None:
        if event.type not in _OUTCOMES:
            chunk, waits = self._chunks.of(event), self._chunks.waits
            if chunk is not None:
                await self._emit.partial(chunk, waits=waits)
            elif waits is not (self._submit.operation.state is OperationState.WAITING_TOOL):
                await self._emit.waiting_tool(waits)
            return
        assert self.prompt is not None
        try:
            self._answer = _ended(self.prompt, event, self._chunks)
        except OperationFailed as failure:
            self._failure = failure
        self._ended.set()
        running = self._submit.operation.attachment
        if isinstance(running, Running):
            # What comes next in the ring must not overtake it.
            await running.record.wait_settled()

    def give_up(self, why: str) -> None:
        self._failure = OperationFailed(why)
        self._ended.set()


def _code(problem: SessionError) -> ErrorCode:
    """An agent that cannot be started is no load that will pass; a bound of ours that is reached is (nnrp-wire 12.9)."""
    return ErrorCode.INTERNAL_ERROR if isinstance(problem, RunnerError) else ErrorCode.SERVER_BUSY


def _ended(turn: Turn, event: Event, chunks: Chunks) -> Answer:
    outcome = turn.outcome
    if outcome is None or outcome.state is TurnState.FAILED:
        message = "the turn failed" if outcome is None or outcome.error is None else outcome.error.message
        raise OperationFailed(message, ErrorCode.INTERNAL_ERROR, event.id)
    if outcome.state is not TurnState.COMPLETED:
        raise OperationFailed("the turn was cancelled", ErrorCode.FRAME_CANCELLED, event.id)
    return chunks.last(stop_reason(outcome.stop_reason), event.id)
