"""``session/prompt`` and ``session/cancel``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from server.routes.acp.dispatch import LATER, Call, Method
from server.routes.acp.errors import invalid_params
from server.routes.acp.params import meta
from sessions import CancelReason, PromptRequest

__all__ = ["METHODS"]


def prompt(call: Call) -> Any:
    """Admitted in this very step or refused (ACP-212); the reply comes when the turn is settled (ACP-103)."""
    blocks = call.params.get("prompt")
    if not isinstance(blocks, list) or not blocks or not all(isinstance(each, Mapping) for each in blocks):
        raise invalid_params("`prompt` is required and must be a non-empty array of content blocks")
    binding = call.binding
    request = PromptRequest(blocks, meta(call.params) or None)
    operation, _ = binding.session.submit_prompt(request, client_id=binding.client_id)
    assert call.id is not None
    binding.track(call.id, operation)
    return LATER


def cancel(call: Call) -> dict[str, Any]:
    """The running prompt only; with nothing running it succeeds and is not remembered (ACP-195)."""
    call.binding.session.cancel_prompt(CancelReason.USER)
    return {}


METHODS: Final = {
    "session/prompt": Method(handler=prompt, as_notification=False),
    "session/cancel": Method(handler=cancel),
}
