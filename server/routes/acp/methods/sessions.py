"""Methods that open, list, fork and close sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from server.routes.acp.binding import Binding
from server.routes.acp.dispatch import Call, Method
from server.routes.acp.errors import invalid_params
from server.routes.acp.inflight import InFlight
from server.routes.acp.listing import list_sessions
from server.routes.acp.params import caller_session_id, meta, optional_text, required_text, workspace_path
from server.routes.acp.registry import Registry
from server.routes.acp.results import opened_result
from sessions import EndReason, Opened
from sessions.errors import SessionNotFound

__all__ = ["methods"]

_STORABLE_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_OWN_META: Final = ("qwen-code/sessionId",)


def methods(registry: Registry) -> dict[str, Method]:
    opener = _Opener(registry)
    return {
        "authenticate": Method(handler=lambda call: {}, needs_session=False),
        "session/new": Method(handler=opener.new, needs_session=False, as_notification=False),
        "session/load": Method(handler=opener.load, needs_session=False, as_notification=False),
        "session/resume": Method(handler=opener.resume, needs_session=False, as_notification=False),
        "session/fork": Method(handler=opener.fork, as_notification=False, waits_for_prompts=True),
        "session/list": Method(handler=opener.list_all, needs_session=False, as_notification=False),
        "session/close": Method(handler=close),
    }


async def close(call: Call) -> dict[str, Any]:
    """ACP-196: ownership ends first, then the session for everybody, then the binding; the reply is written before the
    session's stream ends."""
    binding = call.binding
    binding.revoke()
    assert binding.close_answered is not None
    call.on_written = binding.close_answered.set
    await binding.session.close(EndReason.CLIENT_CLOSE, binding.client_id)
    return {}


class _Opener:
    """Methods after which the connection owns a session (ACP-120)."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._harbour = registry.harbour

    async def new(self, call: Call) -> dict[str, Any]:
        params = call.params
        opened = await self._harbour.create(
            workspace_path(params),
            session_id=caller_session_id(params),
            mcp_servers=_mcp_servers(params),
            source=_source(params),
            meta=_passed_on(params),
        )
        return self._own_new(call, opened)

    async def fork(self, call: Call) -> dict[str, Any]:
        opened = await self._harbour.fork(call.binding.session, optional_text(call.params, "name"))
        return self._own_new(call, opened)

    async def load(self, call: Call) -> dict[str, Any]:
        return await self._restore(call, "load")

    async def resume(self, call: Call) -> dict[str, Any]:
        return await self._restore(call, "resume")

    async def list_all(self, call: Call) -> dict[str, Any]:
        return await list_sessions(self._harbour, call.params)

    def _own_new(self, call: Call, opened: Opened) -> dict[str, Any]:
        binding = call.connection.bind(opened.session, opened.client_id, fresh=not opened.attached)
        self._announce(call, binding)
        return opened_result(opened, named=True)

    async def _restore(self, call: Call, action: Literal["load", "resume"]) -> dict[str, Any]:
        connection = call.connection
        session_id = connection.canonical(required_text(call.params, "sessionId"))
        cwd = workspace_path(call.params)
        if _STORABLE_ID.fullmatch(session_id) is None:
            # It goes to an agent that may make a file name of it.
            raise SessionNotFound(session_id)
        former = connection.bindings.get(session_id)
        if former is not None and not former.session.live:
            former.end()
            former = None
        if former is None:
            opened = await self._harbour.restore(session_id, action, cwd)
            # Another message of the same connection may have brought it back meanwhile.
            former = connection.bindings.get(opened.session.id)
        else:
            self._harbour.check_workspace(cwd)
            session = former.session
            kept = former.client_id if former.client_id in session.clients else None
            opened = Opened(session, True, kept or session.register_client())
        if former is None:
            binding = connection.bind(opened.session, opened.client_id, history=action == "load")
        else:
            binding, opened = former, self._known(former, opened)
        adopted = self._adopt(call, binding)
        self._announce(call, binding)
        return opened_result(opened, named=False, adopted=adopted)

    def _known(self, binding: Binding, opened: Opened) -> Opened:
        """The connection owns the session already: it keeps its client id, and its grace starts anew."""
        if opened.client_id != binding.client_id:
            if binding.client_id in opened.session.clients:
                opened.session.drop_client(opened.client_id)
            else:
                binding.client_id = opened.client_id
                opened.session.clients.keep(opened.client_id)
        if binding.in_grace:
            binding.lose_stream()
        assert binding.client_id is not None
        return Opened(opened.session, True, binding.client_id)

    def _adopt(self, call: Call, binding: Binding) -> list[InFlight]:
        """Prompts nobody would hear the outcome of come along: their reply is not lost with its connection."""
        return [
            prompt
            for former in self._registry.unattended(binding.session.id, call.connection)
            for prompt in binding.adopt(former, call.id)
        ]

    def _announce(self, call: Call, binding: Binding) -> None:
        def announced() -> None:
            binding.announced = True
            if not binding.over:
                call.connection.start_events(binding)

        call.on_written = announced


def _mcp_servers(params: Mapping[str, Any]) -> list[Any]:
    value = params.get("mcpServers")
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid_params("`mcpServers` must be an array when provided")
    return value


def _source(params: Mapping[str, Any]) -> dict[str, str]:
    given = {name: optional_text(params, name) for name in ("sourceType", "sourceId")}
    return {name: text for name, text in given.items() if text is not None}


def _passed_on(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """What of ``_meta`` is the agent's business."""
    rest = {key: value for key, value in meta(params).items() if key not in _OWN_META}
    return rest or None
