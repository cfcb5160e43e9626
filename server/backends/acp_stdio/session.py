"""One session on an ACP agent: prompts, cancel, settings, and the way of its updates to the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from msgspec import Raw

from server.backends.acp_stdio.client_methods import ClientMethods
from server.backends.acp_stdio.messages import METHOD_NOT_FOUND, decode_json
from sessions.errors import RunnerError, Unsupported
from sessions.operation import Operation, PromptRequest
from sessions.runner import SessionHost, TurnResult

if TYPE_CHECKING:
    from server.backends.acp_stdio.child import Child
    from server.backends.acp_stdio.peer import Call

__all__ = ["CLOSE_WAIT", "AcpAgentSession"]

CLOSE_WAIT: Final = 0.5
"""Seconds an agent that advertises session/close gets to answer it."""
SETTING_TIMEOUT: Final = 30.0
"""Seconds an agent gets to answer a change of model, mode or option: whoever opens a session may be waiting for it (C-069)."""
_STATE_KINDS: Final[Mapping[str, type]] = {"models": dict, "modes": dict, "configOptions": list}
_CHOICES: Final = ("availableModels", "availableModes")
_SETTINGS: Final = frozenset({"current_mode_update", "config_option_update", "current_model_update"})
_HISTORY: Final = frozenset(
    {
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
    }
)
_SETTING_LIMIT: Final = 2**18


class _Kind(msgspec.Struct):
    sessionUpdate: str = ""


class _PromptResult(msgspec.Struct):
    stopReason: str = "end_turn"
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_prompt_result = msgspec.json.Decoder(_PromptResult).decode


class AcpAgentSession:
    """A `RunnerSession` on one agent process. It never moves to another process: news of a replaced one cannot reach it."""

    def __init__(self, child: Child, host: SessionHost, cwd: str, cancel_grace: float) -> None:
        self._child = child
        self.host = host
        self.agent_session_id = ""
        self.muted = False
        """True while the agent replays a history the engine still has."""
        self.client_methods = ClientMethods(cwd, child.nursery)
        self._cancel_grace = cancel_grace
        self._state: dict[str, Any] = {}
        self._cancelling: set[trio.CancelScope] = set()
        self._calls: set[Call] = set()
        self._closed = False

    # What is there

    def state(self) -> Mapping[str, Any]:
        return self._state

    # What the agent says

    def learn(self, result: Mapping[str, Raw]) -> None:
        """Take over what session/new, load, resume, fork or set_config_option answered, where it has the form it must have:
        everybody who looks at `state` relies on that."""
        for key, kind in _STATE_KINDS.items():
            if (raw := result.get(key)) is None or bytes(raw) == b"null":
                continue
            try:
                value = decode_json(raw)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._child.diagnostics.complain("agent_setting_malformed", kind=key, error=str(error))
                continue
            if not isinstance(value, kind) or not _choices_are_lists(value):
                self._child.diagnostics.complain("agent_setting_malformed", kind=key, error="not of its type")
                continue
            self._state[key] = value

    def update(self, update: Raw, extra: Mapping[str, Raw] | None) -> int:
        """Pass an update on as it is. Returns the number of events published."""
        try:
            kind = _decode_kind(update).sessionUpdate
        except msgspec.MsgspecError:
            kind = ""
        if self.muted and kind in _HISTORY:
            return 0
        if kind in _SETTINGS:
            self._follow(update, kind)
        self.host.update(update, extra)
        return 1

    def _follow(self, update: Raw, kind: str) -> None:
        """Keep `state` true when the agent itself changes a setting."""
        raw = bytes(update)
        if len(raw) > _SETTING_LIMIT:
            return
        try:
            value = decode_json(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._child.diagnostics.complain("agent_setting_malformed", kind=kind, error=str(error))
            return
        if kind == "current_mode_update":
            self._set_current("modes", "currentModeId", value.get("currentModeId"))
        elif kind == "current_model_update":
            self._set_current("models", "currentModelId", value.get("currentModelId"))
        elif isinstance(value.get("configOptions"), list):
            self._state["configOptions"] = value["configOptions"]

    def _set_current(self, setting: str, key: str, value: object) -> None:
        held = self._state.get(setting)
        if isinstance(held, dict) and isinstance(value, str):
            self._state[setting] = {**held, key: value}
        config_id = {"modes": "mode", "models": "model"}[setting]
        options = self._state.get("configOptions")
        if isinstance(options, list):
            self._state["configOptions"] = [
                {**option, "currentValue": value}
                if isinstance(option, dict) and option.get("id") == config_id
                else option
                for option in options
            ]

    # What the engine wants

    async def run(self, operation: Operation) -> TurnResult:
        request = operation.request
        if not isinstance(request, PromptRequest):
            raise Unsupported(f"An ACP agent carries out prompts, not {type(request).__name__}")
        params: dict[str, Any] = {"sessionId": self.agent_session_id, "prompt": request.blocks}
        if request.meta:
            params["_meta"] = request.meta
        call = await self._child.peer.start("session/prompt", params)
        self._calls.add(call)
        try:
            try:
                raw = await call.wait()
            except trio.Cancelled:
                # The agent ends the turn in good order: what it still has to say comes before its answer (C-061).
                deadline = trio.current_time() + self._cancel_grace
                with trio.CancelScope(shield=True, deadline=deadline) as scope:
                    await self._cancel(call, scope)
                if not call.answered:
                    self._child.retire("cancel_unanswered")
                raise
        finally:
            self._calls.discard(call)
            self._child.peer.forget(call)
        return self._turn_result(raw)

    async def _cancel(self, call: Call, scope: trio.CancelScope) -> None:
        """Tell the agent and wait for its answer, or until `aclose` wants no more waiting."""
        self._child.peer.notify("session/cancel", {"sessionId": self.agent_session_id})
        if self._closed:
            return
        self._cancelling.add(scope)
        try:
            await call.wait()
        except RunnerError as error:
            # Whatever it answers, the turn is over, and it was cancelled.
            self._child.diagnostics.complain("agent_cancel_answered_error", error=error.message)
        finally:
            self._cancelling.discard(scope)

    def _turn_result(self, raw: Raw) -> TurnResult:
        try:
            result = _decode_prompt_result(raw)
        except msgspec.MsgspecError as error:
            message = f"The agent's answer to session/prompt is malformed: {error}"
            raise RunnerError(message, error_kind="protocol_error") from error
        return TurnResult(result.stopReason, result.meta)

    async def set_model(self, model_id: str) -> Mapping[str, Any]:
        """session/set_model where the agent has it; else the configuration option ``model``."""
        if "models" in self._state or not self._has_option("model"):
            try:
                result = await self._request("session/set_model", {"modelId": model_id})
            except RunnerError as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
                if not self._has_option("model"):
                    raise Unsupported("The agent cannot switch models", METHOD_NOT_FOUND) from error
            else:
                self._set_current("models", "currentModelId", model_id)
                return result
        return await self.set_config_option("model", model_id)

    async def set_mode(self, mode_id: str) -> Mapping[str, Any]:
        """session/set_mode where the agent has it; else the configuration option ``mode``."""
        try:
            result = await self._request("session/set_mode", {"modeId": mode_id})
        except RunnerError as error:
            if error.code != METHOD_NOT_FOUND:
                raise
            if not self._has_option("mode"):
                raise Unsupported("The agent has no modes", METHOD_NOT_FOUND) from error
            return await self.set_config_option("mode", mode_id)
        self._set_current("modes", "currentModeId", mode_id)
        return result

    async def set_config_option(self, config_id: str, value: str) -> Mapping[str, Any]:
        try:
            result = await self._request("session/set_config_option", {"configId": config_id, "value": value})
        except RunnerError as error:
            if error.code == METHOD_NOT_FOUND:
                raise Unsupported("The agent has no configuration options", METHOD_NOT_FOUND) from error
            raise
        if isinstance(result.get("configOptions"), list):
            self._state["configOptions"] = result["configOptions"]
        if config_id in ("mode", "model"):
            self._set_current(
                *{"mode": ("modes", "currentModeId"), "model": ("models", "currentModelId")}[config_id], value
            )
        return result

    async def extension(self, method: str, params: Mapping[str, Any]) -> Any:
        if params.get("sessionId") == self.host.session_id:
            params = {**params, "sessionId": self.agent_session_id}
        try:
            return decode_json(await self._child.peer.request(method, params))
        except RunnerError as error:
            if error.code == METHOD_NOT_FOUND:
                raise Unsupported(error.message, error.code, error.data) from error
            raise

    async def aclose(self) -> None:
        """Leave the agent. With its last session an agent process ends, and with it all that it started."""
        if self._closed:
            return
        self._closed = True
        unanswered = [call for call in self._calls if not call.answered]
        for scope in list(self._cancelling):
            scope.cancel()
        self.client_methods.terminals.close()
        if unanswered:
            self._child.retire("session_closed_in_turn")
        elif self._child.can_close_sessions:
            with trio.move_on_after(CLOSE_WAIT):
                await self._close_on_agent()
        await self._child.leave(self)

    async def _close_on_agent(self) -> None:
        try:
            await self._child.peer.request("session/close", {"sessionId": self.agent_session_id})
        except RunnerError as error:
            self._child.diagnostics.complain("agent_close_failed", error=error.message)

    def lost(self, reason: str, exit_code: int | None, signal: str | None) -> None:
        """The process is gone."""
        self._closed = True
        self.client_methods.terminals.close()
        self.host.died(reason, exit_code=exit_code, signal=signal)

    def note(self, event: str, **fields: object) -> None:
        """A record about this session in the agent's log."""
        self._child.diagnostics.note(event, session=self.host.session_id, **fields)

    async def _request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raw: Raw | None = None
        with trio.move_on_after(SETTING_TIMEOUT):
            raw = await self._child.peer.request(method, {"sessionId": self.agent_session_id, **params})
        if raw is None:
            raise RunnerError(f"The agent did not answer {method} within {SETTING_TIMEOUT:g} s")
        try:
            result = decode_json(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RunnerError(
                f"The agent's answer to {method} is malformed: {error}", error_kind="protocol_error"
            ) from error
        return result if isinstance(result, dict) else {}

    def _has_option(self, config_id: str) -> bool:
        options = self._state.get("configOptions")
        return isinstance(options, list) and any(isinstance(o, dict) and o.get("id") == config_id for o in options)


def _choices_are_lists(value: Any) -> bool:
    return isinstance(value, list) or all(isinstance(value.get(name, []), list) for name in _CHOICES)
