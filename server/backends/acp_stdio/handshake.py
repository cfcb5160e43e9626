"""The initialize exchange with an agent, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from server.backends.acp_stdio.messages import decode_json
from sessions.errors import AgentStartError, RunnerError
from sessions.runner import Capabilities

if TYPE_CHECKING:
    from server.backends.acp_stdio.peer import Peer

__all__ = ["PROTOCOL_VERSION", "Handshake", "read_handshake"]

PROTOCOL_VERSION: Final = 1
_CLIENT_VERSION: Final = "0.1"


@attrs.frozen(slots=True)
class Handshake:
    """The agent's answer to initialize, as far as a runner needs it."""

    capabilities: Capabilities = attrs.field(factory=Capabilities)
    close_session: bool = False
    info: Mapping[str, Any] = attrs.field(factory=dict)
    auth_methods: tuple[Any, ...] = ()


async def read_handshake(
    peer: Peer, offered: Mapping[str, Any], explain: Callable[[RunnerError], AgentStartError]
) -> Handshake:
    """Send initialize and read the answer. Raises what ``explain`` makes of a failure."""
    params = {
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": offered,
        "clientInfo": {"name": "moorline", "title": "Moorline", "version": _CLIENT_VERSION},
    }
    try:
        result = decode_json(await peer.request("initialize", params))
    except RunnerError as error:
        raise explain(error) from error
    except msgspec.MsgspecError as error:
        raise explain(RunnerError(f"malformed answer to initialize: {error}")) from error
    if not isinstance(result, dict):
        raise explain(RunnerError("the answer to initialize is no object"))
    return _handshake(result)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _handshake(result: Mapping[str, Any]) -> Handshake:
    agent = _mapping(result.get("agentCapabilities"))
    sessions = _mapping(agent.get("sessionCapabilities"))
    methods = result.get("authMethods")
    return Handshake(
        capabilities=Capabilities(
            load_session=agent.get("loadSession") is True,
            # ``{}`` advertises a method, null and absence do not.
            resume_session=sessions.get("resume") is not None,
            list_sessions=sessions.get("list") is not None,
            fork_session=sessions.get("fork") is not None,
            prompt={key: value for key, value in _mapping(agent.get("promptCapabilities")).items() if value is True},
            raw=agent,
        ),
        close_session=sessions.get("close") is not None,
        info=_mapping(result.get("agentInfo")),
        auth_methods=tuple(methods) if isinstance(methods, list) else (),
    )
