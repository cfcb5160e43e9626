"""The questions of acp-http 11 through the real server: what it adds must not change the answers."""

from __future__ import annotations

import trio

from server.config import Config
from tests.support.http import ask, open_raw
from tests.support.serving import UPGRADE, carrier, serving

TOKEN = "mooring-line-7"
EVIL = "https://evil.example"


async def test_refused_upgrade_is_a_bare_status_and_the_end() -> None:
    """ACP-241, ACP-242."""
    async with serving(Config(port=0, token=TOKEN)) as served:
        for headers, status in (({}, 401), ({"Origin": EVIL}, 403), ({"Host": "evil.example"}, 403)):
            async with open_raw(served.port) as raw:
                await raw.request("GET", "/try/ws", host=headers.pop("Host", None), **UPGRADE, **headers)
                reply = await raw.reply()
                assert (reply.status, reply.body) == (status, b"")
                assert await raw.wait_end(within=1) == b""


async def test_upgrade_with_the_token() -> None:
    """ACP-240."""
    async with serving(Config(port=0, token=TOKEN)) as served, open_raw(served.port) as raw:
        offered = f"{carrier(TOKEN)}, qwen-ws"
        await raw.request("GET", "/try/ws", Sec_WebSocket_Protocol=offered, **UPGRADE)
        reply = await raw.reply()
        assert (reply.status, reply.headers["sec-websocket-protocol"]) == (101, "qwen-ws")


async def test_port_zero_is_known_to_the_host_check() -> None:
    """ACP-252 with a port only the system knows."""
    async with serving() as served:
        assert (await ask(served.port, "GET", "/health", host=f"localhost:{served.port}")).status == 200
        assert (await ask(served.port, "GET", "/health", host="localhost:4170")).status == 403


async def test_unauthorized_upload_is_not_read_into_memory_and_sees_its_answer() -> None:
    """ACP-255: the token before the body."""
    async with serving(Config(port=0, token=TOKEN)) as served, open_raw(served.port) as raw:
        size = 5 * 2**20
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raw.send, raw.head("POST", "/try/size", size) + bytes(size))
            reply = await raw.reply()
        assert (reply.status, reply.body) == (401, b'{"error":"Unauthorized"}')
