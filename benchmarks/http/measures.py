"""Every measure by name: how it is taken, which figure counts, and what it must reach (issues 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs

from benchmarks.http import acp, many, rest, rounds
from benchmarks.http.servers import AGENT, NAMES

__all__ = ["MEASURES", "Measure"]

Figures = dict[str, float]


@attrs.frozen(slots=True)
class Measure:
    """`of(server)` takes one round. `target` judges the medians of both servers and returns what it compared."""

    name: str
    title: str
    of: Callable[[str], Figures]
    key: str
    """The figure the target is about."""
    wanted: str
    target: Callable[[Mapping[str, Figures]], tuple[float, bool]]
    repeats: int = 3
    servers: tuple[str, ...] = NAMES


def _ratio(
    key: str, least: float | None = None, most: float | None = None
) -> Callable[[Mapping[str, Figures]], tuple[float, bool]]:
    """moorline's figure by qwen's."""

    def judge(medians: Mapping[str, Figures]) -> tuple[float, bool]:
        value = medians["moorline"][key] / medians["qwen"][key]
        return value, (least is None or value >= least) and (most is None or value <= most)

    return judge


def _most(key: str, most: float) -> Callable[[Mapping[str, Figures]], tuple[float, bool]]:
    def judge(medians: Mapping[str, Figures]) -> tuple[float, bool]:
        return medians["moorline"][key], medians["moorline"][key] <= most

    return judge


def _flat(within: float) -> Callable[[Mapping[str, Figures]], tuple[float, bool]]:
    """The most a point of moorline's curve lies above its first."""

    def judge(medians: Mapping[str, Figures]) -> tuple[float, bool]:
        curve = [value for key, value in medians["moorline"].items() if key.isdigit()]
        worst = max(curve) / curve[0]
        return worst, worst <= within

    return judge


def _share_of_alone(medians: Mapping[str, Figures]) -> tuple[float, bool]:
    best = max(value for key, value in medians["moorline"].items() if key.startswith("share"))
    return best, best >= 0.6


def _round_trips(server: str, agent: tuple[str, ...]) -> Figures:
    """Both transports and two widths, beside the agent alone and behind the bare relays in the same minute."""
    figures: Figures = {}
    for width in (1, 20):
        alone = rounds.alone(agent, width)
        figures[f"alone_{width}"] = alone
        for transport, take in (("http", rounds.over_http), ("ws", rounds.over_websocket)):
            taken = take(server, agent, width)
            figures[f"{transport}_{width}"] = taken["per_s"]
            figures[f"{transport}_{width}_cpu_us"] = taken["cpu_us"]
            figures[f"share_{transport}_{width}"] = taken["per_s"] / alone
        if server == "moorline":
            taken = rounds.over_websocket("relay", agent, width)
            figures[f"relay_ws_{width}"] = taken["per_s"]
            figures[f"relay_ws_{width}_cpu_us"] = taken["cpu_us"]
            figures[f"relay_share_ws_{width}"] = taken["per_s"] / alone
            figures[f"copies_{width}"] = rounds.over_copies(agent, width)["per_s"]
            figures[f"copies_share_{width}"] = figures[f"copies_{width}"] / alone
    return figures


_ALL = (
    Measure("rest_fan_out", "REST fan-out, 1 session × 50 streams", rest.fan_out, "events_per_s", "≥ 2 × qwen serve",
            _ratio("events_per_s", least=2)),
    Measure("rest_replay", "REST replay of a full ring of 8000", rest.replay, "events_per_s", "≥ 4 × qwen serve",
            _ratio("events_per_s", least=4)),
    Measure("rest_one_by_one", "Server CPU per delivered event, 1 × 1", rest.one_by_one, "cpu_us_per_event",
            "≤ 0.5 × qwen serve", _ratio("cpu_us_per_event", most=0.5)),
    Measure("idle_streams", "Server memory per idle SSE stream, 1000 streams", rest.idle_streams, "kib_per_stream",
            "≤ 32 KiB", _most("kib_per_stream", 32)),
    Measure("never_reading", "A subscriber that never reads, 60 s of events at full speed", rest.never_reading,
            "peak_growth_mib", "≤ 64 MiB (ring bytes)", _most("peak_growth_mib", 64), repeats=1),
    Measure("cost_per_subscribers", "Server CPU (µs) per delivered event by number of subscribers",
            rest.cost_per_subscribers, "500", "flat within 1.5 ×", _flat(1.5), repeats=1),
    Measure("cost_per_ring", "Server CPU (µs) per event by size of the full ring", rest.cost_per_ring, "1000000",
            "flat within 1.5 ×", _flat(1.5), repeats=1),
    Measure("acp_fan_out", "/acp fan-out, 1 session × 50 connections", acp.fan_out, "events_per_s", "≥ 2 × qwen serve",
            _ratio("events_per_s", least=2)),
    Measure("acp_replay", "/acp replay of a full ring of 8000", acp.replay, "events_per_s", "≥ 4 × qwen serve",
            _ratio("events_per_s", least=4)),
    Measure("acp_latency", "Emit to receive at 20 sessions × 20 events/s", acp.latency, "p99_ms", "p99 ≤ qwen serve's",
            _ratio("p99_ms", most=1)),
    Measure("acp_websocket", "WebSocket, session/update messages per second", acp.websocket, "events_per_s",
            "≥ 1.5 × qwen serve", _ratio("events_per_s", least=1.5)),
    Measure("round_trips_library", "Prompt round trips/s, agent on the official Python library",
            partial(_round_trips, agent=rounds.LIBRARY_AGENT), "ws_20", "≥ 0.6 × the agent alone", _share_of_alone,
            servers=("moorline",)),  # qwen serve starts agents on Node only
    Measure("round_trips_bare", "Prompt round trips/s, bare agent without a library",
            partial(_round_trips, agent=AGENT), "ws_20", "≥ 0.6 × the agent alone", _share_of_alone),
    Measure("many_sessions", "10,000 sessions created, idle, prompted once each", many.many_sessions,
            "kib_per_idle_session", "nothing lost", _most("lost", 0), repeats=1),
)  # fmt: skip
MEASURES = {measure.name: measure for measure in _ALL}
