"""Events as lines for a terminal, and as JSON lines for programs."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from client import Event

__all__ = ["Printer", "as_json", "harmless"]

_KEPT = {"\n", "\t"}


def harmless(text: str) -> str:
    """``text`` without characters that could steer a terminal: agents print whatever a web page told them to."""
    return "".join(
        character
        for character in text
        if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    )


def as_json(event: Event) -> str:
    """One line: id, type, data and whose prompt it belongs to."""
    fields: dict[str, Any] = {"id": event.id, "type": event.type, "data": event.data, "promptId": event.prompt_id}
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode()


class Printer:
    """Writes events as they come. Message chunks run on, everything else gets a line of its own."""

    def __init__(self, *, json: bool = False, quiet: bool = False) -> None:
        self._json = json
        self._quiet = quiet
        self._in_text = False

    def show(self, event: Event) -> None:
        """Print one event."""
        if self._json:
            click.echo(as_json(event))
            return
        if event.update_kind == "agent_message_chunk":
            self._write(harmless(event.text))
            return
        if self._quiet and event.type not in ("permission_request", "turn_error", "state_resync_required"):
            return
        if event.update_kind == "agent_thought_chunk":
            self._write(click.style(harmless(event.text), dim=True))
            return
        line = _line(event)
        if line is not None:
            self.line(line)

    def line(self, text: str) -> None:
        """A line of its own."""
        self.end_text()
        click.echo(text)

    def end_text(self) -> None:
        """End a line of running text."""
        if self._in_text:
            click.echo()
        self._in_text = False

    def _write(self, text: str) -> None:
        if text:
            click.echo(text, nl=False)
            self._in_text = not text.endswith("\n")


def _line(event: Event) -> str | None:
    data = event.data if isinstance(event.data, dict) else {}
    if event.type == "session_update":
        return _update_line(event, data)
    if event.type == "permission_request":
        options = ", ".join(harmless(str(option.get("optionId"))) for option in _dicts(data.get("options")))
        return click.style(f"? {_tool(data.get('toolCall'))}: {options}", fg="yellow")
    if event.type == "permission_resolved":
        return click.style(f"? {_outcome(data.get('outcome'))}", fg="yellow", dim=True)
    if event.type == "turn_complete":
        return click.style(f"-- {harmless(str(data.get('stopReason', 'end_turn')))}", dim=True)
    if event.type == "turn_error":
        return click.style(f"-- failed: {harmless(str(data.get('message', '')))}", fg="red")
    if event.type == "state_resync_required":
        return click.style(f"-- events are missing here ({harmless(str(data.get('reason')))})", fg="magenta")
    if event.type in ("session_closed", "session_died"):
        return click.style(f"-- {event.type}: {harmless(str(data.get('reason', '')))}", fg="magenta")
    return None


def _update_line(event: Event, data: dict[str, Any]) -> str | None:
    update = data.get("update")
    if not isinstance(update, dict):
        return None
    if event.update_kind == "user_message_chunk":
        return click.style(f"> {harmless(event.text)}", bold=True)
    if event.update_kind in ("tool_call", "tool_call_update"):
        return click.style(f"* {_tool(update)} {harmless(str(update.get('status') or ''))}".rstrip(), fg="cyan")
    if event.update_kind == "plan":
        entries = [f"  {harmless(str(entry.get('content')))}" for entry in _dicts(update.get("entries"))]
        return click.style("\n".join(["* plan", *entries]), fg="cyan")
    return None


def _tool(call: object) -> str:
    fields = call if isinstance(call, dict) else {}
    return harmless(str(fields.get("title") or fields.get("toolCallId") or "tool"))


def _outcome(outcome: object) -> str:
    fields = outcome if isinstance(outcome, dict) else {}
    return harmless(str(fields.get("optionId") or fields.get("outcome") or "resolved"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
