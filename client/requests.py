"""What a caller asks for. Frozen, so that a retry sends exactly the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Prompt", "PromptRequest", "SessionRequest", "Vote"]

Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
"""A text, or content blocks."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Options of create, load and resume; what is ``None`` is not sent.

    ``scope`` is ``single`` (share the workspace's session) or ``thread`` (always a new one); ``/acp`` knows only the
    latter. ``timeout`` in seconds applies to load and resume.
    """

    cwd: str | None = None
    scope: str | None = None
    session_id: str | None = None
    model_service_id: str | None = None
    approval_mode: str | None = None
    source_type: str | None = None
    source_id: str | None = None
    timeout: float | None = None

    def rest_body(self) -> dict[str, Any]:
        """The body of ``POST /session`` and of load and resume."""
        fields = {
            "cwd": self.cwd,
            "sessionScope": self.scope,
            "sessionId": self.session_id,
            "modelServiceId": self.model_service_id,
            "approvalMode": self.approval_mode,
            "sourceType": self.source_type,
            "sourceId": self.source_id,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def acp_params(self) -> dict[str, Any]:
        """The parameters of ``session/new``, ``load`` and ``resume`` without the session id."""
        params: dict[str, Any] = {"mcpServers": []}
        for name, value in (("cwd", self.cwd), ("sourceType", self.source_type), ("sourceId", self.source_id)):
            if value is not None:
                params[name] = value
        return params


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt. ``idempotency_key`` lets a daemon that knows it refuse to run the same prompt twice."""

    blocks: tuple[Mapping[str, Any], ...]
    deadline_ms: int | None = None
    meta: Mapping[str, Any] | None = None
    idempotency_key: str | None = None

    @classmethod
    def build(
        cls,
        prompt: Prompt,
        *,
        deadline_ms: int | None = None,
        meta: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> PromptRequest:
        """A text becomes one text block."""
        blocks: Sequence[Mapping[str, Any]] = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else prompt
        return cls(tuple(blocks), deadline_ms, meta, idempotency_key)

    def body(self) -> dict[str, Any]:
        """The body on REST, the parameters on ``/acp``."""
        body: dict[str, Any] = {"prompt": list(self.blocks)}
        if self.deadline_ms is not None:
            body["deadlineMs"] = self.deadline_ms
        if self.meta is not None:
            body["_meta"] = dict(self.meta)
        return body


@dataclass(frozen=True, slots=True)
class Vote:
    """An answer to a permission request: one of its options, or ``None`` to cancel."""

    option_id: str | None = None
    answers: Mapping[str, str] | None = None

    def result(self) -> dict[str, Any]:
        """The wire form, the same on both surfaces (ACP-174, REST-100)."""
        if self.option_id is None:
            outcome: dict[str, Any] = {"outcome": "cancelled"}
        else:
            outcome = {"outcome": "selected", "optionId": self.option_id}
        body: dict[str, Any] = {"outcome": outcome}
        if self.answers is not None:
            body["answers"] = dict(self.answers)
        return body
