"""The harbour owns every session of the process: make, find, restore, reap, shut down."""

from __future__ import annotations

import os
import random as random_module
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import attrs
import trio

from sessions.archive import Archive
from sessions.errors import (
    HarbourDraining,
    RestoreInProgress,
    RunnerError,
    SessionConflict,
    SessionLimitExceeded,
    SessionNotFound,
    SessionRestoreTimeout,
    Unsupported,
    WorkspaceMismatch,
)
from sessions.events import EventType
from sessions.limits import Limits
from sessions.log import LogPort, LogWriter
from sessions.observer import EndReason, Note, NullObserver, Observer
from sessions.permissions import PermissionPolicy
from sessions.phase import SessionPhase
from sessions.runner import Runner, SessionSpec
from sessions.session import Session

__all__ = ["Harbour", "HarbourStatistics", "Opened", "open_harbour", "wall_clock_ms"]

_NO_SUCH_SESSION = (-32002, -32602, -32603)
"""How agents say that they know no session with this id; ACP has no code of its own for it."""


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@attrs.frozen(slots=True)
class HarbourStatistics:
    """A look at the harbour: counts of what is live."""

    sessions: int
    archived: int
    archived_bytes: int
    active_prompts: int
    pending_permissions: int
    clients: int
    subscribers: int
    last_activity: float
    """Trio's clock."""


@attrs.frozen(slots=True)
class Opened:
    """What create, load and resume answer."""

    session: Session
    attached: bool
    """True when the session was live before."""
    client_id: str


class Harbour:
    """Made by `open_harbour`. All methods belong to the Trio thread; what is not ``async`` never blocks."""

    def __init__(
        self,
        nursery: trio.Nursery,
        runner: Runner,
        *,
        workspaces: Sequence[str],
        limits: Limits,
        permission_policy: PermissionPolicy,
        observer: Observer,
        now_ms: Callable[[], int],
        random: random_module.Random,
        log: LogPort | None = None,
    ) -> None:
        self._nursery = nursery
        self.runner = runner
        self.workspaces = tuple(workspaces)
        self.limits = limits
        self.permission_policy = permission_policy
        self.observer = observer
        self.now_ms = now_ms
        self.log = log
        self._random = random
        self._recordings: dict[str, trio.Event] = {}
        self._sessions: dict[str, Session] = {}
        self._starting: set[str] = set()
        self._starting_uncounted = 0
        self._shared: dict[str, Session] = {}
        self._opening_shared: dict[str, trio.Event] = {}
        self._restoring: set[str] = set()
        self._opening: set[trio.CancelScope] = set()
        """Around everything that waits for a session to come up."""
        self._archive = Archive(limits.archived_sessions, limits.archived_bytes)
        self._draining = False

    # What is there

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def sessions(self) -> list[Session]:
        """The live ones (and those that are starting or closing), the oldest first."""
        return list(self._sessions.values())

    @property
    def archived(self) -> list[Session]:
        """Closed and still loadable, the oldest first."""
        return list(self._archive)

    def find(self, session_id: str) -> Session:
        """A live session. Raises `SessionNotFound`."""
        session = self._sessions.get(session_id)
        if session is None or session.phase is not SessionPhase.LIVE:
            raise SessionNotFound(session_id)
        return session

    def statistics(self) -> HarbourStatistics:
        sessions = self._sessions.values()
        return HarbourStatistics(
            sessions=len(sessions),
            archived=len(self._archive),
            archived_bytes=self._archive.bytes,
            active_prompts=sum(each.prompts.count for each in sessions),
            pending_permissions=sum(len(each.permissions.pending) for each in sessions),
            clients=sum(len(each.clients) for each in sessions),
            subscribers=sum(each.ring.subscribers for each in sessions),
            last_activity=max((each.last_used for each in sessions), default=0.0),
        )

    # Make, find, restore

    async def create(
        self,
        cwd: str | None = None,
        *,
        shared: bool = False,
        session_id: str | None = None,
        mcp_servers: Sequence[Any] = (),
        model: str | None = None,
        mode: str | None = None,
        source: Mapping[str, str] | None = None,
        meta: Mapping[str, Any] | None = None,
        counted: bool = True,
    ) -> Opened:
        """A new session, or with ``shared`` the workspace's shared one (REST-021). ``counted`` False: for a wire that bounds
        its sessions itself; the limits on sessions neither see nor refuse it.

        Raises `WorkspaceMismatch`, `SessionLimitExceeded`, `SessionConflict`, `HarbourDraining`, and what
        `Runner.start_session` raises. Cancelled in between: a session made for this call is closed again (REST-026).
        """
        workspace = self.check_workspace(cwd)
        while shared and session_id is None:
            found = self._shared.get(workspace)
            if found is not None and found.live:
                return Opened(found, True, found.register_client())
            opening = self._opening_shared.get(workspace)
            if opening is None:
                break
            await opening.wait()
        self.check_admitting()
        if counted:
            self._check_room(workspace)
        if session_id is not None:
            self._check_free(session_id)
        spec = SessionSpec(
            workspace,
            agent_session_id=session_id,
            mcp_servers=mcp_servers,
            model=model,
            mode=mode,
            meta=meta,
        )
        session = Session(self, session_id or self.new_id(), workspace, source=source)
        session.counted = counted
        opened = trio.Event()
        if shared and session_id is None:
            self._opening_shared[workspace] = opened
        try:
            with self._given_up_by_the_drain():
                await self._start(session, spec, keep_id=session_id is not None)
            if shared and session_id is None:
                self._shared[workspace] = session
        finally:
            if self._opening_shared.get(workspace) is opened:
                del self._opening_shared[workspace]
            opened.set()
        return Opened(session, False, session.register_client())

    async def restore(
        self, session_id: str, action: Literal["load", "resume"], cwd: str | None = None, mode: str | None = None
    ) -> Opened:
        """Attach to a live session, or bring back a closed or stored one (REST-030).

        Raises `SessionNotFound`, `RestoreInProgress`, `SessionRestoreTimeout`, `WorkspaceMismatch`,
        `SessionLimitExceeded`, `HarbourDraining`, and what `Runner.start_session` raises.
        """
        workspace = self.check_workspace(cwd)
        found = self._sessions.get(session_id)
        if found is not None and found.phase is SessionPhase.CLOSING:
            await found.wait_closed()
            found = self._sessions.get(session_id)
        if found is not None and found.live:
            return Opened(found, True, found.register_client())
        if found is not None or session_id in self._restoring or session_id in self._starting:
            raise RestoreInProgress(session_id)
        self.check_admitting()
        self._check_room(workspace)
        self._restoring.add(session_id)
        try:
            with self._given_up_by_the_drain(), trio.fail_after(self.limits.restore_timeout):
                session = await self._bring_back(session_id, action, workspace, mode)
        except trio.TooSlowError:
            raise SessionRestoreTimeout(session_id, action, self.limits.restore_timeout) from None
        finally:
            self._restoring.discard(session_id)
        return Opened(session, False, session.register_client())

    async def fork(self, session: Session, display_name: str | None = None) -> Opened:
        """A new session that continues this one's conversation, when its turn in the prompt FIFO comes (ACP-214).

        Publishes ``session_branched`` on the old one. Raises `Unsupported` when the runner cannot fork, and what `create`
        raises. Cancelled in between: nothing is left (REST-026).
        """
        with self._given_up_by_the_drain():
            branch = await self._branch(session)
        if display_name is not None:
            branch.rename(display_name)
        session.publish(
            EventType.SESSION_BRANCHED,
            {"sourceSessionId": session.id, "newSessionId": branch.id, "displayName": branch.display_name},
        )
        return Opened(branch, False, branch.register_client())

    async def remove(self, session_id: str) -> bool:
        """Close a session and forget its history. False if neither live nor kept."""
        session = self._sessions.get(session_id)
        if session is not None:
            await session.close()
        await self._forget_log(session_id)
        return self._archive.remove(session_id) is not None or session is not None

    def check_workspace(self, cwd: str | None) -> str:
        """The workspace to use: the primary one by default. Raises `WorkspaceMismatch`."""
        if cwd is None:
            return self.workspaces[0]
        normal = os.path.normpath(cwd)
        if normal not in self.workspaces:
            raise WorkspaceMismatch(self.workspaces[0], cwd)
        return normal

    def check_admitting(self) -> None:
        """Raises `HarbourDraining` once the shutdown has begun."""
        if self._draining:
            raise HarbourDraining

    def start_draining(self) -> None:
        """Admit nothing new from here on; what runs goes on."""
        self._draining = True

    async def drain(self, grace: float) -> None:
        """Admit nothing new, give up what is being opened, close every session, at most ``grace`` seconds long."""
        self.start_draining()
        for scope in self._opening:
            scope.cancel()
        with trio.move_on_after(grace):
            async with trio.open_nursery() as nursery:
                for session in self.sessions:
                    nursery.start_soon(session.close, EndReason.SHUTDOWN)
            for recorded in list(self._recordings.values()):
                await recorded.wait()

    # For the sessions

    def new_id(self) -> str:
        """A random UUID (version 4) from the harbour's source of randomness."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """A task in the harbour's nursery."""
        self._nursery.start_soon(function, *args)

    def record(self, writer: LogWriter, session_id: str) -> None:
        """Store what a session publishes, until it is closed and everything is stored."""
        writer.open()
        if session_id not in self._recordings:
            self._recordings[session_id] = trio.Event()
            self.spawn(self._record, writer, session_id)

    def adopt_id(self, session: Session, agent_session_id: str) -> str:
        """The public id for a session whose runner calls it ``agent_session_id``.

        An agent's UUID is adopted, so that the session can be found again after a restart; anything else may be
        guessable or clash, and stays private behind our own.
        """
        try:
            canonical = str(uuid.UUID(agent_session_id)) == agent_session_id
        except ValueError:
            canonical = False
        if not canonical or agent_session_id in self._sessions or self._archive.get(agent_session_id) is not None:
            return session.id
        self._starting.discard(session.id)
        self._starting.add(agent_session_id)
        return agent_session_id

    def note_ended(self, session: Session) -> None:
        """A session is over: it leaves the live ones and is kept in the archive."""
        if self._sessions.get(session.id) is not session:
            # It never came to live; whoever has its id now goes on.
            return
        del self._sessions[session.id]
        if self._shared.get(session.cwd) is session:
            del self._shared[session.cwd]
        self._archive.add(session)

    # Inside

    async def _record(self, writer: LogWriter, session_id: str) -> None:
        try:
            await writer.run(session_id)
        finally:
            self._recordings.pop(session_id).set()

    async def _forget_log(self, session_id: str) -> None:
        if self.log is None:
            return
        recorded = self._recordings.get(session_id)
        if recorded is not None:
            await recorded.wait()
        try:
            await self.log.forget(session_id)
        except OSError as problem:
            # The session is gone all the same; what is left is for whoever looks after the log.
            self.observer.note(Note.LOG_FAILED, session_id=session_id, problem=repr(problem))

    def _check_room(self, workspace: str) -> None:
        total, local = self.limits.max_total_sessions, self.limits.max_sessions_per_workspace
        starting = len(self._starting) - self._starting_uncounted
        # Counted only for a limit: without one there may be too many sessions to look at each time.
        if (
            local
            and sum(each.counted and each.cwd == workspace for each in self._sessions.values()) + starting >= local
        ):
            raise SessionLimitExceeded(local, "workspace")
        if total and sum(each.counted for each in self._sessions.values()) + starting >= total:
            raise SessionLimitExceeded(total, "total")

    def _check_free(self, session_id: str) -> None:
        if session_id in self._sessions or session_id in self._starting or session_id in self._restoring:
            raise SessionConflict(session_id, "live")
        if self._archive.get(session_id) is not None:
            raise SessionConflict(session_id, "stored")

    @contextmanager
    def _given_up_by_the_drain(self) -> Iterator[None]:
        """An agent may take longer to start than the process has left: whoever waits for it is told why it will not come."""
        with trio.CancelScope() as scope:
            self._opening.add(scope)
            try:
                yield
            finally:
                self._opening.discard(scope)
        if scope.cancelled_caught:
            raise HarbourDraining

    async def _branch(self, session: Session) -> Session:
        capabilities = await self.runner.capabilities()
        if not capabilities.fork_session:
            raise Unsupported("The agent behind this server cannot fork a session", error_kind="unsupported")
        async with session.queue_turn():
            if not session.live:
                # Closed while the fork waited for its turn: there is nothing left to go on from.
                raise SessionNotFound(session.id)
            self.check_admitting()
            self._check_room(session.cwd)
            branch = Session(self, self.new_id(), session.cwd)
            await self._start(branch, SessionSpec(session.cwd, "fork", session.agent_session_id), keep_id=False)
        return branch

    async def _start(self, session: Session, spec: SessionSpec, *, keep_id: bool) -> None:
        self._starting.add(session.id)
        self._starting_uncounted += not session.counted
        try:
            await session.start(spec, keep_id=keep_id)
        finally:
            self._starting.discard(session.id)
            self._starting_uncounted -= not session.counted
        self._sessions[session.id] = session
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            session.close_soon(EndReason.ABANDONED)
            raise

    async def _bring_back(
        self, session_id: str, action: Literal["load", "resume"], workspace: str, mode: str | None
    ) -> Session:
        session = self._archive.get(session_id)
        capabilities = await self.runner.capabilities()
        start: Literal["new", "load", "resume"] = action
        if action == "resume" and not capabilities.resume_session:
            start = "load"
        if start == "load" and not capabilities.load_session:
            start = "resume" if capabilities.resume_session else "new"
        if session is None:
            if start == "new":
                raise SessionNotFound(session_id)
            session = Session(self, session_id, workspace)
            agent_id: str | None = session_id
        else:
            agent_id = session.agent_session_id if start != "new" else None
            session.cwd = workspace if session.cwd not in self.workspaces else session.cwd
            session.reopen()
            self._archive.remove(session_id)
        try:
            await self._start(session, SessionSpec(session.cwd, start, agent_id, mode=mode), keep_id=True)
        except RunnerError as problem:
            if not self._keep_archived(session) and type(problem) is RunnerError and problem.code in _NO_SUCH_SESSION:
                # The agent was asked for a session nobody here has ever seen.
                raise SessionNotFound(session_id) from problem
            raise
        except BaseException:
            self._keep_archived(session)
            raise
        return session

    def _keep_archived(self, session: Session) -> bool:
        """A session that could not be brought back keeps its history, if it has one."""
        if session.ring.head:
            self._archive.add(session)
        return bool(session.ring.head)

    async def _reap(self) -> None:
        while True:
            await trio.sleep(self.limits.reap_interval)
            if not self.limits.session_idle:
                continue
            before = trio.current_time() - self.limits.session_idle
            for session in self.sessions:
                if session.live and session.last_used < before and not session.in_use:
                    session.close_soon(EndReason.IDLE)


@asynccontextmanager
async def open_harbour(
    runner: Runner,
    *,
    workspaces: Sequence[str] = (),
    limits: Limits | None = None,
    permission_policy: PermissionPolicy = PermissionPolicy.FIRST_RESPONDER,
    observer: Observer | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    random: random_module.Random | None = None,
    log: LogPort | None = None,
    drain_grace: float = 5.0,
) -> AsyncIterator[Harbour]:
    """Open a harbour for the length of an ``async with`` block.

    ``workspaces``: absolute directories, the first is the primary one; default: the current directory. ``now_ms`` and
    ``random`` are for deterministic tests; the default randomness is the operating system's. ``log`` stores what sessions
    publish; without one, and behind one that fails, history is as long as the ring. At the end of the block,
    also when it ends by an exception or a cancel, every session is closed within ``drain_grace`` seconds, then the runner.
    """
    places = _normal_workspaces(workspaces)
    async with trio.open_nursery() as runner_nursery:
        await runner_nursery.start(runner.run)
        async with trio.open_nursery() as nursery:
            harbour = Harbour(
                nursery,
                runner,
                workspaces=places,
                limits=limits or Limits(),
                permission_policy=permission_policy,
                observer=observer or NullObserver(),
                now_ms=now_ms,
                random=random or random_module.SystemRandom(),
                log=log,
            )
            nursery.start_soon(harbour._reap)
            try:
                yield harbour
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + drain_grace):
                    await harbour.drain(drain_grace)
                nursery.cancel_scope.cancel()
        runner_nursery.cancel_scope.cancel()


def _normal_workspaces(workspaces: Sequence[str]) -> list[str]:
    places = [os.path.normpath(each) for each in workspaces] or [os.getcwd()]
    for place in places:
        if not os.path.isabs(place):
            raise ValueError(f"workspace is not an absolute path: {place!r}")
    return places
