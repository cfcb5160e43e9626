"""The engine's bounds, in one place. Every field has a flag of the same name in ``server.limits``."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["HARD_MAX_RING_EVENTS", "Limits"]

HARD_MAX_RING_EVENTS = 1_000_000
"""ACP-011."""


def _at_least(minimum: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[float], value: float) -> None:
        # ``not >=`` also refuses NaN.
        if isinstance(value, bool) or not value >= minimum:
            raise ValueError(f"{attribute.name} must be at least {minimum}, not {value!r}")

    return check


def _whole(minimum: int, maximum: int | None = None) -> Any:
    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{attribute.name} must be a whole number, not {value!r}")
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"{attribute.name} is out of range: {value}")

    return check


def _admission_limit(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value == float("inf"):
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{attribute.name} must be a non-negative whole number or infinity, not {value!r}")


@attrs.frozen(slots=True, kw_only=True)
class Limits:
    """Bounds of one harbour. Times are seconds. Raises ``ValueError`` naming the field for a value out of range.

    0 means "no limit" exactly where it is said.
    """

    event_ring_size: int = attrs.field(default=8000, validator=_whole(1, HARD_MAX_RING_EVENTS))
    """Events retained per session (ACP-011)."""
    ring_bytes: int = attrs.field(default=64 * 2**20, validator=_whole(1))
    """Bytes retained per session: event data and every encoded wire form of it."""
    max_pending_prompts: float = attrs.field(default=5, validator=_admission_limit)
    """Accepted, unsettled prompts per session; 0 or infinity: no limit (ACP-210, ACP-211)."""
    max_queued_events: int = attrs.field(default=256, validator=_whole(1))
    """How far a live subscriber may fall behind, in events (ACP-017)."""
    max_queued_bytes: int = attrs.field(default=2 * 2**20, validator=_whole(1))
    """How far a live subscriber may fall behind, in bytes of event data (ACP-017)."""
    replay_bytes: int = attrs.field(default=8 * 2**20, validator=_whole(1))
    """Replay budget of one subscription (ACP-015, ACP-017)."""
    max_subscribers: int = attrs.field(default=64, validator=_whole(0))
    """Subscribers per session; 0: no limit (ACP-017)."""
    max_clients: int = attrs.field(default=1024, validator=_whole(0))
    """Client ids a session knows; 0: no limit (REST-004)."""
    session_grace: float = attrs.field(default=10.0, validator=_at_least(0))
    """How long a detached session binding is kept (ACP-140)."""
    connection_grace: float = attrs.field(default=10.0, validator=_at_least(0))
    """How long a connection outlives its connection stream (ACP-140, ACP-150)."""
    max_sessions_per_workspace: int = attrs.field(default=32, validator=_whole(0))
    """Live sessions per workspace; 0: no limit."""
    max_total_sessions: int = attrs.field(default=800, validator=_whole(0))
    """Live sessions per process; 0: no limit."""
    max_pending_permissions: int = attrs.field(default=64, validator=_whole(1))
    """Unanswered permission requests per session; the next is answered cancelled (ACP-179)."""
    remembered_permissions: int = attrs.field(default=256, validator=_whole(1))
    """Resolved permission requests whose outcome a session remembers."""
    permission_timeout: float = attrs.field(default=0.0, validator=_at_least(0))
    """Seconds until an unanswered permission request is cancelled; 0: never (ACP-179)."""
    permission_quorum: int = attrs.field(default=2, validator=_whole(1))
    """Votes for one option that decide under the ``consensus`` policy."""
    prompt_deadline: float = attrs.field(default=0.0, validator=_at_least(0))
    """Seconds an accepted prompt may run; 0: no deadline (ACP-215)."""
    cancel_grace: float = attrs.field(default=10.0, validator=_at_least(0))
    """Seconds a cancelled operation may take to end in good order before it is settled without its runner."""
    close_grace: float = attrs.field(default=2.0, validator=_at_least(0))
    """The same when its session is closing."""
    remembered_prompts: int = attrs.field(default=256, validator=_whole(1))
    """Settled prompts per session whose outcome can be polled."""
    session_idle: float = attrs.field(default=1800.0, validator=_at_least(0))
    """Seconds after which an unused session is closed; 0: never (ACP-153)."""
    reap_interval: float = attrs.field(default=60.0, validator=_at_least(0.001))
    """Seconds between two looks for idle sessions (ACP-153)."""
    restore_timeout: float = attrs.field(default=60.0, validator=_at_least(0.001))
    """Seconds a load or resume may take (REST-033)."""
    archived_sessions: int = attrs.field(default=256, validator=_whole(0))
    """Closed sessions kept loadable in the process."""
    archived_bytes: int = attrs.field(default=128 * 2**20, validator=_whole(0))
    """Bytes of history those keep together."""
