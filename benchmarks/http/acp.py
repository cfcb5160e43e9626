"""The measures of /acp over HTTP and WebSocket."""

from __future__ import annotations

import re
import select
import statistics
import time

from benchmarks.http.acp_wire import ClientSocket, Connection
from benchmarks.http.servers import serving
from benchmarks.http.wire import EXTRA, Streams, bursts

__all__ = ["fan_out", "latency", "replay", "websocket"]

_BURST = 200
"""Events per prompt: /acp offers no larger queue than the default of 256 events."""
_STAMP = re.compile(rb'"text":"(\d+) ')


def fan_out(name: str, subscribers: int = 50, turns: int = 40) -> dict[str, float]:
    """One session, `subscribers` co-owning connections with a session stream each."""
    with serving(name) as server:
        connections = [Connection(server) for _ in range(subscribers)]
        session_id = connections[0].new()
        for connection in connections[1:]:
            connection.call("session/resume", {"sessionId": session_id, "cwd": str(server.workspace)})
        streams = Streams()
        for connection in connections:
            streams.add(connection.open_session(session_id))
        bursts(connections[0].prompt, streams, session_id, 5, _BURST)
        cpu = server.cpu()
        seconds = bursts(connections[0].prompt, streams, session_id, turns, _BURST)
        delivered = turns * (_BURST + EXTRA) * subscribers
        spent = server.cpu() - cpu
        streams.close()
        for connection in connections:
            connection.close()
        return {"events_per_s": delivered / seconds, "cpu_us_per_event": spent / delivered * 1e6}


def replay(name: str, rounds: int = 15) -> dict[str, float]:
    """A session stream that asks for everything in a full ring of 8000."""
    with serving(name) as server:
        connection = Connection(server)
        session_id = connection.new()
        live = Streams()
        live.add(connection.open_session(session_id))
        bursts(connection.prompt, live, session_id, 40, _BURST)  # 8080 events: the ring is full
        head = min(live.counts.values())
        live.close()
        rates = []
        cpu = server.cpu()
        for _ in range(rounds):
            start = time.monotonic()
            streams = Streams()
            streams.add(connection.open_session(session_id, head - 8000))
            rates.append(8000 / (streams.wait_for(8000) - start))
            streams.close()
        spent = server.cpu() - cpu
        connection.close()
        return {
            "events_per_s": statistics.median(rates),
            "first_events_per_s": rates[0],
            "cpu_us_per_event": spent / rounds / 8000 * 1e6,
        }


def websocket(name: str, turns: int = 100) -> dict[str, float]:
    """One session on one WebSocket: session/update messages per second."""
    with serving(name) as server:
        client = ClientSocket(server)
        session_id = client.call("session/new", {"cwd": str(server.workspace), "mcpServers": []})["sessionId"]
        streams = Streams(b'"session/update"')
        client.count_with(streams)
        done = 0
        start = end = cpu = 0.0
        for turn in range(turns + 10):
            if turn == 10:
                cpu, start = server.cpu(), end
            client.prompt(session_id, f"emit={_BURST}")
            done += _BURST + 1  # the echo; turn_complete is another method
            end = streams.wait_for(done)
        delivered = turns * (_BURST + 1)
        spent = server.cpu() - cpu
        streams.close()
        return {"events_per_s": delivered / (end - start), "cpu_us_per_event": spent / delivered * 1e6}


def latency(name: str, sessions: int = 20, rate: int = 20, seconds: int = 15) -> dict[str, float]:
    """From the agent's write to the client's read, on session streams of one connection, in milliseconds.

    The agent stamps each event with the monotonic clock, which all processes of a machine share.
    """
    with serving(name) as server:
        connection = Connection(server)
        epoll = select.epoll()
        by_fd = {}
        for _ in range(sessions):
            session_id = connection.new()
            sock = connection.open_session(session_id)
            sock.recv(4096)
            by_fd[sock.fileno()] = (sock, session_id)
            epoll.register(sock.fileno(), select.EPOLLIN)
        for _, session_id in by_fd.values():
            connection.prompt(session_id, f"emit={rate * seconds} rate={rate}")
        rests = dict.fromkeys(by_fd, b"")
        delays: list[float] = []
        end = time.monotonic() + seconds + 30
        while len(delays) < sessions * rate * seconds and time.monotonic() < end:
            for fd, _ in epoll.poll(0.5):
                data = rests[fd] + by_fd[fd][0].recv(1 << 16)
                now = time.monotonic_ns()
                whole, mark, rests[fd] = data.rpartition(b"\n\n")
                delays += [(now - int(stamp)) / 1e6 for stamp in _STAMP.findall(whole + mark)]
        for sock, _ in by_fd.values():
            sock.close()
        connection.close()
        if len(delays) < sessions * rate * seconds:
            raise RuntimeError(f"{len(delays)} of {sessions * rate * seconds} events came")
        settled = sorted(delays[sessions * rate :])  # the first second belongs to the prompts
        return {"p50_ms": settled[len(settled) // 2], "p99_ms": settled[len(settled) * 99 // 100]}
