"""/acp for the benchmarks: one connection over HTTP, and one over a WebSocket, both on raw sockets."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.http.servers import Server
from benchmarks.http.wire import Control, Streams, open_stream

__all__ = ["ClientSocket", "Connection", "prompt_message"]


def prompt_message(number: int, session_id: str, text: str) -> dict[str, Any]:
    """A session/prompt request."""
    blocks = [{"type": "text", "text": text}]
    params = {"sessionId": session_id, "prompt": blocks}
    return {"jsonrpc": "2.0", "id": number, "method": "session/prompt", "params": params}


class Connection:
    """One `initialize`d connection and its connection stream; replies are read by blocking calls, outside measured paths."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.control = Control(server)
        self._number = 0
        params = {"protocolVersion": 1, "clientCapabilities": {}}
        _, headers = self.control.call_with_headers("POST", "/acp", self._message("initialize", params))
        self.headers = {"Acp-Connection-Id": headers["Acp-Connection-Id"]}
        self._replies = http.client.HTTPConnection(*server.address, timeout=60)
        self._replies.request("GET", "/acp", headers={"Accept": "text/event-stream", **self.headers})
        self._lines = self._read_lines()

    def _message(self, method: str, params: object) -> dict[str, Any]:
        self._number += 1
        return {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}

    def _read_lines(self) -> Iterator[dict[str, Any]]:
        response = self._replies.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the connection stream was refused: {response.status}")
        for line in response:
            if line.startswith(b"data:"):
                yield msgspec.json.decode(line[5:])

    def call(self, method: str, params: object) -> Any:
        """The result of a method whose reply travels on the connection stream."""
        message = self._message(method, params)
        self.control.call("POST", "/acp", message, self.headers)
        for reply in self._lines:
            if reply.get("id") == message["id"] and "method" not in reply:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
        raise RuntimeError("the connection stream ended")

    def new(self) -> str:
        session_id = self.call("session/new", {"cwd": str(self.server.workspace), "mcpServers": []})["sessionId"]
        assert isinstance(session_id, str)
        return session_id

    def open_session(self, session_id: str, cursor: int | None = None) -> socket.socket:
        """The session stream, unread."""
        fields = {**self.headers, "Acp-Session-Id": session_id}
        if cursor is not None:
            fields["Last-Event-ID"] = str(cursor)
        return open_stream(self.server, "/acp", fields)

    def prompt(self, session_id: str, text: str) -> None:
        """Sends a prompt; its reply travels on the session stream."""
        self._number += 1
        self.control.call("POST", "/acp", prompt_message(self._number, session_id, text), self.headers)

    def close(self) -> None:
        self.control.close()
        self._replies.close()


class ClientSocket:
    """A WebSocket without extensions: masked text frames out, raw bytes in."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(server.address, timeout=30)
        key = base64.b64encode(os.urandom(16)).decode()
        host = f"{server.address[0]}:{server.address[1]}"
        self.sock.sendall(
            f"GET /acp HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.sock.recv(4096)
        if b" 101 " not in head:
            raise RuntimeError(f"the upgrade was refused: {head[:300]!r}")
        self._rest = head.partition(b"\r\n\r\n")[2]
        self._number = 0
        params = {"protocolVersion": 1, "clientCapabilities": {}}
        self.call("initialize", params)

    def send(self, message: object) -> None:
        data = msgspec.json.encode(message)
        size = len(data)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
        self.sock.sendall(head + b"\0\0\0\0" + data)  # a mask of zeros leaves the payload as it is

    def call(self, method: str, params: object) -> Any:
        """The result of `method`; what comes before its reply is dropped."""
        self._number += 1
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while True:
            message = msgspec.json.decode(self._receive())
            if message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def prompt(self, session_id: str, text: str) -> None:
        self._number += 1
        self.send(prompt_message(self._number, session_id, text))

    def _receive(self) -> bytes:
        """The payload of the next text frame; control frames are dropped."""
        while True:
            head = self._exactly(2)
            size = head[1] & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            payload = self._exactly(size)
            if head[0] & 0x0F == 1:
                return payload

    def _exactly(self, size: int) -> bytes:
        while len(self._rest) < size:
            data = self.sock.recv(65536)
            if not data:
                raise RuntimeError("the server closed the socket")
            self._rest += data
        payload, self._rest = self._rest[:size], self._rest[size:]
        return payload

    def count_with(self, streams: Streams) -> None:
        """Hands the socket over to a counting loop; nothing may be half read."""
        assert not self._rest
        streams.adopt(self.sock)
