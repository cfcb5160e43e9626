"""Ten thousand sessions: created, left idle, then all prompted once.

`qwen serve` bounds how many messages may wait to be written to its agent, and ends the agent with all its sessions when
there are more. Prompted at full speed 7,000 sessions were kept; of 10,000 it lost those after the first 4,600 and 8,300
prompts in two runs, and none in a third on a busier machine.
"""

from __future__ import annotations

import time

from benchmarks.http.servers import Server, serving
from benchmarks.http.wire import Control, open_stream

__all__ = ["many_sessions"]


def many_sessions(name: str, count: int = 10_000, idle_s: float = 10.0) -> dict[str, float]:
    """Creation and prompts per second, memory per session, and how many prompts were refused or have no outcome (`lost`)."""
    with serving(name) as server:
        control = Control(server)
        control.prompt(control.create(), "hi")
        before = server.rss()
        start = time.monotonic()
        sessions = [control.create() for _ in range(count)]
        created = count / (time.monotonic() - start)
        time.sleep(idle_s)
        idle = server.rss() - before
        start = time.monotonic()
        prompts = [_accepted(control, session_id) for session_id in sessions]
        lost = sum(not _completed(server, *pair) for pair in zip(sessions, prompts, strict=True))
        finished = count / (time.monotonic() - start)
        prompted = server.rss() - before
        return {
            "created_per_s": created,
            "prompted_per_s": finished,
            "lost": lost,
            "kib_per_idle_session": idle / count / 1024,
            "kib_per_prompted_session": prompted / count / 1024,
        }


def _accepted(control: Control, session_id: str) -> str | None:
    try:
        prompt_id: str = control.prompt(session_id, "hi")["promptId"]
    except RuntimeError:
        return None
    return prompt_id


def _completed(server: Server, session_id: str, prompt_id: str | None) -> bool:
    """Whether the session's stream, from its beginning, has `turn_complete` for the prompt."""
    if prompt_id is None:
        return False
    sock = open_stream(server, f"/session/{session_id}/events", {"Last-Event-ID": "0"})
    sock.settimeout(10)
    data = b""
    try:
        while b'"type":"turn_complete"' not in data:
            chunk = sock.recv(65536)
            if not chunk:
                return False
            data += chunk
            if not data.startswith(b"HTTP/1.1 200"):
                return False
        while not data.endswith(b"\n\n") and not data.endswith(b"\n\n\r\n"):
            data += sock.recv(65536)
    except TimeoutError:
        return False
    finally:
        sock.close()
    ending = data[data.index(b'"type":"turn_complete"') :]
    return prompt_id.encode() in ending
