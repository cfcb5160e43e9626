"""Results of the methods that open a session, in a shape that pleases strict ACP clients and the SDK alike (ACP-191)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.acp import META_KEY
from server.routes.acp.inflight import InFlight
from server.routes.rest.summaries import opened_body
from sessions import Opened, Session

__all__ = ["opened_result", "session_state"]


def session_state(session: Session) -> dict[str, Any]:
    """``configOptions``, ``models`` and ``modes``, where the agent gave them."""
    state = session.state()
    shown: dict[str, Any] = {}
    if state.get("configOptions") is not None:
        shown["configOptions"] = state["configOptions"]
    if isinstance(state.get("models"), Mapping):
        shown["models"] = _with_entries(state["models"], "availableModels", _model)
    if isinstance(state.get("modes"), Mapping):
        shown["modes"] = _with_entries(state["modes"], "availableModes", _mode)
    return shown


def opened_result(opened: Opened, *, named: bool, adopted: list[InFlight] | None = None) -> dict[str, Any]:
    """The result of session/new, load, resume and fork: the state, and what REST tells besides (client-sdk section 5).

    The id is there after load and resume too: clients of both official libraries open the session's stream, and the SDK
    addresses its next call, by the id of the result. ``named``: for a method that makes a session.
    """
    session = opened.session
    result = {
        **opened_body(session, attached=opened.attached, client_id=opened.client_id),
        "lastEventId": session.ring.head,
        **session_state(session),
    }
    meta: dict[str, Any] = {} if named else {"hasRunningBackgroundTasks": False}
    if adopted:
        meta[META_KEY] = {"adoptedPrompts": [_adopted(each) for each in adopted]}
    if meta:
        result["_meta"] = meta
    return result


def _adopted(prompt: InFlight) -> dict[str, Any]:
    return {
        "promptId": prompt.operation.id,
        "requestId": prompt.request_id,
        "state": prompt.operation.state,
        "repliedAs": "response" if prompt.as_response else "notification",
    }


def _with_entries(state: Mapping[str, Any], key: str, shape: Any) -> dict[str, Any]:
    entries = state.get(key)
    return {**state, key: [shape(each) for each in entries if isinstance(each, Mapping)] if entries else []}


def _model(entry: Mapping[str, Any]) -> dict[str, Any]:
    model_id = entry.get("modelId", entry.get("id"))
    return {**entry, "id": model_id, "modelId": model_id, "name": entry.get("name") or str(model_id)}


def _mode(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "name": entry.get("name") or str(entry.get("id"))}
