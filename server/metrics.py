"""Counters of the process in Prometheus' text form, and the engine's notes as log lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from server.telemetry import log
from sessions.observer import Note

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LOUD: Final = {
    Note.EVENT_DROPPED: "error",
    Note.RUNNER_FAILED: "error",
    Note.LOG_FAILED: "error",
    Note.SESSION_STARTED: "info",
    Note.SESSION_ENDED: "info",
    Note.SUBSCRIBER_EVICTED: "warning",
    Note.PROMPT_REFUSED: "warning",
}
"""Levels of the notes; what is not here is logged at debug."""


class Metrics:
    """The engine's observer, and the registry behind ``GET /metrics``. One per application; nothing is registered globally."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._log: Any = None
        self._sessions_started = self._counter("sessions_started", "Sessions started, by kind of start", "start")
        self._sessions_ended = self._counter("sessions_ended", "Sessions ended, by reason", "reason")
        self._settled = self._counter(
            "operations_settled", "Operations settled, by state and reason", "state", "reason"
        )
        self._accepted = self._counter("prompts_accepted", "Prompts accepted")
        self._refused = self._counter("prompts_refused", "Prompts refused because a queue was full")
        self._evicted = self._counter("subscribers_evicted", "Readers evicted because they fell behind")
        self._faults = self._counter("engine_faults", "Defects and failures the engine survived, by kind", "kind")
        self._seconds = Histogram(
            "moorline_operation_seconds",
            "Time from acceptance to outcome",
            registry=self.registry,
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 1800),
        )

    def note(self, note: Note, /, **fields: Any) -> None:
        """The engine's `sessions.observer.Observer`: count it, then log it."""
        self._count(note, fields)
        if self._log is None:
            # Bound when the first note comes, when logging is set up: a fresh binding for every prompt costs as much as
            # counting it.
            self._log = log.bind()
        getattr(self._log, _LOUD.get(note, "debug"))(note.value, **fields)

    def watch(self, look: Callable[[], Iterable[Metric]]) -> None:
        """Ask ``look`` for gauges at every scrape."""
        self.registry.register(_Look(look))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"moorline_{name}", doc, labels, registry=self.registry)

    def _count(self, note: Note, fields: dict[str, Any]) -> None:
        match note:
            case Note.SESSION_STARTED:
                self._sessions_started.labels(str(fields.get("start", ""))).inc()
            case Note.SESSION_ENDED:
                self._sessions_ended.labels(str(fields.get("reason", ""))).inc()
            case Note.OPERATION_SETTLED:
                self._settled.labels(str(fields.get("state", "")), str(fields.get("reason", "") or "")).inc()
                self._seconds.observe(float(fields.get("seconds", 0.0)))
            case Note.PROMPT_ACCEPTED:
                self._accepted.inc()
            case Note.PROMPT_REFUSED:
                self._refused.inc()
            case Note.SUBSCRIBER_EVICTED:
                self._evicted.inc()
            case _:
                self._faults.labels(note.value).inc()


class _Look:
    def __init__(self, look: Callable[[], Iterable[Metric]]) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        return self._look()


def gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"moorline_{name}", doc, value=value)


def total(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"moorline_{name}", doc, value=value)
