"""Who may ask (acp-http 11), for every kind of request, through the whole application without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.application import Application
from server.config import Config
from server.security import Policy
from tests.support.asgi import Driver, drive
from tests.support.serving import carrier, fake_engine, try_routes

TOKEN = "mooring-line-7"
EVIL = "https://evil.example"
FRIEND = "https://app.example"
BAD_HOST = {"error": "Invalid Host header"}
BAD_ORIGIN = {"error": "Request denied by CORS policy"}
UNAUTHORIZED = {"error": "Unauthorized"}


@asynccontextmanager
async def driving(loopback: bool | None = None, **settings: Any) -> AsyncIterator[Driver]:
    application = Application(
        Config(**settings),
        open_engine=fake_engine,
        packages=["server.routes.ops"],
        routes=[try_routes],
        loopback=loopback,
        announce=lambda text: None,
    )
    async with drive(application) as driver:
        yield driver


# Host (ACP-252, C-071)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4170", "localhost:4170", "[::1]:4170", "host.docker.internal:4170", "LOCALHOST:4170"]
)
async def test_own_hosts_are_fine(host: str) -> None:
    """ACP-252."""
    async with driving() as driver:
        assert (await driver.request("GET", "/health", Host=host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:4170",
        "evil.example",
        "localhost",
        "127.0.0.1",
        "127.0.0.1:4171",
        "127.0.0.1:04170",
        "localhost:4170.evil.example",
        "[::1]4170",
        "[::1",
        "localhost.:4170",
        "",
        "127.0.0.1:4170@evil.example",
        "0x7f.1:4170",
    ],
)
async def test_foreign_hosts_are_refused(host: str) -> None:
    """ACP-252, C-071: DNS rebinding needs a foreign name."""
    async with driving() as driver:
        for method, path in (("GET", "/health"), ("POST", "/try/echo"), ("GET", "/try/quiet"), ("OPTIONS", "/health")):
            reply = await driver.request(method, path, Host=host)
            assert (reply.status, reply.json()) == (403, BAD_HOST)
        assert driver.ground.engine.open_streams == 0


@pytest.mark.parametrize("origin", [None, "http://evil.example:4170"])
async def test_foreign_host_is_refused_on_upgrade(origin: str | None) -> None:
    """ACP-242, C-071: a bare 403."""
    headers = {"Host": "evil.example:4170"} | ({"Origin": origin} if origin else {})
    async with driving() as driver, driver.websocket("/try/ws", headers=headers.items()) as socket:
        answer = await socket.answer()
        assert (answer.status, answer.headers["content-length"]) == (403, "0")


async def test_two_hosts_are_none() -> None:
    async with driving() as driver:
        reply = await driver.request("GET", "/health", headers=[("Host", "localhost:4170"), ("Host", "evil.example")])
        assert reply.status == 403


def test_port_may_be_left_out_where_it_is_the_default() -> None:
    """ACP-252: port optional for 80 and 443."""
    policy = Policy()
    assert policy.host_is_fine("localhost", 80)
    assert policy.host_is_fine("localhost", 443)
    assert policy.host_is_fine("localhost:443", 443)
    assert not policy.host_is_fine("localhost", 4170)


def test_bound_name_is_fine() -> None:
    """ACP-252: or the bound name."""
    assert Policy(bound_name="::1").host_is_fine("[::1]:4170", 4170)
    assert Policy(bound_name="127.0.0.5").host_is_fine("127.0.0.5:4170", 4170)


async def test_host_is_not_checked_where_others_can_reach_the_server() -> None:
    """ACP-252: loopback bind only; there the token stands guard."""
    async with driving(hostname="0.0.0.0", token=TOKEN) as driver:
        reply = await driver.request("GET", "/try/big?n=1", Host="moorline.example", Authorization=f"Bearer {TOKEN}")
        assert reply.status == 200


# Origin (ACP-253 to ACP-255, C-075, C-076)


@pytest.mark.parametrize("origin", ["http://127.0.0.1:4170", "http://localhost:4170", "http://[::1]:4170"])
async def test_own_origins_are_ignored(origin: str) -> None:
    """ACP-253: accepted, and not granted anything either."""
    async with driving() as driver:
        reply = await driver.request("POST", "/try/echo", body=b"{}", Origin=origin)
        assert reply.status == 200
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_own_origin_where_the_port_is_the_default() -> None:
    """ACP-253: a browser leaves it out, and never says the other scheme's."""
    policy = Policy()
    assert policy.is_own_origin("https://localhost", 443, tls=True)
    assert policy.is_own_origin("http://localhost", 80, tls=False)
    assert not policy.is_own_origin("https://localhost:443", 443, tls=True)
    assert not policy.is_own_origin("http://localhost", 443, tls=True)
    assert not policy.is_own_origin("http://localhost", 443, tls=False)


@pytest.mark.parametrize(
    "origin",
    [EVIL, "null", "http://127.0.0.1:4171", "https://127.0.0.1:4170", "http://localhost", "http://localhost:41700", ""],
)
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_simple_requests_from_elsewhere_change_nothing(origin: str, content_type: str | None) -> None:
    """ACP-253, C-075: a browser sends these without asking first."""
    more = {"Content_Type": content_type} if content_type else {}
    async with driving() as driver:
        reply = await driver.request("POST", "/try/echo", body=b'{"a":1}', Origin=origin, **more)
        assert (reply.status, reply.json()) == (403, BAD_ORIGIN)
        assert reply.headers["vary"] == "Origin"
        assert not any(name.startswith("access-control") for name in reply.headers)


@pytest.mark.parametrize("path", ["/health", "/try/echo", "/try/quiet", "/metrics", "/nowhere"])
async def test_preflight_from_elsewhere_gets_nothing(path: str) -> None:
    """C-076."""
    async with driving(allow_origin=(FRIEND,)) as driver:
        reply = await driver.request("OPTIONS", path, Origin=EVIL, Access_Control_Request_Method="POST")
        assert (reply.status, reply.json()) == (403, BAD_ORIGIN)
        assert not any(name.startswith("access-control") for name in reply.headers)


async def test_preflight_of_an_allowed_origin() -> None:
    """ACP-254, C-076: 204, exactly that origin, and the headers clients need; no token asked for yet."""
    async with driving(allow_origin=(FRIEND,), token=TOKEN) as driver:
        reply = await driver.request("OPTIONS", "/try/echo", Origin=FRIEND, Access_Control_Request_Method="POST")
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-origin"] == FRIEND
    assert reply.headers["vary"] == "Origin"
    assert reply.headers["access-control-allow-methods"] == "GET, POST, PATCH, DELETE, OPTIONS"
    assert reply.headers["access-control-max-age"] == "86400"
    allowed = reply.headers["access-control-allow-headers"].split(", ")
    for name in (
        "Authorization",
        "Content-Type",
        "X-Qwen-Client-Id",
        "Last-Event-ID",
        "X-Qwen-Event-Epoch",
        "Acp-Connection-Id",
        "Acp-Session-Id",
        "Idempotency-Key",
    ):
        assert name in allowed
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    for name in ("Retry-After", "X-Qwen-Event-Epoch", "X-Qwen-SSE-Stream-Id", "Acp-Connection-Id", "Acp-Session-Id"):
        assert name in exposed


@pytest.mark.parametrize(("token", "status"), [(TOKEN, 200), ("wrong", 401)])
async def test_responses_to_an_allowed_origin_can_be_read_by_it(token: str, status: int) -> None:
    """ACP-254: errors too, or a page could not tell what is wrong."""
    async with driving(allow_origin=(FRIEND,), token=TOKEN) as driver:
        reply = await driver.request("POST", "/try/echo", body=b"{}", Origin=FRIEND, Authorization=f"Bearer {token}")
    assert reply.status == status
    assert reply.headers["access-control-allow-origin"] == FRIEND
    assert reply.headers["vary"] == "Origin"
    assert "access-control-expose-headers" in reply.headers


async def test_star_allows_every_origin_but_null() -> None:
    """ACP-253: ``null`` is always refused; the origin is echoed, never the star."""
    async with driving(allow_origin=("*",), token=TOKEN) as driver:
        fine = await driver.request("GET", "/health", Origin=EVIL)
        null = await driver.request("GET", "/health", Origin="null")
    assert (fine.status, fine.headers["access-control-allow-origin"]) == (200, EVIL)
    assert (null.status, null.json()) == (403, BAD_ORIGIN)


# Bearer (ACP-251)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "bEaReR"])
async def test_token_is_accepted(scheme: str) -> None:
    """ACP-251: the scheme is case-insensitive (vector T13)."""
    async with driving(token=TOKEN) as driver:
        reply = await driver.request("GET", "/metrics", Authorization=f"{scheme} {TOKEN}")
        assert reply.status == 200


@pytest.mark.parametrize(
    "value",
    [
        None,
        "Bearer wrong",
        "Basic abc",
        f"Bearer {TOKEN}x",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Token {TOKEN}",
        "Bearer caf\xe9",
    ],
)
async def test_everything_else_is_the_same_401(value: str | None) -> None:
    """ACP-251: missing header, wrong scheme, wrong token (vector T13)."""
    more = {"Authorization": value} if value is not None else {}
    async with driving(token=TOKEN) as driver:
        for path in ("/metrics", "/try/quiet", "/nowhere"):
            reply = await driver.request("GET", path, **more)
            assert (reply.status, reply.body) == (401, b'{"error":"Unauthorized"}')
            assert reply.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"token": TOKEN}, 200),
        ({"token": TOKEN, "require_auth": True}, 401),
        ({"token": TOKEN, "hostname": "0.0.0.0"}, 401),
    ],
)
async def test_health_needs_no_token_on_loopback(settings: dict[str, Any], status: int) -> None:
    """ACP-251, REST-010."""
    async with driving(**settings) as driver:
        assert (await driver.request("GET", "/health")).status == status
        assert (await driver.request("POST", "/health")).status == 401


async def test_loopback_without_a_token_is_trusted() -> None:
    """ACP-250."""
    async with driving() as driver:
        assert (await driver.request("GET", "/metrics")).status == 200


async def test_order_host_then_origin_then_token_then_body() -> None:
    """ACP-255, REST-005: each refusal comes before the next question is asked."""
    async with driving(token=TOKEN, max_body_bytes=1024) as driver:
        large = bytes(2000)

        async def status(**headers: str) -> int:
            reply = await driver.request("POST", "/try/echo", body=large, Content_Length="2000", **headers)
            return reply.status

        assert await status(Host="evil.example", Origin=EVIL) == 403
        reply = await driver.request("POST", "/try/echo", Host="evil.example", Origin=EVIL)
        assert reply.json() == BAD_HOST
        assert await status(Origin=EVIL) == 403
        assert await status() == 401
        assert await status(Authorization=f"Bearer {TOKEN}") == 413


async def test_a_listener_others_can_reach_gets_a_token() -> None:
    """ACP-250: made and told once when none was configured."""
    told: list[str] = []
    application = Application(
        Config(hostname="0.0.0.0"), open_engine=fake_engine, packages=["server.routes.ops"], announce=told.append
    )
    async with drive(application) as driver:
        assert (await driver.request("GET", "/metrics")).status == 401
        (line,) = told
        token = line.rpartition(" ")[2]
        assert len(token) >= 32
        assert (await driver.request("GET", "/metrics", Authorization=f"Bearer {token}")).status == 200


async def test_several_workers_do_not_make_a_token_each() -> None:
    application = Application(Config(hostname="0.0.0.0"), open_engine=fake_engine, workers=2)
    with pytest.raises(RuntimeError, match="MOORLINE_TOKEN"):
        async with application.running():
            raise AssertionError("must not start")


# WebSocket upgrades (ACP-240 to ACP-242, C-072)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": EVIL}, 403),
        ({"Origin": EVIL, "Authorization": f"Bearer {TOKEN}"}, 403),
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 101),
    ],
)
async def test_upgrade_from_elsewhere_or_without_the_token(headers: dict[str, str], status: int) -> None:
    """ACP-241, ACP-242, C-072."""
    async with driving(token=TOKEN) as driver, driver.websocket("/try/ws", headers=headers.items()) as socket:
        assert (await socket.answer()).status == status


@pytest.mark.parametrize("prefix", ["qwen-bearer.", "moorline-bearer."])
async def test_token_in_a_subprotocol(prefix: str) -> None:
    """ACP-240, ACP-241: accepted, and the first neutral name is selected, never the carrier."""
    offered = [carrier(TOKEN, prefix), "qwen-ws", "other"]
    async with driving(token=TOKEN) as driver, driver.websocket("/try/ws", subprotocols=offered) as socket:
        answer = await socket.answer()
        assert (answer.status, answer.headers["sec-websocket-protocol"]) == (101, "qwen-ws")
        socket.send_text("ahoy")
        assert await socket.receive_text() == "ahoy"


async def test_token_in_a_lonely_subprotocol_selects_none() -> None:
    """ACP-240."""
    async with driving(token=TOKEN) as driver:
        async with driver.websocket("/try/ws", subprotocols=[carrier(TOKEN)]) as socket:
            answer = await socket.answer()
            assert answer.status == 101
            assert "sec-websocket-protocol" not in answer.headers


@pytest.mark.parametrize(
    "name", [carrier("wrong"), "qwen-bearer.", "qwen-bearer.!!!", "qwen-bearer." + TOKEN, "qwen-bearer.\xff"]
)
async def test_wrong_subprotocol_token(name: str) -> None:
    """ACP-241."""
    async with driving(token=TOKEN) as driver, driver.websocket("/try/ws", subprotocols=[name, "qwen-ws"]) as socket:
        assert (await socket.answer()).status == 401


async def test_own_origin_and_allowed_origin_may_upgrade() -> None:
    """ACP-242 with ACP-253."""
    async with driving(allow_origin=(FRIEND,)) as driver:
        for origin in (FRIEND, "http://localhost:4170"):
            async with driver.websocket("/try/ws", Origin=origin) as socket:
                assert (await socket.answer()).status == 101
