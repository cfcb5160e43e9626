"""The floor under a prompt round trip: a relay between a WebSocket and an agent's pipes, on the same ASGI server.

It keeps nothing, orders nothing and checks nothing: each message becomes a line on the agent's stdin, each line of its
stdout a message. What moorline takes beyond it is for sessions, replay, ids, permissions and limits; what the relay takes
itself is the WebSocket, the ASGI server, Trio and the pipes.
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


async def main(agent: list[str]) -> None:
    settings = hypercorn.config.Config()
    settings.bind = ["127.0.0.1:0"]
    settings.errorlog = None
    async with trio.open_nursery() as nursery:
        serve = partial(hypercorn.trio.serve, partial(relay, agent), settings, mode="asgi")  # type: ignore[arg-type]
        for url in await nursery.start(serve):
            sys.stdout.write(f"listening on {url}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, sys.argv[1:])
