"""What an agent says that is no protocol: counted always, logged at a bounded rate, and its last words kept."""

from __future__ import annotations

from typing import Any, Final

import attrs
import trio

from server.telemetry import logger_of

__all__ = ["STDERR_LINE", "STDERR_TAIL", "AgentStatistics", "Diagnostics"]

STDERR_LINE: Final = 2048
"""Bytes of one stderr line that reach the log; the rest of the line is cut."""
STDERR_TAIL: Final = 2048
"""Bytes of stderr kept to explain an agent that did not start."""
LOG_BURST: Final = 100
"""Records an agent may cause at once."""
LOG_RATE: Final = 20.0
"""Records a second an agent may cause in the long run. What is over is counted, and the count is logged."""
NOISE_SHOWN: Final = 200
"""Bytes of a noise line that reach the log."""


def shown(data: bytes) -> str:
    """Text fit for a log: an agent must not steer the terminal of whoever reads it."""
    text = data.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


@attrs.frozen(slots=True)
class AgentStatistics:
    """Counts since the process started."""

    noise_lines: int
    """Lines on stdout that are no JSON-RPC message (C-045)."""
    stray_answers: int
    """Answers to nothing we still wait for."""
    stray_updates: int
    """Updates for a session that is not, or no longer, on this agent (C-068)."""
    overlong_lines: int
    stderr_bytes: int
    suppressed_records: int


class Diagnostics:
    """The counters of one agent process and its way into the log."""

    def __init__(self, name: str, log: Any = None) -> None:
        self._log = (log if log is not None else logger_of("agent")).bind(agent=name)
        self._tokens = float(LOG_BURST)
        self._refilled = trio.current_time()
        self._unreported = 0
        self._stderr_rest = b""
        self._tail = b""
        self.noise_lines = 0
        self.stray_answers = 0
        self.stray_updates = 0
        self.overlong_lines = 0
        self.stderr_bytes = 0
        self.suppressed_records = 0

    def bind(self, **fields: object) -> None:
        self._log = self._log.bind(**fields)

    def statistics(self) -> AgentStatistics:
        return AgentStatistics(**{field.name: getattr(self, field.name) for field in attrs.fields(AgentStatistics)})

    def note(self, event: str, **fields: object) -> None:
        """A record of the agent's life; rare, never suppressed."""
        self._log.info(event, **fields)

    def complain(self, event: str, **fields: object) -> None:
        """A record an agent can cause at will."""
        if self._allowed():
            self._log.warning(event, **fields)

    def noise(self, line: bytes) -> None:
        self.noise_lines += 1
        if line.strip():
            self.complain("agent_noise", line=shown(line[:NOISE_SHOWN]), noise_lines=self.noise_lines)

    def stderr(self, chunk: bytes) -> None:
        """Log stderr line by line as far as the rate allows; a flood costs neither memory nor time (C-098)."""
        self.stderr_bytes += len(chunk)
        self._tail = (self._tail + chunk[-STDERR_TAIL:])[-STDERR_TAIL:]
        if not self._has_tokens():
            self._suppress(chunk.count(b"\n"))
            self._stderr_rest = b""
            return
        *lines, rest = (self._stderr_rest + chunk).split(b"\n")
        self._stderr_rest = rest[-STDERR_TAIL:]
        for number, line in enumerate(lines):
            if not self._allowed():
                self._suppress(len(lines) - number - 1)
                break
            if text := line[:STDERR_LINE].strip():
                self._log.info("agent_stderr", line=shown(text))

    def last_words(self) -> str:
        """The end of stderr, for the error that says why an agent is gone."""
        return shown(self._tail.strip())

    def _has_tokens(self) -> bool:
        now = trio.current_time()
        self._tokens = min(float(LOG_BURST), self._tokens + (now - self._refilled) * LOG_RATE)
        self._refilled = now
        return self._tokens >= 1

    def _allowed(self) -> bool:
        if not self._has_tokens():
            self._suppress(1)
            return False
        self._tokens -= 1
        if self._unreported:
            self._log.warning("agent_records_suppressed", count=self._unreported)
            self._unreported = 0
        return True

    def _suppress(self, count: int) -> None:
        self.suppressed_records += count
        self._unreported += count
