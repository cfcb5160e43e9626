"""A runner made of one async function: what an embedding program gives to be its own agent."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from server.backends.emitter import Emitter
from server.backends.settings import Mode, Model, Settings
from server.telemetry import logger_of
from sessions.errors import RunnerError, Unsupported
from sessions.operation import Operation
from sessions.runner import Capabilities, SessionHost, SessionSpec, StoredSession, TurnResult

__all__ = ["Handler", "HandlerRunner"]

Handler = Callable[[Operation, Emitter], Awaitable["TurnResult | str | None"]]
"""Carries out one operation. Returns nothing (``end_turn``), a stop reason (ACP-197), or a whole `TurnResult`."""

_RESOURCE_NOT_FOUND: Final = -32002
_METHOD_NOT_FOUND: Final = -32601
_INTERNAL_ERROR: Final = -32603
_IN_PROCESS: Final = Capabilities(load_session=True, resume_session=True, list_sessions=True, fork_session=True)


@attrs.define(slots=True, eq=False)
class _Remembered:
    cwd: str
    settings: Settings
    updated_at: str


class HandlerRunner:
    """Runs ``handler(operation, emit)`` in this process; a `Runner`.

    Cancelling an operation raises ``trio.Cancelled`` in the handler at its next checkpoint. A `RunnerError` it raises is
    the operation's error as it is; any other exception is logged and becomes error -32603 with its text in
    ``data.details``. The last ``remembered`` sessions can be loaded, resumed and forked again while the process lives: their
    mode and model come back, everything else is the handler's own affair (``operation.request`` and ``emit.session_id`` tell
    it where it is).
    """

    def __init__(
        self,
        handler: Handler,
        *,
        name: str = "handler",
        capabilities: Capabilities = _IN_PROCESS,
        modes: Sequence[Mode] = (),
        models: Sequence[Model] = (),
        default_mode: str | None = None,
        default_model: str | None = None,
        remembered: int = 4096,
    ) -> None:
        self._handler = handler
        self._name = name
        self._capabilities = capabilities
        self._settings = Settings(modes, models, default_mode, default_model)
        self._remembered: OrderedDict[str, _Remembered] = OrderedDict()
        self._remembered_limit = remembered

    @property
    def name(self) -> str:
        return self._name

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Nothing happens in the background."""
        task_status.started()
        await trio.sleep_forever()

    async def capabilities(self) -> Capabilities:
        await trio.lowlevel.checkpoint()
        return self._capabilities

    async def start_session(self, spec: SessionSpec, host: SessionHost) -> _HandlerSession:
        await trio.lowlevel.checkpoint()
        settings = self._settings_for(spec)
        if spec.mode is not None:
            settings.set_mode(spec.mode)
        if spec.model is not None:
            settings.set_model(spec.model)
        given = spec.agent_session_id if spec.start != "fork" else None
        session_id = given or str(uuid.uuid4())
        self._remember(session_id, spec.cwd, settings)
        host.bind(session_id)
        return _HandlerSession(self._handler, host, settings, lambda: self._touch(session_id))

    async def list_sessions(self, cwd: str) -> Sequence[StoredSession]:
        await trio.lowlevel.checkpoint()
        return [
            StoredSession(session_id, each.cwd, None, each.updated_at)
            for session_id, each in self._remembered.items()
            if each.cwd == cwd
        ]

    def _settings_for(self, spec: SessionSpec) -> Settings:
        if spec.start == "new":
            return self._settings.copy()
        known = self._capabilities
        able = {"load": known.load_session, "resume": known.resume_session, "fork": known.fork_session}
        if not able[spec.start]:
            raise Unsupported(f"{self._name} does not offer session/{spec.start}", _METHOD_NOT_FOUND)
        before = self._remembered.get(spec.agent_session_id or "")
        if before is None:
            raise RunnerError(f"Resource not found: {spec.agent_session_id}", _RESOURCE_NOT_FOUND)
        return before.settings.copy()

    def _remember(self, session_id: str, cwd: str, settings: Settings) -> None:
        self._remembered[session_id] = _Remembered(cwd, settings, _now())
        self._remembered.move_to_end(session_id)
        while len(self._remembered) > self._remembered_limit:
            self._remembered.popitem(last=False)

    def _touch(self, session_id: str) -> None:
        if (known := self._remembered.get(session_id)) is not None:
            known.updated_at = _now()
            self._remembered.move_to_end(session_id)


class _HandlerSession:
    def __init__(self, handler: Handler, host: SessionHost, settings: Settings, touch: Callable[[], None]) -> None:
        self._handler = handler
        self._host = host
        self._settings = settings
        self._touch = touch

    def state(self) -> Mapping[str, Any]:
        return self._settings.state()

    async def run(self, operation: Operation) -> TurnResult:
        self._touch()
        try:
            result = await self._handler(operation, Emitter(self._host, self._settings))
        except Exception as error:
            raise self._as_runner_error(error) from error
        if isinstance(result, TurnResult):
            return result
        if result is None or isinstance(result, str):
            return TurnResult(result or "end_turn")
        raise RunnerError("Internal error", _INTERNAL_ERROR, {"details": f"handler returned {type(result).__name__}"})

    def _as_runner_error(self, error: Exception) -> RunnerError:
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            # A handler with a nursery raises a group also for one error.
            error = error.exceptions[0]
        if isinstance(error, RunnerError):
            return error
        log = logger_of("handler")
        log.error("handler_failed", session=self._host.session_id, exc_info=error)
        details = f"{type(error).__name__}: {error}"
        return RunnerError("Internal error", _INTERNAL_ERROR, {"details": details})

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._settings.set_model(model_id)

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._settings.set_mode(mode_id)

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        await trio.lowlevel.checkpoint()
        return self._settings.set_config_option(config_id, value)

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        await trio.lowlevel.checkpoint()
        raise Unsupported(f"Method not found: {method}", _METHOD_NOT_FOUND, {"method": method})

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
