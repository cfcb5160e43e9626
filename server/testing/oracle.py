"""What must be true after a run, whatever the weather was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import attrs

from client import Event as ClientEvent
from sessions import Event, Session

__all__ = ["Findings", "Transcript", "check_prompts", "check_transcript"]

TERMINAL: Final = frozenset({"turn_complete", "turn_error"})
OWN: Final = frozenset({"session_reloaded", "session_snapshot", "replay_complete", "slow_client_warning"})
"""Told to the reader and part of no ring."""


class Findings(list[str]):
    """What is wrong, one sentence each; empty is good."""

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self.append(sentence)


@attrs.define
class Transcript:
    """What one consumer was shown, checked as it comes: ids grow by one, or a resync said where the gap is."""

    findings: Findings
    name: str = "reader"
    shown: list[ClientEvent] = attrs.field(factory=list)
    last: int = 0
    """Id of the last ring event shown."""
    gaps: int = 0
    _next_allowed: int | None = None
    _anything: bool = False

    def note(self, event: ClientEvent) -> None:
        if event.type == "state_resync_required":
            self._resync(event.data if isinstance(event.data, dict) else {})
        elif event.type in ("client_evicted", "stream_error"):
            self._anything = True
        elif event.id is not None and event.type not in OWN:
            self._ring_event(event, event.id)

    def _resync(self, data: dict[str, Any]) -> None:
        self.gaps += 1
        earliest = data.get("earliestAvailableId")
        if data.get("reason") == "epoch_reset":
            self.findings.append(f"{self.name}: epoch_reset although the server never restarted: {data}")
        if isinstance(earliest, int):
            self._next_allowed = earliest

    def _ring_event(self, event: ClientEvent, number: int) -> None:
        allowed = {self.last + 1}
        if self._next_allowed is not None:
            allowed.add(self._next_allowed)
        if number not in allowed:
            self.findings.append(f"{self.name}: event {number} came after {self.last}, allowed {sorted(allowed)}")
        self._next_allowed = None
        self.last = max(self.last, number)
        self.shown.append(event)


def check_transcript(findings: Findings, transcript: Transcript, session: Session, head: int) -> None:
    """Everything the ring holds through ``head`` was shown, with the same type and data; what was lost was announced."""
    truth = {event.id: event for event in session.ring.read(0, session.ring.head)}
    seen = Counter(event.id for event in transcript.shown)
    for number, count in seen.items():
        findings.expect(count == 1, f"{transcript.name}: event {number} was shown {count} times")
    if not transcript.gaps:
        missing = sorted(set(range(1, head + 1)) - set(seen))
        findings.expect(not missing, f"{transcript.name}: never shown and no resync said so: {missing[:10]}")
    for event in transcript.shown:
        expected = truth.get(event.id or 0)
        if expected is not None:
            _compare(findings, transcript.name, event, expected)


def _compare(findings: Findings, name: str, shown: ClientEvent, expected: Event) -> None:
    findings.expect(
        shown.type == expected.type, f"{name}: event {expected.id} is {expected.type}, shown as {shown.type}"
    )
    if expected.type == "permission_request":
        # On /acp the request travels as a call of its own; what identifies it is the request id.
        same = isinstance(shown.data, dict) and shown.data.get("requestId") == expected.value()["requestId"]
    else:
        same = shown.data == expected.value()
    findings.expect(same, f"{name}: event {expected.id} was altered: {shown.data!r} for {expected.data!r}")


def check_prompts(findings: Findings, ran: Iterable[str], sessions: Iterable[Session]) -> None:
    """No prompt ran twice; each accepted one has exactly one terminal event; nothing is pending."""
    for name, count in Counter(ran).items():
        findings.expect(count == 1, f"prompt {name} ran {count} times")
    for session in sessions:
        ended = Counter(
            event.value().get("promptId") for event in session.ring.read(0, session.ring.head) if event.type in TERMINAL
        )
        for prompt_id, count in ended.items():
            findings.expect(count == 1, f"prompt {prompt_id} has {count} terminal events")
        findings.expect(session.prompts.count == 0, f"{session.prompts.count} prompts still hold a slot")
        findings.expect(len(session.operations) == 0, f"{len(session.operations)} operations never ended")
        findings.expect(not session.permissions.pending, "a permission request is still open")
