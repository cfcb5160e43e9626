"""One agent process: its pipes, its sessions, and its end."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, cast

import msgspec
import trio
from msgspec import Raw

from server.backends.acp_stdio.diagnostics import Diagnostics
from server.backends.acp_stdio.handshake import Handshake, read_handshake
from server.backends.acp_stdio.held import HeldUpdates
from server.backends.acp_stdio.inbound import InboundRequests
from server.backends.acp_stdio.opening import opening_request, opening_result, session_id_in
from server.backends.acp_stdio.peer import Peer
from server.backends.acp_stdio.process_group import end_bound, end_group, signal_name
from server.backends.acp_stdio.reader import StdoutReader, read_stderr
from server.backends.acp_stdio.session import AcpAgentSession
from server.backends.acp_stdio.spawn import ChildSettings
from server.backends.acp_stdio.writer import PipeWriter
from sessions.errors import AgentStartError, RunnerError, RunnerLost
from sessions.runner import SessionHost, SessionSpec

__all__ = ["Child", "ChildEnd"]

_LAST_OUTPUT_WAIT: Final = 0.25
"""Seconds an exited agent's pipes are still read: a grandchild may hold them open for ever."""
_EOF_SHARE: Final = 0.25
"""Share of the kill grace in which an agent may leave because its stdin has ended: agents save their sessions then."""
_EXIT_WAIT: Final = 0.25
"""Seconds an agent that closed its stdout gets to exit, so that its exit code can be told."""


class ChildEnd(enum.StrEnum):
    """Why an agent process ended; also the reason of ``session_died``."""

    EXITED = "agent_exited"
    KILLED = "agent_killed"
    CLOSED_OUTPUT = "agent_closed_stdout"
    CLOSED_INPUT = "agent_closed_stdin"
    STOPPED = "agent_stopped"
    """By us: its last session left, it did not start, or the runner ended."""


class Child:
    """One agent process from spawn to the end of its group.

    `spawn`, then `run` in a long-lived nursery, then `handshake`; `open_session` as often as wanted. `end` is synchronous
    and asks for the end; ``ended`` is set when no process of the group is left.
    """

    def __init__(self, settings: ChildSettings, process: trio.Process, nursery: trio.Nursery) -> None:
        self._settings = settings
        self._process = process
        self.nursery = nursery
        """Holds everything this process needs, terminals included; cancelled when it ends."""
        self.diagnostics = Diagnostics(settings.name)
        self.diagnostics.bind(pid=process.pid)
        self.begun = trio.current_time()
        self._writer = PipeWriter(cast("trio.lowlevel.FdStream", process.stdin))
        self.peer = Peer(self._writer, self, self.diagnostics)
        self._requests = InboundRequests(self)
        self._held = HeldUpdates()
        self._routes: dict[bytes, AcpAgentSession] = {}
        self._opening = 0
        self._ever_used = False
        self._idle = trio.Event()
        self._finish = trio.Event()
        self._stdout_read = trio.Event()
        self._stderr_read = trio.Event()
        self._why: ChildEnd | None = None
        self.accepting = True
        """False once no new session may start here."""
        self.agent = Handshake()
        self.ready = False
        """True once it has answered initialize."""
        self.lost = trio.Event()
        """Set when nothing can be asked of it any more."""
        self.ended = trio.Event()

    # What is there

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def sessions(self) -> int:
        return len(self._routes)

    @property
    def can_close_sessions(self) -> bool:
        return self.agent.close_session

    @property
    def why(self) -> ChildEnd | None:
        """Why it ended; None while it runs."""
        return self._why

    def session_for(self, params: Mapping[str, Raw]) -> AcpAgentSession | None:
        """The session a message of the agent is about."""
        raw = params.get("sessionId")
        return self._routes.get(_route(raw)) if raw is not None else None

    # Life

    async def run(self) -> None:
        """Everything in the background until the end; then no process of the group is left. Raises only ``Cancelled``."""
        nursery = self.nursery
        try:
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self._read_stdout)
            nursery.start_soon(self._read_stderr)
            nursery.start_soon(self._watch_process)
            nursery.start_soon(self._watch_stdin)
            nursery.start_soon(self._watch_idleness)
            await self._finish.wait()
        finally:
            self._lose()
            nursery.cancel_scope.cancel()
            bound = end_bound(self._settings.kill_grace)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + bound):
                grace = self._settings.kill_grace
                await end_group(self._process, grace, patience=grace * _EOF_SHARE)
            self.diagnostics.note("agent_ended", reason=self._why, exit_code=self._process.returncode)
            self.ended.set()

    def end(self, why: ChildEnd = ChildEnd.STOPPED) -> None:
        """Ask for the end; the first reason stands."""
        self.accepting = False
        if self._why is None:
            self._why = why
        self._finish.set()

    def retire(self, why: str) -> None:
        """The agent does not do as told: no new session starts here. It ends with its last session."""
        if self.accepting:
            self.accepting = False
            self.diagnostics.note("agent_retired", why=why, sessions=len(self._routes))

    async def handshake(self) -> None:
        """The initialize exchange. Raises `AgentStartError`."""
        offered = {
            "fs": {"readTextFile": self._settings.offer_files, "writeTextFile": self._settings.offer_files},
            "terminal": self._settings.offer_terminals,
        }
        self.agent = await read_handshake(self.peer, offered, self._explain)
        self.ready = True

    def _explain(self, problem: RunnerError) -> AgentStartError:
        """Say why it did not start, with the end of its stderr: that is where the agent says it."""
        words = self.diagnostics.last_words()
        message = f"{problem.message}: {words}" if words else problem.message
        kind = None if isinstance(problem, RunnerLost) else problem.error_kind
        return AgentStartError(message, problem.code, problem.data, kind or "protocol_error")

    def _lose(self) -> None:
        """Settle everything that waits for this process, synchronously, before its group is brought down."""
        self.accepting = False
        self._why = self._why or ChildEnd.STOPPED
        self._writer.close()
        code = self._process.returncode
        signal = signal_name(code)
        exit_code = code if signal is None else None
        self.peer.lose(self._lost_error)
        self.lost.set()
        routes, self._routes = self._routes, {}
        for session in routes.values():
            try:
                session.lost(str(self._why), exit_code, signal)
            except Exception as error:  # the barrier of one session: the others must be told as well
                self.diagnostics.complain("agent_loss_not_told", error=repr(error))

    def _lost_error(self) -> RunnerLost:
        code = self._process.returncode
        how = signal_name(code) or (f"exit code {code}" if code is not None else str(self._why))
        return RunnerLost(f"The agent process is gone ({how})", None, str(self._why), "acp_channel_unavailable")

    async def _watch_process(self) -> None:
        code = await self._process.wait()
        with trio.move_on_after(_LAST_OUTPUT_WAIT):
            await self._stdout_read.wait()
            await self._stderr_read.wait()
        self.end(ChildEnd.EXITED if code >= 0 else ChildEnd.KILLED)

    async def _watch_stdin(self) -> None:
        await self._writer.broken.wait()
        # Usually the process is about to exit, and then the other watcher knows better.
        await trio.sleep(_EXIT_WAIT)
        self.end(ChildEnd.CLOSED_INPUT)

    async def _watch_idleness(self) -> None:
        while True:
            await self._idle.wait()
            self._idle = trio.Event()
            if self.accepting:
                await trio.sleep(self._settings.idle_timeout)
            if self._is_idle():
                self.end()

    def _is_idle(self) -> bool:
        return self._ever_used and not self._routes and not self._opening

    # Sessions

    async def open_session(self, spec: SessionSpec, host: SessionHost) -> AcpAgentSession:
        """Start, load, resume or fork a session on this agent. Raises `RunnerError`, `RunnerLost`."""
        session = AcpAgentSession(self, host, spec.cwd, self._settings.cancel_grace)
        self._opening += 1
        self._ever_used = True
        try:
            if spec.start in ("load", "resume"):
                assert spec.agent_session_id is not None
                # The replay comes before the answer, so the route must be there first.
                session.muted = spec.start == "load" and not host.wants_history
                self._bind(session, spec.agent_session_id)
            result = opening_result(await self.peer.request(*opening_request(spec)))
            if not session.agent_session_id:
                self._bind(session, session_id_in(result))
            session.muted = False
            session.learn(result)
        except BaseException:
            self._unroute(session)
            session.client_methods.terminals.close()
            raise
        finally:
            self._opening -= 1
            if not self._opening:
                self._held.clear()
            self._note_idleness()
        return session

    async def leave(self, session: AcpAgentSession) -> None:
        """The session is over. If it was the last one and nothing lingers, wait until the process is gone."""
        self._unroute(session)
        self._note_idleness()
        if self._is_idle() and (not self.accepting or self._settings.idle_timeout <= 0):
            self.end()
        if self._finish.is_set():
            with trio.move_on_after(end_bound(self._settings.kill_grace)):
                await self.ended.wait()

    def _bind(self, session: AcpAgentSession, agent_session_id: str) -> None:
        key = msgspec.json.encode(agent_session_id)
        if key in self._routes:
            message = f"The agent has session {agent_session_id!r} open already"
            raise RunnerError(message, error_kind="protocol_error")
        session.host.bind(agent_session_id)
        session.agent_session_id = agent_session_id
        self._routes[key] = session
        for params in self._held.take(key):
            self.update(params)

    def _unroute(self, session: AcpAgentSession) -> None:
        key = msgspec.json.encode(session.agent_session_id)
        if self._routes.get(key) is session:
            del self._routes[key]

    def _note_idleness(self) -> None:
        if self._is_idle():
            self._idle.set()

    # What the agent says (`Inbound`)

    def update(self, params: dict[str, Raw]) -> int:
        """One session/update. Its session id becomes ours; everything else passes as it is."""
        update = params.get("update")
        session_id = params.get("sessionId")
        if update is None or session_id is None:
            self.diagnostics.noise(b"session/update without sessionId or update")
            return 0
        key = _route(session_id)
        session = self._routes.get(key)
        if session is None:
            return self._unrouted(key, params)
        if len(params) == 2:
            return session.update(update, None)
        return session.update(update, {k: v for k, v in params.items() if k not in ("sessionId", "update")})

    def _unrouted(self, key: bytes, params: dict[str, Raw]) -> int:
        if not self._opening or not self._held.add(key, params):
            self.diagnostics.stray_updates += 1
            self.diagnostics.complain("agent_stray_update", agent_session=key[:80].decode("utf-8", "replace"))
        return 0

    def notification(self, method: str, params: dict[str, Raw]) -> int:
        """An extension's notification reaches the session's subscribers as an event; any other is none of our business."""
        session = self.session_for(params)
        if session is None or session.muted:
            self.diagnostics.complain("agent_notification_dropped", method=method[:80])
            return 0
        rest = {key: value for key, value in params.items() if key != "sessionId"}
        session.host.publish(
            "agent_notification", {"sessionId": session.host.session_id, "method": method, "params": rest}
        )
        return 1

    def request(self, number: Raw, method: str, params: dict[str, Raw]) -> int:
        return self._requests.serve(number, method, params)

    def refuse(self, line: bytes) -> None:
        """An error for a request not even looked at; dropped when the agent does not read its answers anyway."""
        if self._writer.has_room:
            self._writer.write_nowait(line)

    def offers(self, method: str) -> bool:
        """Whether this client method was announced."""
        return self._settings.offer_files if method.startswith("fs/") else self._settings.offer_terminals

    # Pipes

    async def _read_stdout(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        await StdoutReader(self.peer.receive, self.diagnostics).run(stream)
        self._stdout_read.set()
        await trio.sleep(_EXIT_WAIT)
        self.end(ChildEnd.CLOSED_OUTPUT)

    async def _read_stderr(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        await read_stderr(stream, self.diagnostics)
        self._stderr_read.set()


def _route(session_id: Raw) -> bytes:
    r"""The key of a session under the id an agent writes: JSON can spell one text in several ways (``\/``, ``\u00e9``)."""
    raw = bytes(session_id)
    if b"\\" not in raw:
        return raw
    try:
        return msgspec.json.encode(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, RecursionError):
        return raw
