"""The floors under a prompt round trip: relays between a connection and an agent's pipes, which keep, order and check nothing.

`websocket` is on the same ASGI server as moorline: each message becomes a line on the agent's stdin, each line of its stdout
a message. What moorline takes beyond it is for sessions, replay, ids, permissions and limits.

`copies` is a TCP connection whose bytes two tasks copy, without a look at them: what a second process on Trio costs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import hypercorn.config
import hypercorn.trio
import trio

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def relay(agent: list[str], scope: dict[str, Any], receive: Receive, send: Send, *_: object) -> None:
    """An ASGI application behind its first argument. Every WebSocket gets an agent of its own."""
    if scope["type"] == "lifespan":
        while True:
            await send({"type": (await receive())["type"] + ".complete"})
    await receive()
    await send({"type": "websocket.accept"})
    process = await trio.lowlevel.open_process(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read, process, send)
        while (message := await receive())["type"] == "websocket.receive":
            await process.stdin.send_all(message["text"].encode() + b"\n")
        process.terminate()


async def _read(process: trio.Process, send: Send) -> None:
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await send({"type": "websocket.send", "text": line.decode()})


async def copy(agent: list[str], stream: trio.SocketStream) -> None:
    """Serve one TCP connection, with an agent of its own."""
    process = await trio.lowlevel.open_process(agent, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_copy, process.stdout, stream)
        await _copy(stream, process.stdin)
        process.terminate()


async def _copy(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
    while data := await source.receive_some():
        await sink.send_all(data)


async def main(form: str, *agent: str) -> None:
    """Serve the relay `form` on a free port, which is told on stdout."""
    async with trio.open_nursery() as nursery:
        if form == "websocket":
            settings = hypercorn.config.Config()
            settings.bind = ["127.0.0.1:0"]
            settings.errorlog = None
            serve = partial(hypercorn.trio.serve, partial(relay, list(agent)), settings, mode="asgi")  # type: ignore[arg-type]
            (url,) = await nursery.start(serve)
        else:
            (listener,) = await nursery.start(partial(trio.serve_tcp, partial(copy, list(agent)), 0, host="127.0.0.1"))
            url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        sys.stdout.write(f"listening on {url}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
