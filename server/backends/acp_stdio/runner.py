"""The runner for ACP agents on stdio: which process serves which session, and when one is started."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import trio

from server.backends.acp_stdio.child import Child, ChildEnd
from server.backends.acp_stdio.diagnostics import AgentStatistics
from server.backends.acp_stdio.restart import Backoff, RestartPolicy
from server.backends.acp_stdio.session import AcpAgentSession
from server.backends.acp_stdio.spawn import ChildSettings, spawn
from server.telemetry import logger_of
from sessions.errors import AgentStartError, AgentStartTimeout, RunnerError, SessionError, Unsupported
from sessions.runner import CANCEL_GRACE, Capabilities, SessionHost, SessionSpec, StoredSession

__all__ = ["MAX_LIST_PAGES", "AcpAgentRunner", "AcpRunnerStatistics"]

MAX_LIST_PAGES: Final = 20
"""Pages of session/list asked for at most."""


@attrs.frozen(slots=True)
class AcpRunnerStatistics:
    """What the runner holds now."""

    processes: int
    sessions: int
    starts: int
    failures_in_a_row: int
    agents: tuple[AgentStatistics, ...]


@attrs.define(eq=False)
class _Launch:
    """One start of a process, awaited by all who need it. It goes on when a waiter is cancelled."""

    done: trio.Event = attrs.field(factory=trio.Event)
    child: Child | None = None
    error: SessionError | None = None
    abandoned: bool = False

    async def wait(self) -> Child:
        await self.done.wait()
        if self.child is None:
            assert self.error is not None
            raise self.error
        return self.child


class AcpAgentRunner:
    """Runs ``command`` and speaks ACP with it; a `Runner`.

    By default one process serves all sessions; with ``agent_per_session`` each has its own. A process is started on first
    need and ends ``idle_timeout`` seconds after its last session left (0: at once). Bounds: a start takes at most
    ``start_timeout`` plus the back-off (`RestartPolicy.maximum`), an end ``kill_grace`` + 1 s. ``env`` is added to the
    server's environment, less its own secrets. All times are seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        start_timeout: float = 10.0,
        session_timeout: float = 30.0,
        cancel_grace: float = CANCEL_GRACE,
        kill_grace: float = 2.0,
        idle_timeout: float = 0.0,
        restart: RestartPolicy | None = None,
        agent_per_session: bool = False,
        offer_files: bool = True,
        offer_terminals: bool = True,
    ) -> None:
        if isinstance(command, str) or not command:
            raise ValueError("command must be a non-empty sequence of arguments")
        self._settings = ChildSettings(
            command=tuple(command),
            env=dict(env or {}),
            name=name or os.path.basename(command[0]),
            kill_grace=kill_grace,
            cancel_grace=cancel_grace,
            idle_timeout=idle_timeout,
            offer_files=offer_files,
            offer_terminals=offer_terminals,
        )
        self._cwd = cwd
        self._start_timeout = start_timeout
        self._session_timeout = session_timeout
        self._agent_per_session = agent_per_session
        self._backoff = Backoff(restart if restart is not None else RestartPolicy())
        self._nursery: trio.Nursery | None = None
        self._children: set[Child] = set()
        self._current: Child | None = None
        self._launch: _Launch | None = None
        self._known: Capabilities | None = None
        self._starts = 0

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def command_line(self) -> str:
        return shlex.join(self._settings.command)

    def statistics(self) -> AcpRunnerStatistics:
        return AcpRunnerStatistics(
            processes=len(self._children),
            sessions=sum(child.sessions for child in self._children),
            starts=self._starts,
            failures_in_a_row=self._backoff.failures,
            agents=tuple(child.diagnostics.statistics() for child in self._children),
        )

    # The port

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the processes. Cancelled, it returns when none is left."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def capabilities(self) -> Capabilities:
        if self._known is None:
            self._known = (await self._child_for(None)).agent.capabilities
        else:
            await trio.lowlevel.checkpoint()
        return self._known

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> AcpAgentSession:
        child = await self._child_for_session(spec.cwd)
        self._check_supported(spec, child.agent.capabilities)
        session: AcpAgentSession | None = None
        with trio.move_on_after(self._session_timeout if spec.start in ("new", "fork") else float("inf")):
            session = await child.open_session(spec, host)
        if session is None:
            child.retire("session_start_unanswered")
            message = f"The agent did not start a session within {self._session_timeout:g} s"
            raise RunnerError(message, error_kind="init_timeout")
        await self._apply(spec, session)
        return session

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        if not (await self.capabilities()).list_sessions:
            return ()
        child = await self._child_for(cwd)
        found: list[StoredSession] = []
        params: dict[str, Any] = {"cwd": cwd}
        for _ in range(MAX_LIST_PAGES):
            listed, cursor = _listed(await child.peer.request("session/list", params))
            found += [entry for item in listed if (entry := _stored(item)) is not None]
            if not isinstance(cursor, str):
                break
            params["cursor"] = cursor
        return found

    # Inside

    def _check_supported(self, spec: SessionSpec, known: Capabilities) -> None:
        able = {"load": known.load_session, "resume": known.resume_session, "fork": known.fork_session}
        if not able.get(spec.start, True):
            raise Unsupported(f"The agent does not offer session/{spec.start}")

    async def _apply(self, spec: SessionSpec, session: AcpAgentSession) -> None:
        """Model and mode asked for with the session: a mode is a promise, a model a preference."""
        try:
            if spec.mode is not None:
                await session.set_mode(spec.mode)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._settings.kill_grace):
                await session.aclose()
            raise
        if spec.model is not None:
            try:
                await session.set_model(spec.model)
            except RunnerError as error:
                session.note("agent_model_refused", model=spec.model, error=error.message)

    async def _child_for_session(self, cwd: str) -> Child:
        if not self._agent_per_session:
            return await self._child_for(cwd)
        spare = self._current
        if spare is not None and spare.accepting:
            # It was started to know its capabilities; from here on it is this session's own.
            self._current = None
            return spare
        return await self._own_child(cwd)

    async def _child_for(self, cwd: str | None) -> Child:
        """The shared process: the current one, the one being started, or a new one."""
        current = self._current
        if current is not None and current.accepting:
            return current
        if self._launch is None:
            self._launch = self._begin_launch(cwd)
        return await self._launch.wait()

    async def _own_child(self, cwd: str) -> Child:
        launch = self._begin_launch(cwd)
        try:
            return await launch.wait()
        except trio.Cancelled:
            launch.abandoned = True
            if launch.child is not None:
                launch.child.end()
            raise

    def _begin_launch(self, cwd: str | None) -> _Launch:
        if self._nursery is None:
            raise AgentStartError("The agent runner is not running", error_kind="acp_channel_unavailable")
        launch = _Launch()
        self._nursery.start_soon(self._carry_out, launch, cwd, self._nursery)
        return launch

    async def _carry_out(self, launch: _Launch, cwd: str | None, nursery: trio.Nursery) -> None:
        try:
            launch.child = await self._start(cwd, nursery)
        except SessionError as error:
            launch.error = error
        except Exception as error:  # the barrier of one start: a fault in it must not end the engine
            logger_of("agent").error("agent_start_failed", agent=self.name, exc_info=error)
            launch.error = AgentStartError("Internal error", error_kind="acp_channel_unavailable")
        finally:
            if launch.child is None and launch.error is None:
                launch.error = AgentStartError("The agent runner is shutting down")
            if launch is self._launch:
                self._current, self._launch = launch.child, None
            elif launch.abandoned and launch.child is not None:
                launch.child.end()
            launch.done.set()

    async def _start(self, cwd: str | None, nursery: trio.Nursery) -> Child:
        await self._backoff.wait()
        begun = trio.current_time()
        child: Child | None = None
        error: AgentStartError = AgentStartTimeout(self._start_timeout)
        with trio.move_on_after(self._start_timeout):
            try:
                process = await spawn(self._settings, self._cwd or cwd)
                self._starts += 1
                hosted: Child = await nursery.start(self._host_child, process)
                child = hosted
                await hosted.handshake()
                self._known = hosted.agent.capabilities
                return hosted
            except AgentStartError as problem:
                error = problem
        self._backoff.failed(trio.current_time() - begun)
        if child is not None:
            child.end()
            await child.ended.wait()
        raise error

    async def _host_child(self, process: trio.Process, *, task_status: trio.TaskStatus[Child]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                child = Child(self._settings, process, nursery)
                self._children.add(child)
                try:
                    task_status.started(child)
                    await child.run()
                finally:
                    self._note_end(child)
        except Exception as error:  # the barrier of one process: a fault in minding it must not end the others
            logger_of("agent").error("agent_supervision_failed", agent=self.name, exc_info=error)

    def _note_end(self, child: Child) -> None:
        self._children.discard(child)
        if self._current is child:
            self._current = None
        # One that never got ready is counted where its start is given up.
        if child.ready and child.why is ChildEnd.STOPPED:
            self._backoff.ended_well()
        elif child.ready:
            self._backoff.failed(trio.current_time() - child.begun)


def _listed(raw: msgspec.Raw) -> tuple[list[Any], object]:
    """Entries and next cursor of one page. Raises `RunnerError`."""
    try:
        result = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RunnerError(f"The agent's answer is malformed: {error}", error_kind="protocol_error") from error
    listed = result.get("sessions") if isinstance(result, dict) else None
    if not isinstance(listed, list):
        raise RunnerError("The agent answered session/list without a list", error_kind="protocol_error")
    return listed, result.get("nextCursor")


def _stored(item: object) -> StoredSession | None:
    if not isinstance(item, dict) or not isinstance(item.get("sessionId"), str):
        return None
    title, updated = item.get("title"), item.get("updatedAt")
    return StoredSession(
        item["sessionId"],
        item["cwd"] if isinstance(item.get("cwd"), str) else "",
        title if isinstance(title, str) else None,
        updated if isinstance(updated, str) else None,
    )
