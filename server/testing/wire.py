"""Looking at the bytes: what an `/acp` session stream carried, frame by frame, and in which order.

A client hands replies to whoever waits for them at once, so an early reply cannot be seen from behind it. On the wire it can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import msgspec

from protocol.sse import SseDecoder
from server.testing.oracle import Findings
from sessions import Session

__all__ = ["Recorder", "check_acp_replies"]

_REQUEST: Final = re.compile(rb"(?:^|(?<=\n))(GET|POST|DELETE) (/\S*) HTTP/1\.1\r\n((?:[^\r\n]+\r\n)*)\r\n")


class Recorder:
    """Keeps every byte of every connection; give its `note` to `Network`."""

    def __init__(self) -> None:
        self.up: dict[int, bytearray] = {}
        self.down: dict[int, bytearray] = {}

    def note(self, number: int, direction: str, data: bytes) -> None:
        side = self.up if direction == "up" else self.down
        side.setdefault(number, bytearray()).extend(data)


@attrs.frozen(slots=True)
class _Stream:
    """One ``GET /acp`` for a session: the cursor it came with and the frames it was sent."""

    cursor: int | None
    frames: list[tuple[int | None, dict[str, Any]]]


def check_acp_replies(findings: Findings, recorder: Recorder, session: Session) -> None:
    """No reply before ``replay_complete`` of its stream, none before the content of its prompt (ACP-134, ACP-136)."""
    prompts = _prompt_names(recorder.up.values())
    content = _content_ids(session)
    for number, up in recorder.up.items():
        stream = _session_stream(bytes(up), bytes(recorder.down.get(number, b"")))
        if stream is not None:
            _check_stream(findings, stream, prompts, content)


def _check_stream(findings: Findings, stream: _Stream, prompts: Mapping[Any, str], content: Mapping[str, int]) -> None:
    delivered = stream.cursor or 0
    replaying = stream.cursor is not None
    for event_id, message in stream.frames:
        if event_id is not None:
            findings.expect(event_id > delivered, f"event {event_id} was sent to a reader that had seen {delivered}")
            delivered = max(delivered, event_id)
        elif message.get("method") == "_qwen/notify":
            replaying = replaying and message.get("params", {}).get("kind") != "replay_complete"
        elif "method" not in message and ("result" in message or "error" in message):
            name = prompts.get(message.get("id"), "")
            findings.expect(not replaying, f"the reply to {name or message.get('id')} came before replay_complete")
            last = content.get(name, 0)
            findings.expect(
                delivered >= last, f"the reply to {name} came after event {delivered}, its content ends at {last}"
            )


def _prompt_names(requests: Iterable[bytearray]) -> dict[Any, str]:
    """JSON-RPC id of each ``session/prompt`` to the name of its turn."""
    found: dict[Any, str] = {}
    for up in requests:
        for line in bytes(up).split(b"\r\n"):
            if b'"session/prompt"' not in line:
                continue
            # What follows the body on a kept-alive connection is the next request line.
            text = line[: line.rfind(b"}") + 1]
            try:
                message = msgspec.json.decode(text)
                found[message["id"]] = message["params"]["prompt"][0]["text"].split()[0]
            except (msgspec.DecodeError, KeyError, IndexError, TypeError):
                # Cut in the middle: it was never received either.
                continue
    return found


def _content_ids(session: Session) -> dict[str, int]:
    """Name of a turn to the id of the last chunk it published."""
    found: dict[str, int] = {}
    for event in session.ring.read(0, session.ring.head):
        if event.type == "session_update" and b"agent_message_chunk" in event.data:
            text = event.value()["update"]["content"]["text"]
            found[text.split(".")[0]] = event.id
    return found


def _session_stream(up: bytes, down: bytes) -> _Stream | None:
    requests = list(_REQUEST.finditer(up))
    if not requests or requests[-1].group(1) != b"GET":
        return None
    headers = _headers(requests[-1].group(3))
    start = down.rfind(b"\r\n\r\n", 0, down.find(b"retry: ") if b"retry: " in down else 0)
    if b"acp-session-id" not in headers or start < 0:
        return None
    cursor = headers.get(b"last-event-id")
    decoder = SseDecoder()
    frames: list[tuple[int | None, dict[str, Any]]] = []
    for chunk in _chunks(down[start + 4 :]):
        for event in decoder.receive_data(chunk):
            frames.append((int(event.id) if event.id else None, msgspec.json.decode(event.data)))
    return _Stream(int(cursor) if cursor is not None else None, frames)


def _headers(block: bytes) -> dict[bytes, bytes]:
    pairs = (line.split(b":", 1) for line in block.split(b"\r\n") if b":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _chunks(body: bytes) -> Iterable[bytes]:
    """Undo the chunked transfer coding; a cut one ends where it was cut."""
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end], 16)
        if not size:
            return
        yield body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
