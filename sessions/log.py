"""The log port: durable history behind the ring. In memory it is nothing; SQLite and Redis Streams implement it.

The ring stays the hot path and never waits for the log. A `LogWriter` collects what a ring publishes and hands it over in
batches; a log that fails is reported once per session (``session_recording_degraded``) and the session goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs
import trio

from sessions.events import Event

__all__ = ["LogEntry", "LogPort", "LogWriter", "MemoryLog"]

BATCH: Final = 512
"""Events per `LogPort.append`: enough for a group commit, few enough for one transaction (stack.md 5)."""
BACKLOG: Final = 65_536
"""Events a writer holds for a slow log before it gives recording up: the ring, not the log, is the truth for readers."""


@attrs.frozen(slots=True)
class LogEntry:
    """One stored event: ``seq`` is the ring's id within ``epoch``."""

    seq: int
    type: str
    data: bytes
    timestamp: int
    prompt_id: str | None
    originator: str | None


class LogPort(Protocol):
    """Durable storage of event logs, one log per session id. Raises ``OSError`` (or a subclass) when it cannot."""

    async def epoch(self, session_id: str) -> str | None:
        """The epoch of the stored numbering, or None if nothing is stored."""
        ...

    async def begin(self, session_id: str, epoch: str) -> None:
        """Take over the log. The stored epoch is continued; another one starts anew, and appends under the older one are
        refused from now on (fencing)."""
        ...

    async def append(self, session_id: str, epoch: str, batch: Sequence[LogEntry]) -> None:
        """Store a batch in one transaction. ``seq`` grows by 1; a repeat of stored entries is refused."""
        ...

    async def read(self, session_id: str, after: int, limit: int) -> Sequence[LogEntry]:
        """Stored entries with ``seq > after``, oldest first. A trimmed start shows as a first ``seq`` above after + 1."""
        ...

    async def trim(self, session_id: str, keep_after: int) -> None:
        """Forget entries with ``seq <= keep_after``."""
        ...

    async def forget(self, session_id: str) -> None:
        """Forget everything stored for the session."""
        ...


class MemoryLog:
    """The log port kept in memory: the reference for its behaviour, and what tests use. Not bounded by itself."""

    def __init__(self) -> None:
        self._logs: dict[str, tuple[str, list[LogEntry]]] = {}

    async def epoch(self, session_id: str) -> str | None:
        await trio.lowlevel.checkpoint()
        found = self._logs.get(session_id)
        return None if found is None else found[0]

    async def begin(self, session_id: str, epoch: str) -> None:
        await trio.lowlevel.checkpoint()
        if self._logs.get(session_id, (None,))[0] != epoch:
            self._logs[session_id] = (epoch, [])

    async def append(self, session_id: str, epoch: str, batch: Sequence[LogEntry]) -> None:
        await trio.lowlevel.checkpoint()
        if session_id not in self._logs:
            raise FileNotFoundError(session_id)
        current, entries = self._logs[session_id]
        if current != epoch:
            raise PermissionError(f"epoch {epoch} was superseded by {current}")
        expected = entries[-1].seq + 1 if entries else batch[0].seq
        for entry in batch:
            if entry.seq != expected:
                raise FileExistsError(f"seq {entry.seq} where {expected} was due")
            expected += 1
        entries.extend(batch)

    async def read(self, session_id: str, after: int, limit: int) -> Sequence[LogEntry]:
        await trio.lowlevel.checkpoint()
        _, entries = self._logs.get(session_id, ("", []))
        return [entry for entry in entries if entry.seq > after][:limit]

    async def trim(self, session_id: str, keep_after: int) -> None:
        await trio.lowlevel.checkpoint()
        if session_id in self._logs:
            epoch, entries = self._logs[session_id]
            self._logs[session_id] = (epoch, [entry for entry in entries if entry.seq > keep_after])

    async def forget(self, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self._logs.pop(session_id, None)


class LogWriter:
    """Carries one ring's events to a log in batches. `append` is synchronous; `run` is a task beside the session."""

    def __init__(self, log: LogPort, epoch: str, on_failure: Callable[[Exception], None] | None = None) -> None:
        """``on_failure`` is called at most once, with what made the recording end."""
        self._log = log
        self._epoch = epoch
        self._on_failure = on_failure
        self._waiting: list[LogEntry] = []
        self._more = trio.Event()
        self._failed = False
        self._closed = False
        self._written = 0

    @property
    def written(self) -> int:
        """Highest ``seq`` known to be stored."""
        return self._written

    @property
    def failed(self) -> bool:
        return self._failed

    def append(self, event: Event) -> None:
        """Take an event to be stored. Also before `run`: where a session is stored is known once it has its id."""
        if self._failed:
            return
        if len(self._waiting) >= BACKLOG:
            self._fail(BufferError(f"the log is more than {BACKLOG} events behind"))
            return
        self._waiting.append(
            LogEntry(event.id, event.type, event.data, event.timestamp, event.prompt_id, event.originator)
        )
        self._more.set()

    def open(self) -> None:
        """More will come: also after `close`, when a closed session is loaded again."""
        self._closed = False

    def close(self) -> None:
        """No more will come: `run` returns when everything is stored."""
        self._closed = True
        self._more.set()

    async def run(self, session_id: str) -> None:
        """Write until closed or cancelled. A failing log ends the recording of this session, never the session."""
        try:
            await self._log.begin(session_id, self._epoch)
            while not self._failed:
                await self._write_waiting(session_id)
                if self._closed:
                    return
                await self._more.wait()
        except OSError as problem:
            self._fail(problem)

    async def _write_waiting(self, session_id: str) -> None:
        while self._waiting and not self._failed:
            batch = self._waiting[:BATCH]
            await self._log.append(session_id, self._epoch, batch)
            del self._waiting[: len(batch)]
            self._written = batch[-1].seq
        self._more = trio.Event()

    def _fail(self, problem: Exception) -> None:
        self._failed = True
        self._waiting.clear()
        self._more.set()
        if self._on_failure is not None:
            self._on_failure(problem)
