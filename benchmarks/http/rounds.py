"""Prompt round trips through a trivial agent: the agent alone on its pipes, and behind each server over /acp.

`width` sessions have one prompt under way each. The next is sent when the reply to the last is there.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.http.acp_wire import ClientSocket, Connection, prompt_message
from benchmarks.http.servers import AGENT, ROOT, Server, serving

__all__ = ["LIBRARY_AGENT", "alone", "over_copies", "over_http", "over_websocket"]

LIBRARY_AGENT = (sys.executable, str(ROOT / "tests/interop/agents/pypi_agent.py"))
"""A trivial agent on the official Python library: what a real one costs at least."""
_REPLY = b'"result":{"stopReason"'
_NUMBERED_REPLY = re.compile(rb'"id":(\d+),"result":\{"stopReason"')


def alone(agent: tuple[str, ...] = AGENT, width: int = 1, seconds: float = 4.0) -> float:
    """Round trips per second of the agent on its own stdin and stdout."""
    process = subprocess.Popen(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=Path.cwd())
    assert process.stdin is not None
    assert process.stdout is not None
    rate = _over_lines(process.stdin.write, partial(os.read, process.stdout.fileno()), width, seconds)
    process.kill()
    process.wait()
    return rate


def over_copies(agent: tuple[str, ...] = AGENT, width: int = 1, seconds: float = 4.0) -> dict[str, float]:
    """Round trips per second of the agent behind the relay that copies bytes between a TCP connection and its pipes."""
    with serving("copies", agent=agent) as server, socket.create_connection(server.address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return {"per_s": _over_lines(sock.sendall, sock.recv, width, seconds)}


def _over_lines(write: Callable[[bytes], object], read: Callable[[int], bytes], width: int, seconds: float) -> float:
    rest = b""

    def send(message: object) -> None:
        write(msgspec.json.encode(message) + b"\n")

    def lines() -> list[bytes]:
        nonlocal rest
        *whole, rest = (rest + read(1 << 16)).split(b"\n")
        return whole

    def ask(number: int, method: str, params: object) -> dict[str, object]:
        send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            for line in lines():
                message = msgspec.json.decode(line)
                if message.get("id") == number and "method" not in message:
                    result = message["result"]
                    assert isinstance(result, dict)
                    return result

    ask(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    sessions = [str(ask(2 + n, "session/new", {"cwd": "/tmp", "mcpServers": []})["sessionId"]) for n in range(width)]
    prompts = {100 + n: prompt_message(100 + n, session, "hi") for n, session in enumerate(sessions)}
    for message in prompts.values():
        send(message)
    count = 0
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        for line in lines():
            if _REPLY not in line:
                continue
            number = msgspec.json.decode(line)["id"]
            send(prompts[number])
            count += 1
    return count / (time.monotonic() - start)


def _request(server: Server, connection_id: str, message: object) -> bytes:
    body = msgspec.json.encode(message)
    host = f"{server.address[0]}:{server.address[1]}"
    head = f"POST /acp HTTP/1.1\r\nHost: {host}\r\nAcp-Connection-Id: {connection_id}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def over_http(name: str, agent: tuple[str, ...] = AGENT, width: int = 1, seconds: float = 6.0) -> dict[str, float]:
    """Replies per second over POST and session streams of one connection."""
    with serving(name, agent=agent) as server:
        connection = Connection(server)
        epoll = select.epoll()
        streams = {}
        posts = {}
        for n in range(width):
            session_id = connection.new()
            stream = connection.open_session(session_id)
            stream.recv(4096)
            post = socket.create_connection(server.address)
            post.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            message = prompt_message(100 + n, session_id, "hi")
            request = _request(server, connection.headers["Acp-Connection-Id"], message)
            streams[stream.fileno()] = (stream, post, request)
            posts[post.fileno()] = post
            epoll.register(stream.fileno(), select.EPOLLIN)
            epoll.register(post.fileno(), select.EPOLLIN)
        tails = dict.fromkeys(streams, b"")
        for _, post, request in streams.values():
            post.sendall(request)
        count, cpu = 0, server.cpu()
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            for fd, _ in epoll.poll(1.0):
                if fd in posts:
                    posts[fd].recv(65536)  # the 202s: only the replies count
                    continue
                stream, post, request = streams[fd]
                data = tails[fd] + stream.recv(1 << 16)
                found = data.count(_REPLY)
                tails[fd] = data[-(len(_REPLY) - 1) :]
                count += found
                if found:
                    post.sendall(request * found)
        elapsed = time.monotonic() - start
        spent = server.cpu() - cpu
        for stream, post, _ in streams.values():
            stream.close()
            post.close()
        connection.close()
        return {"per_s": count / elapsed, "cpu_us": spent / max(count, 1) * 1e6}


def over_websocket(name: str, agent: tuple[str, ...] = AGENT, width: int = 1, seconds: float = 6.0) -> dict[str, float]:
    """Replies per second over one WebSocket."""
    with serving(name, agent=agent) as server:
        client = ClientSocket(server)
        where = {"cwd": str(server.workspace), "mcpServers": []}
        sessions = [client.call("session/new", where)["sessionId"] for _ in range(width)]
        messages = {1000 + n: prompt_message(1000 + n, session_id, "hi") for n, session_id in enumerate(sessions)}
        for message in messages.values():
            client.send(message)
        count, cpu = 0, server.cpu()
        start = time.monotonic()
        data = b""
        while time.monotonic() - start < seconds:
            data += client.sock.recv(1 << 16)
            numbers = [int(number) for number in _NUMBERED_REPLY.findall(data)]
            data = data[-64:] if not numbers else data[data.rindex(_REPLY) + len(_REPLY) :]
            count += len(numbers)
            for number in numbers:
                client.send(messages[number])
        elapsed = time.monotonic() - start
        spent = server.cpu() - cpu
        client.sock.close()
        return {"per_s": count / elapsed, "cpu_us": spent / max(count, 1) * 1e6}
