"""The runner port: what stands behind a session, whatever it is.

Four implementations live in ``server.backends``: an ACP agent on stdio, an in-process async handler, an OpenAI-compatible
upstream, and the built-in demo agent. An embedding program may bring its own.

The contract in one paragraph. The harbour starts `Runner.run` in its own nursery and keeps it until everything else is
gone. `Runner.start_session` makes a `RunnerSession` for one session, which talks back through the `SessionHost` it was
given. The engine calls `RunnerSession.run` once per operation, inside the operation's cancel scope; **cancelling is
nothing but that scope**: the runner sees ``trio.Cancelled`` at its next checkpoint, may clean up under a shield with a
deadline (`CANCEL_GRACE`), may still emit while it does, and lets ``Cancelled`` go on, or returns a `TurnResult` whose
stop reason is ``cancelled``. A crash, a hang or garbage behind the port becomes a `RunnerError` or `SessionHost.died`,
never another exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import attrs
import msgspec

if TYPE_CHECKING:
    import trio

    from sessions.events import Event
    from sessions.operation import Operation

__all__ = [
    "CANCEL_GRACE",
    "Capabilities",
    "PermissionOutcome",
    "Runner",
    "RunnerSession",
    "SessionHost",
    "SessionSpec",
    "StoredSession",
    "TurnResult",
]

CANCEL_GRACE: Final = 10.0
"""Seconds a runner may spend, shielded, on ending a cancelled operation in good order before it is given up."""


@attrs.frozen(slots=True)
class Capabilities:
    """What the thing behind the port can do beyond prompt and cancel."""

    load_session: bool = False
    resume_session: bool = False
    list_sessions: bool = False
    fork_session: bool = False
    prompt: Mapping[str, bool] = attrs.field(factory=dict)
    """``image``, ``audio``, ``embeddedContext`` as in the agent's ``promptCapabilities``."""
    raw: Mapping[str, Any] = attrs.field(factory=dict)
    """The agent's own ``agentCapabilities``, untouched."""


@attrs.frozen(slots=True)
class SessionSpec:
    """What a new `RunnerSession` is to be."""

    cwd: str
    """Absolute path of the workspace."""
    start: Literal["new", "load", "resume", "fork"] = "new"
    agent_session_id: str | None = None
    """For load, resume and fork: the id by which the runner knows the session. For ``new``: the id the caller would like."""
    mcp_servers: Sequence[Any] = ()
    model: str | None = None
    mode: str | None = None
    meta: Mapping[str, Any] | None = None


@attrs.frozen(slots=True)
class TurnResult:
    """How an operation ended, in the runner's words: ``stop_reason`` as in ACP-197."""

    stop_reason: str = "end_turn"
    meta: Mapping[str, Any] | None = None


@attrs.frozen(slots=True)
class PermissionOutcome:
    """The answer to a permission question. ``option_id`` is None when the outcome is ``cancelled``."""

    option_id: str | None = None
    answers: Mapping[str, str] | None = None
    meta: Mapping[str, Any] | None = None

    @property
    def cancelled(self) -> bool:
        return self.option_id is None

    def as_json(self) -> dict[str, Any]:
        """The ACP form: ``{"outcome": "selected", "optionId": …}`` or ``{"outcome": "cancelled"}``."""
        if self.option_id is None:
            return {"outcome": "cancelled"}
        return {"outcome": "selected", "optionId": self.option_id}


@attrs.frozen(slots=True)
class StoredSession:
    """One entry of `Runner.list_sessions`. Times are ISO 8601 text, as the agent gave them."""

    agent_session_id: str
    cwd: str
    title: str | None = None
    updated_at: str | None = None


class SessionHost(Protocol):
    """The session as a runner sees it. Every method but `ask_permission` is synchronous and never blocks."""

    @property
    def session_id(self) -> str:
        """The public id; final once `bind` was called."""
        ...

    @property
    def cwd(self) -> str: ...

    @property
    def wants_history(self) -> bool:
        """False when the engine still holds this session's history: a loading runner then drops what the agent replays."""
        ...

    def bind(self, agent_session_id: str) -> str:
        """Tell the runner-side id, as soon as it is known and before the first publish. Returns the public id."""
        ...

    def publish(
        self, type: str, data: Mapping[str, Any] | msgspec.Raw, *, prompt_id: str | None = None
    ) -> Event | None:
        """Append one event to the ring. `msgspec.Raw` is JSON text on one line, used as it is.

        Returns None (and consumes no id) when the data cannot be serialised; the failure is reported to telemetry
        (ACP-010). A producer that publishes in a loop must pass a Trio checkpoint at least every 16 events.
        """
        ...

    def update(
        self, update: Mapping[str, Any] | msgspec.Raw, extra: Mapping[str, msgspec.Raw] | None = None
    ) -> Event | None:
        """Publish a ``session_update``: ``{sessionId, update, **extra}``. Attributed to the running prompt, if any."""
        ...

    async def ask_permission(
        self,
        tool_call: Mapping[str, Any] | msgspec.Raw,
        options: Sequence[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
    ) -> PermissionOutcome:
        """Publish a ``permission_request`` and wait for the vote. Never raises: everything that ends the wait without a
        choice (cancel, close, no consumer, too many pending) is the outcome ``cancelled`` (ACP-178, ACP-179)."""
        ...

    def died(self, reason: str, *, exit_code: int | None = None, signal: str | None = None) -> None:
        """The runner side of this session is gone: fail what is accepted, publish ``session_died``, end the ring."""
        ...


class RunnerSession(Protocol):
    """One session on the runner's side."""

    def state(self) -> Mapping[str, Any]:
        """``models``, ``modes``, ``configOptions`` as the agent gave them; absent keys where it gave none."""
        ...

    async def run(self, operation: Operation) -> TurnResult:
        """Carry out one operation; its ``request`` is a `sessions.operation.PromptRequest` or another wire's request.

        Raises `RunnerError` for an agent's error, `RunnerLost` when the agent is gone.
        """
        ...

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        """Raises `RunnerError` (unknown model) or `Unsupported`."""
        ...

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]: ...

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        """Returns the agent's result, with ``configOptions``."""
        ...

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        """Forward a vendor request (``_…``) untouched. Raises `RunnerError`, `Unsupported`."""
        ...

    async def aclose(self) -> None:
        """Let go of the session on the runner's side. Bounded in time; never raises but for cancellation."""
        ...


@runtime_checkable
class Runner(Protocol):
    """What stands behind sessions."""

    @property
    def name(self) -> str: ...

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Owns everything the runner needs in the background (child processes, pools). Started once, cancelled last."""
        ...

    async def capabilities(self) -> Capabilities:
        """Starts the agent if that is needed to know. Raises `AgentStartError`, `AgentStartTimeout`."""
        ...

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> RunnerSession:
        """Raises `AgentStartError`, `AgentStartTimeout`, `RunnerError`, `Unsupported` (load of a runner that cannot)."""
        ...

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        """Sessions the agent has stored for this workspace; empty where it cannot tell."""
        ...
