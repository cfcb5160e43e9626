"""The application as an ASGI callable: lifespan, errors, health, metrics, proxies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from server.application import FOREIGN_LOOP, Application
from server.config import Config
from server.middleware.proxy import TrustedProxies
from sessions.observer import Note
from tests.support.asgi import Driver, drive
from tests.support.serving import FakeEngine, fake_engine, try_routes


def make(config: Config | None = None, **more: Any) -> Application:
    return Application(
        config if config is not None else Config(),
        **{"open_engine": fake_engine, "packages": ["server.routes.ops"], "routes": [try_routes], **more},
    )


class Lifespan:
    """The server's side of the ASGI lifespan."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.send_in, self.receive_in = trio.open_memory_channel[dict[str, Any]](10)
        self.send_out, self.receive_out = trio.open_memory_channel[dict[str, Any]](10)

    async def run(self) -> None:
        await self.application({"type": "lifespan", "state": {}}, self.receive_in.receive, self.send_out.send)

    async def say(self, what: str) -> dict[str, Any]:
        await self.send_in.send({"type": f"lifespan.{what}"})
        return await self.receive_out.receive()


# Lifespan


async def test_lifespan_surrounds_the_engine(autojump_clock: MockClock) -> None:
    log = []

    @asynccontextmanager
    async def opener(config: Config, observer: object) -> AsyncIterator[FakeEngine]:
        log.append("open")
        yield FakeEngine()
        await trio.sleep(1)
        log.append("closed")

    lifespan = Lifespan(make(open_engine=opener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        assert await lifespan.say("startup") == {"type": "lifespan.startup.complete"}
        assert log == ["open"]
        assert lifespan.application.is_running
        assert await lifespan.say("shutdown") == {"type": "lifespan.shutdown.complete"}
        # Said when the engine has closed, not before: the server cancels us then.
        assert log == ["open", "closed"]


async def test_an_engine_that_cannot_open_fails_the_start() -> None:
    @asynccontextmanager
    async def opener(config: Config, observer: object) -> AsyncIterator[FakeEngine]:
        raise OSError("no such agent")
        yield FakeEngine()

    lifespan = Lifespan(make(open_engine=opener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        assert await lifespan.say("startup") == {"type": "lifespan.startup.failed", "message": "no such agent"}
    assert not lifespan.application.is_running


async def test_bad_configuration_fails_the_start_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the hypercorn command the environment is read at start-up: importing the module never fails."""
    monkeypatch.setenv("MOORLINE_PORT", "x")
    lifespan = Lifespan(Application(open_engine=fake_engine))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        answer = await lifespan.say("startup")
        assert answer == {
            "type": "lifespan.startup.failed",
            "message": "MOORLINE_PORT: must be a whole number, not 'x'",
        }


async def test_an_engine_that_dies_fails_the_shutdown() -> None:
    """hypercorn stops the process for this, and goes on for anything else."""
    engines = []

    @asynccontextmanager
    async def opener(config: Config, observer: object) -> AsyncIterator[FakeEngine]:
        async with fake_engine(config, observer) as engine:
            engines.append(engine)
            yield engine

    lifespan = Lifespan(make(open_engine=opener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lifespan.run)
        await lifespan.say("startup")
        engines[0].fail.set()
        answer = await lifespan.receive_out.receive()
        assert answer == {"type": "lifespan.shutdown.failed", "message": "the engine is gone"}
    assert lifespan.application.drain.is_cut


async def test_requests_outside_the_lifespan_are_refused() -> None:
    async with trio.open_nursery() as nursery:
        driver = Driver(make(), nursery)
        reply = await driver.request("GET", "/health")
        assert (reply.status, reply.json()) == (503, {"error": "Not running"})
        async with driver.websocket("/try/ws") as socket:
            assert (await socket.answer()).status == 403


async def test_an_application_can_run_again_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    application = make()
    async with drive(application) as driver:
        assert (await driver.request("GET", "/health")).status == 200


def test_on_asyncio_the_start_fails_with_the_sentence() -> None:
    """Whatever else is not as expected: no open port that answers 500 to everything."""
    import asyncio

    sent: list[dict[str, Any]] = []

    async def main() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await make()({"type": "lifespan"}, receive, send)

    asyncio.run(main())
    assert sent == [{"type": "lifespan.startup.failed", "message": FOREIGN_LOOP}]
    assert "hypercorn -k trio server.app" in FOREIGN_LOOP
    assert "python -m server" in FOREIGN_LOOP


# Errors


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/nowhere", 404, {"error": "Not found"}),
        ("POST", "/", 404, {"error": "Not found"}),
        ("DELETE", "/health", 405, {"error": "Method Not Allowed"}),
        ("GET", "/try/crash", 500, {"error": "Internal error"}),
        ("GET", "/try/echo", 405, {"error": "Method Not Allowed"}),
    ],
)
async def test_errors_are_json(method: str, path: str, status: int, body: dict[str, str]) -> None:
    """REST-002, REST-006 (and rest 11 #10)."""
    async with drive(make()) as driver:
        reply = await driver.request(method, path)
        assert (reply.status, reply.json()) == (status, body)
        assert reply.headers["content-type"] == "application/json; charset=utf-8"


async def test_what_crashed_is_not_told_to_the_peer() -> None:
    async with drive(make()) as driver:
        assert b"defect" not in (await driver.request("GET", "/try/crash")).body


async def test_answer_to_a_method_says_what_is_allowed() -> None:
    async with drive(make()) as driver:
        assert "GET" in (await driver.request("DELETE", "/health")).headers["allow"]


# Health and metrics


async def test_health_is_exact() -> None:
    """REST-010, vector T01."""
    async with drive(make()) as driver:
        reply = await driver.request("GET", "/health")
        assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


async def test_deep_health() -> None:
    """REST-010, vector T01."""
    async with drive(make()) as driver:
        body = (await driver.request("GET", "/health?deep=1")).json()
    assert list(body) == [
        "status",
        "workspaceCount",
        "sessions",
        "pendingPermissions",
        "activePrompts",
        "activeWork",
        "activeWorkReporting",
        "activeWorkStaleMs",
        "connectedClients",
        "channelAlive",
        "lastActivityAt",
        "idleSinceMs",
    ]
    assert (body["sessions"], body["pendingPermissions"], body["activePrompts"]) == (2, 4, 3)
    assert (body["activeWork"], body["connectedClients"]) == (True, 5)
    assert body["lastActivityAt"].endswith("Z")


async def test_deep_health_while_draining() -> None:
    """REST-010: 503 with the reason."""
    application = make()
    async with drive(application) as driver:
        application.drain.begin()
        reply = await driver.request("GET", "/health?deep=1")
        assert (reply.status, reply.json()) == (503, {"status": "degraded", "reason": "draining"})
        assert (await driver.request("GET", "/health")).status == 200


async def test_metrics_count_what_the_engine_tells() -> None:
    application = make(Config(token="t"))
    async with drive(application) as driver:
        assert (await driver.request("GET", "/metrics")).status == 401
        metrics = driver.ground.metrics
        metrics.note(Note.SESSION_STARTED, session_id="s", cwd="/", start="new")
        metrics.note(Note.SESSION_ENDED, session_id="s", reason="idle")
        metrics.note(Note.PROMPT_ACCEPTED, session_id="s", prompt_id="p", pending=1)
        metrics.note(Note.PROMPT_REFUSED, session_id="s", pending=5, limit=5)
        metrics.note(
            Note.OPERATION_SETTLED, session_id="s", operation_id="p", state="completed", reason=None, seconds=2.0
        )
        metrics.note(Note.SUBSCRIBER_EVICTED, session_id="s", cursor=3)
        metrics.note(Note.RUNNER_FAILED, session_id="s", problem="x")
        reply = await driver.request("GET", "/metrics", Authorization="Bearer t")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    lines = reply.body.decode().splitlines()
    for line in (
        'moorline_sessions_started_total{start="new"} 1.0',
        'moorline_sessions_ended_total{reason="idle"} 1.0',
        "moorline_prompts_accepted_total 1.0",
        "moorline_prompts_refused_total 1.0",
        'moorline_operations_settled_total{reason="",state="completed"} 1.0',
        "moorline_subscribers_evicted_total 1.0",
        'moorline_engine_faults_total{kind="runner_failed"} 1.0',
        'moorline_operation_seconds_bucket{le="5.0"} 1.0',
        "moorline_sessions 2.0",
        "moorline_prompts_active 3.0",
        "moorline_connections 0.0",
    ):
        assert line in lines


# Reverse proxies


async def seen(
    networks: tuple[str, ...], headers: list[tuple[str, str]], client: str = "10.0.0.9", kind: str = "http"
) -> tuple[str, str]:
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append((scope["client"][0], scope["scheme"]))

    scope = {
        "type": kind,
        "client": (client, 1234),
        "scheme": "http" if kind == "http" else "ws",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
    }
    await TrustedProxies(app, networks)(scope, None, None)  # type: ignore[arg-type]  # nothing is received or sent
    return found[0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], ("10.0.0.9", "http")),
        ([("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Proto", "https")], ("203.0.113.7", "https")),
        ([("X-Forwarded-For", "127.0.0.1, 203.0.113.7")], ("203.0.113.7", "http")),
        ([("X-Forwarded-For", "203.0.113.7, 10.0.0.8")], ("203.0.113.7", "http")),
        ([("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-For", "10.0.0.8")], ("203.0.113.7", "http")),
        ([("X-Forwarded-For", "nonsense")], ("10.0.0.9", "http")),
        ([("X-Forwarded-For", "203.0.113.7:4711")], ("203.0.113.7", "http")),
        ([("Forwarded", "for=203.0.113.7;proto=https")], ("203.0.113.7", "https")),
        ([("Forwarded", 'for="[2001:db8::1]:4711";proto=https, for=10.0.0.8')], ("2001:db8::1", "https")),
        ([("Forwarded", "for=unknown")], ("10.0.0.9", "http")),
        ([("Forwarded", "for=203.0.113.7"), ("X-Forwarded-For", "198.51.100.1")], ("203.0.113.7", "http")),
    ],
)
async def test_trusted_proxy_tells_the_client(headers: list[tuple[str, str]], expected: tuple[str, str]) -> None:
    """From the right, the first address that is no trusted proxy; what stands left of it was written by anybody."""
    assert await seen(("10.0.0.0/8",), headers) == expected


async def test_anybody_else_is_not_believed() -> None:
    assert await seen(("10.0.0.0/8",), [("X-Forwarded-For", "127.0.0.1")], client="192.0.2.1") == ("192.0.2.1", "http")


async def test_websocket_scheme() -> None:
    assert (
        await seen(
            ("10.0.0.0/8",), [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Proto", "https")], kind="websocket"
        )
    )[1] == "wss"


async def test_proxies_do_not_change_the_host_check() -> None:
    """A page that rebinds could forge the header of a proxy as well."""
    async with drive(make(Config(trust_proxy=("127.0.0.0/8",)))) as driver:
        reply = await driver.request("GET", "/health", Host="evil.example", X_Forwarded_Host="127.0.0.1:4170")
        assert reply.status == 403
