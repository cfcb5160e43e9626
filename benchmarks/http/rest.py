"""The measures of the REST + SSE surface. Each starts its own server, so that no measure inherits another's heap."""

from __future__ import annotations

import socket
import statistics
import time

from benchmarks.http.servers import Server, serving
from benchmarks.http.wire import EXTRA, Control, Streams, bursts, open_stream

__all__ = ["cost_per_ring", "cost_per_subscribers", "fan_out", "idle_streams", "never_reading", "one_by_one", "replay"]

_BURST = 1000
"""Events per prompt: below the largest queue a subscriber of the shipped daemon may ask for (2048)."""


def _events_path(session_id: str) -> str:
    return f"/session/{session_id}/events?maxQueued=2048"


def _subscribe(server: Server, session_id: str, count: int) -> Streams:
    streams = Streams()
    for _ in range(count):
        streams.add(open_stream(server, _events_path(session_id), {}))
    return streams


def fan_out(name: str, subscribers: int = 50, turns: int = 12) -> dict[str, float]:
    """One session, `subscribers` streams: events delivered per second, and server CPU per delivered event."""
    with serving(name) as server:
        control = Control(server)
        session_id = control.create()
        streams = _subscribe(server, session_id, subscribers)
        bursts(control.prompt, streams, session_id, 3, _BURST)
        cpu = server.cpu()
        seconds = bursts(control.prompt, streams, session_id, turns, _BURST)
        delivered = turns * (_BURST + EXTRA) * subscribers
        spent = server.cpu() - cpu
        streams.close()
        return {"events_per_s": delivered / seconds, "cpu_us_per_event": spent / delivered * 1e6}


def one_by_one(name: str) -> dict[str, float]:
    """One session, one stream."""
    return fan_out(name, subscribers=1, turns=40)


def replay(name: str, rounds: int = 15) -> dict[str, float]:
    """A stream that asks for everything in a full ring of 8000: events per second from connect to the last of them."""
    with serving(name) as server:
        control = Control(server)
        session_id = control.create()
        live = _subscribe(server, session_id, 1)
        bursts(control.prompt, live, session_id, 8, _BURST)  # 8016 events: the ring is full
        head = min(live.counts.values())
        live.close()
        rates = []
        cpu = server.cpu()
        for _ in range(rounds):
            start = time.monotonic()
            streams = Streams()
            streams.add(open_stream(server, _events_path(session_id), {"Last-Event-ID": str(head - 8000)}))
            rates.append(8000 / (streams.wait_for(8000) - start))
            streams.close()
        spent = server.cpu() - cpu
        return {
            "events_per_s": statistics.median(rates),
            "first_events_per_s": rates[0],
            "cpu_us_per_event": spent / rounds / 8000 * 1e6,
        }


def idle_streams(name: str, streams: int = 1000, per_session: int = 50) -> dict[str, float]:
    """Server memory per idle stream."""
    with serving(name) as server:
        control = Control(server)
        sessions = [control.create() for _ in range(streams // per_session)]
        warm = [_subscribe(server, session_id, 1) for session_id in sessions]
        for each in warm:
            each.close()
        time.sleep(2)
        before = server.rss()
        opened = [_subscribe(server, session_id, per_session) for session_id in sessions]
        time.sleep(3)
        grown = server.rss() - before
        for each in opened:
            each.close()
        return {"kib_per_stream": grown / streams / 1024}


def never_reading(name: str, seconds: float = 60.0) -> dict[str, float]:
    """One stream that is never read beside one that is, under events at full speed: growth of server memory."""
    with serving(name) as server:
        control = Control(server)
        session_id = control.create()
        streams = _subscribe(server, session_id, 1)
        bursts(control.prompt, streams, session_id, 10, _BURST)
        before = server.rss()
        stuck = open_stream(server, _events_path(session_id), {}, receive_buffer=4096)
        peak = before
        events = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            bursts(control.prompt, streams, session_id, 5, _BURST)
            events += 5 * (_BURST + EXTRA)
            peak = max(peak, server.rss())
        after = server.rss()
        evicted = _was_ended(stuck)
        streams.close()
        mib = 1024 * 1024
        return {
            "peak_growth_mib": (peak - before) / mib,
            "end_growth_mib": (after - before) / mib,
            "events": events,
            "evicted": float(evicted),
        }


def _was_ended(sock: socket.socket) -> bool:
    """Whether the server has ended `sock`, once everything it had sent is read."""
    sock.settimeout(5)
    try:
        while sock.recv(1 << 20):
            continue
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    finally:
        sock.close()
    return True


def cost_per_subscribers(name: str, counts: tuple[int, ...] = (1, 2, 5, 10, 50, 200, 500)) -> dict[str, float]:
    """Server CPU per delivered event as the subscribers of one session grow; the shipped daemon allows 64."""
    flags = ("--max-subscribers", "0") if name == "moorline" else ()
    curve: dict[str, float] = {}
    for count in counts:
        if name == "qwen" and count > 64:
            continue
        with serving(name, *flags) as server:
            control = Control(server)
            session_id = control.create()
            streams = _subscribe(server, session_id, count)
            bursts(control.prompt, streams, session_id, 2, _BURST)
            turns = max(4, 40 // count)
            cpu = server.cpu()
            bursts(control.prompt, streams, session_id, turns, _BURST)
            curve[str(count)] = (server.cpu() - cpu) / (turns * (_BURST + EXTRA) * count) * 1e6
            streams.close()
    return curve


def cost_per_ring(name: str, sizes: tuple[int, ...] = (1_000, 8_000, 100_000, 1_000_000)) -> dict[str, float]:
    """Server CPU per event delivered to one subscriber while a ring of that size is full and evicts."""
    curve: dict[str, float] = {}
    for size in sizes:
        flags: tuple[str, ...] = ("--event-ring-size", str(size))
        if name == "moorline":
            flags += ("--ring-bytes", str(8 * 2**30))
        with serving(name, *flags) as server:
            control = Control(server)
            session_id = control.create()
            streams = _subscribe(server, session_id, 1)
            bursts(control.prompt, streams, session_id, size // _BURST + 2, _BURST)
            cpu = server.cpu()
            bursts(control.prompt, streams, session_id, 40, _BURST)
            curve[str(size)] = (server.cpu() - cpu) / (40 * (_BURST + EXTRA)) * 1e6
            curve[f"rss_mib_{size}"] = server.rss() / 2**20
            streams.close()
    return curve
