"""The client of the benchmarks: raw sockets, one epoll loop, and nothing per event but C-level counting.

Both servers are measured with this same client, so what it costs is the same for both; it must only never be the slowest
part. It does not parse event streams: it counts the line starts `id:`, one per published event.
"""

from __future__ import annotations

import http.client
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from benchmarks.http.servers import Server

__all__ = ["EXTRA", "Control", "Streams", "bursts", "open_stream"]

EXTRA = 2
"""Events the server adds to a turn: the echo of the prompt, turn_complete."""

_MARK = b"\nid:"
_BUFFER_BYTES = 1 << 20
_STALE_S = 1.0


class Control:
    """Requests outside the measured path, on one kept-alive connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection(*server.address, timeout=60)
        self._used = 0.0

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Any:
        """The decoded answer. Raises RuntimeError for a status of 400 and more."""
        answer, _ = self.call_with_headers(method, path, body, headers)
        return answer

    def call_with_headers(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, http.client.HTTPMessage]:
        if time.monotonic() - self._used > _STALE_S:
            self._connection.close()  # opened again by the next request; the server may have ended it
        data = None if body is None else msgspec.json.encode(body)
        json_type = {} if data is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, data, {**json_type, **(headers or {})})
        response = self._connection.getresponse()
        raw = response.read()
        self._used = time.monotonic()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {raw[:300]!r}")
        return (msgspec.json.decode(raw) if raw else None), response.headers

    def create(self) -> str:
        """A new REST session's id."""
        session_id = self.call("POST", "/session", {"sessionScope": "thread"})["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def prompt(self, session_id: str, text: str) -> Any:
        """The 202 envelope of a prompt."""
        return self.call("POST", f"/session/{session_id}/prompt", {"prompt": [{"type": "text", "text": text}]})


def open_stream(
    server: Server, path: str, headers: Mapping[str, str], *, receive_buffer: int | None = None
) -> socket.socket:
    """A blocking socket on which a GET for an event stream has been sent; nothing has been read."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(30)
    sock.connect(server.address)
    host = f"{server.address[0]}:{server.address[1]}"
    fields = {"Host": host, "Accept": "text/event-stream", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    sock.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    return sock


class Streams:
    """Many open event streams read by one loop; counts published events per stream.

    `mark` is what one event looks like: the `id:` line by default.
    """

    def __init__(self, mark: bytes = _MARK) -> None:
        self._epoll = select.epoll()
        self._by_fd: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}
        self.counts: dict[int, int] = {}
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._mark = mark
        self._keep = len(mark) - 1
        self.total_bytes = 0

    def add(self, sock: socket.socket, *, until: bytes = b"retry:") -> None:
        """Takes over `sock` after its answer has begun: reads up to and including `until`. Raises RuntimeError if refused."""
        head = b""
        while until not in head:
            data = sock.recv(4096)
            if not data:
                raise RuntimeError(f"the stream was refused: {head[:300]!r}")
            head += data
        self.adopt(sock, head)

    def adopt(self, sock: socket.socket, head: bytes = b"") -> None:
        """Takes over `sock`, of which `head` has been read."""
        sock.setblocking(False)
        fd = sock.fileno()
        self._by_fd[fd] = sock
        self.counts[fd] = head.count(self._mark)
        self._tails[fd] = head[-self._keep :]
        self._epoll.register(fd, select.EPOLLIN)

    def __len__(self) -> int:
        return len(self._by_fd)

    def close(self) -> None:
        for sock in self._by_fd.values():
            sock.close()
        self._epoll.close()

    def wait_for(self, per_stream: int, timeout_s: float = 120.0) -> float:
        """Reads until every stream has counted `per_stream` events since it was added; the monotonic time of the last.

        Raises RuntimeError when a stream ends (evicted) or the time is over.
        """
        missing = {fd for fd, count in self.counts.items() if count < per_stream}
        end = time.monotonic() + timeout_s
        while missing:
            for fd, _ in self._epoll.poll(0.5):
                if self._read(fd) >= per_stream:
                    missing.discard(fd)
            if time.monotonic() > end:
                short = {self.counts[fd] for fd in missing}
                raise RuntimeError(f"{len(missing)} streams short of {per_stream} events: {sorted(short)[:5]}")
        return time.monotonic()

    def _read(self, fd: int) -> int:
        tail = self._tails[fd]
        start = len(tail)
        self._buffer[:start] = tail
        try:
            size = self._by_fd[fd].recv_into(self._view[start:])
        except BlockingIOError:
            return self.counts[fd]
        if not size:
            raise RuntimeError(f"the server ended a stream after {self.counts[fd]} events: {tail!r}")
        end = start + size
        self.total_bytes += size
        self.counts[fd] += self._buffer.count(self._mark, 0, end)
        self._tails[fd] = bytes(self._view[max(0, end - self._keep) : end])
        return self.counts[fd]


def bursts(prompt: Callable[[str, str], object], streams: Streams, session_id: str, turns: int, size: int) -> float:
    """Seconds for `turns` prompts of `size` events, each sent when all streams have all of the one before."""
    done = min(streams.counts.values())
    start = time.monotonic()
    end = start
    for _ in range(turns):
        prompt(session_id, f"emit={size}")
        done += size + EXTRA
        end = streams.wait_for(done)
    return end - start
