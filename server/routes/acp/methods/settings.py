"""Mode, model and configuration options (acp-http section 8)."""

from __future__ import annotations

from typing import Any, Final

from server.routes.acp.dispatch import Call, Method
from server.routes.acp.errors import invalid_params
from server.routes.acp.params import required_text
from server.routes.rest.settings import allowed_modes
from sessions import Session
from sessions.errors import RunnerError, Unsupported

__all__ = ["METHODS"]

OPTIONS: Final = ("model", "mode")
_METHOD_NOT_FOUND: Final = -32601


async def set_mode(call: Call) -> dict[str, Any]:
    mode = required_text(call.params, "modeId")
    session = call.binding.session
    _require_mode(session, mode)
    await session.set_mode(mode, call.binding.client_id)
    return {}


async def set_model(call: Call) -> dict[str, Any]:
    model = required_text(call.params, "modelId")
    await call.binding.session.set_model(model, call.binding.client_id)
    return {}


async def set_config_option(call: Call) -> dict[str, Any]:
    """Through the agent's own method; for an agent without it, through the older call for the same thing."""
    option = required_text(call.params, "configId")
    value = required_text(call.params, "value")
    if option not in OPTIONS:
        supported = ", ".join(OPTIONS)
        raise invalid_params(f"ConfigId not supported by this transport: {option} (supported: {supported})")
    binding = call.binding
    session = binding.session
    if option == "mode":
        _require_mode(session, value)
    try:
        result = await session.set_config_option(option, value, binding.client_id)
    except RunnerError as problem:
        if not isinstance(problem, Unsupported) and problem.code != _METHOD_NOT_FOUND:
            raise
        await _set_by_own_method(session, option, value, binding.client_id)
        result = {}
    return {"configOptions": result.get("configOptions") or session.state().get("configOptions") or []}


def _require_mode(session: Session, mode: str) -> None:
    """ACP-192."""
    allowed = allowed_modes(session)
    if mode not in allowed:
        raise invalid_params(f'invalid modeId "{mode}" (expected one of: {", ".join(allowed)})')


async def _set_by_own_method(session: Session, option: str, value: str, client_id: str | None) -> None:
    if option == "mode":
        await session.set_mode(value, client_id)
    else:
        await session.set_model(value, client_id)


METHODS: Final = {
    "session/set_mode": Method(handler=set_mode),
    "session/set_model": Method(handler=set_model),
    "session/set_config_option": Method(handler=set_config_option),
}
