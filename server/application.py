"""The ASGI application: the engine's lifetime around Quart's, and the wrappers in front of it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import attrs
import trio

from server.config import Config, load, unknown_variables
from server.ground import Ground
from server.guard_policy import GuardPolicy
from server.metrics import Metrics
from server.middleware.asgi import App, Receive, Scope, Send, respond
from server.middleware.body_limit import BodyLimit
from server.middleware.exchange import Exchange
from server.middleware.proxy import TrustedProxies
from server.nnrp.serving import NnrpServing, serving_nnrp
from server.nnrp.websocket_listener import NnrpGate
from server.security import Policy, Security
from server.shutdown import Drain
from server.telemetry import log, set_up_logging
from server.web import ROUTE_PACKAGES, RoutesMaker, create_web
from sessions.observer import Observer

__all__ = ["FOREIGN_LOOP", "Application", "EngineOpener"]

EngineOpener = Callable[[Config, Observer], AbstractAsyncContextManager[Any]]
"""Opens the harbour for as long as the application runs."""

FOREIGN_LOOP: Final = "moorline runs on Trio: run `hypercorn -k trio server.app` or `python -m server`"


_ENGINE_DRAIN: Final = 2.2
"""Seconds the sessions get to close before their readers are cut, at most: a little more than a turn that does not heed
its cancel is given (`sessions.limits.Limits.close_grace`)."""
_LAST_WORDS: Final = 0.1
"""Seconds for the readers of closed sessions to come to their end by themselves."""


def _announce(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _open_default_engine(config: Config, observer: Observer) -> AbstractAsyncContextManager[Any]:
    from server.engine import open_engine

    return open_engine(config, observer)


class Application:
    """One ASGI callable. ``config`` None: read from the environment at start-up, so that importing a module cannot fail.

    ``loopback`` and ``workers`` say how the server that runs us listens; None: as the configuration says. ``set_up_logs``:
    configure the process's log as the configuration says. ``packages`` are the route packages to mount, ``routes`` makes
    further blueprints, mounted after them. ``announce`` is called with the one line that must reach the operator: a token
    made because none was configured (ACP-250). ``nnrp_port``: where NNRP is served over TCP when the configuration names no
    port; taken by somebody else, the server goes on without and says so in its log.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        open_engine: EngineOpener = _open_default_engine,
        loopback: bool | None = None,
        workers: int = 1,
        set_up_logs: bool = False,
        packages: Sequence[str] = ROUTE_PACKAGES,
        routes: Sequence[RoutesMaker] = (),
        announce: Callable[[str], object] = _announce,
        nnrp_port: int | None = None,
    ) -> None:
        self._config = config
        self._open_engine = open_engine
        self._loopback = loopback
        self._workers = workers
        self._set_up_logs = set_up_logs
        self._announce = announce
        self._packages = packages
        self._routes = routes
        self._nnrp_port = nnrp_port
        self._handler: App | None = None
        self.failure: str | None = None
        """Why it did not start, or why the engine ended, in words for the operator."""
        self.nnrp: NnrpServing | None = None
        """NNRP while it runs; None where it is not served."""
        self.drain = Drain()
        self.guard_policy = GuardPolicy(self.drain)
        """Looked up by `server.guard.GuardedTCPServer`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not trio.lowlevel.in_trio_task():
            await _on_foreign_loop(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self._handler is not None:
            await self._handler(scope, receive, send)
        elif scope["type"] == "http":
            await respond(send, 503, b'{"error":"Not running"}')
        else:
            await send({"type": "websocket.close", "code": 1012})

    @property
    def is_running(self) -> bool:
        return self._handler is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ground]:
        """The application between start-up and shutdown, without the ASGI messages (embedding, tests).

        Leaving it begins the drain and closes the engine. Raises what opening raises; when the engine fails in between,
        the body is cancelled and its error comes out here.
        """
        config = self._settle_config(self._config if self._config is not None else load())
        if self._set_up_logs:
            set_up_logging(config.log_level, config.log_format)
            if unknown := unknown_variables():
                log.warning("unknown_variables", variables=unknown)
        if self._workers > 1:
            log.warning("several_workers_share_no_sessions", workers=self._workers)
        self._apply(config)
        metrics = Metrics()
        async with self._open_engine(config, metrics) as engine:
            async with (
                serving_nnrp(config, engine, self.drain, metrics.watch, self._nnrp_port) as self.nnrp,
                create_web(ground := self._ground(config, engine, metrics), self._packages, self._routes) as web,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(self._drain_engine, engine, min(_ENGINE_DRAIN, 0.55 * config.drain_ms / 1000))
                self._handler = self._wrap(web, config)
                try:
                    yield ground
                finally:
                    self.drain.cut()
                    self._handler = None
                    nursery.cancel_scope.cancel()

    def _ground(self, config: Config, engine: Any, metrics: Metrics) -> Ground:
        return Ground(
            config=config,
            engine=engine,
            drain=self.drain,
            guard=self.guard_policy,
            metrics=metrics,
            nnrp=self.nnrp,
        )

    async def _drain_engine(self, engine: Any, grace: float) -> None:
        """Sessions close over the connections that are still open; then the streams end, whatever came of it."""
        await self.drain.wait_begun()
        with trio.move_on_after(grace):
            await engine.drain(grace)
            await trio.sleep(_LAST_WORDS)
        self.drain.cut()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """The engine dies with its reason, and the server with it: going on without an engine would serve nothing."""
        await receive()
        serving = False
        failures: list[BaseException] = []
        try:
            async with self.running():
                serving = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except* Exception as errors:
            failures.append(errors)
        if not failures:
            await send({"type": "lifespan.shutdown.complete"})
            return
        text = self.failure = "; ".join(_leaves(failures[0]))
        if serving:
            log.error("engine_failed", exc_info=failures[0])
        await send({"type": f"lifespan.{'shutdown' if serving else 'startup'}.failed", "message": text})

    def _settle_config(self, config: Config) -> Config:
        """A listener others can reach gets a token, whatever the configuration says (ACP-250)."""
        loopback = config.loopback if self._loopback is None else self._loopback
        if loopback or config.token is not None:
            return config
        if self._workers > 1:
            raise RuntimeError("several workers on an address others can reach need one token: set MOORLINE_TOKEN")
        token = secrets.token_urlsafe(32)
        self._announce(f"moorline made a token, as none was configured: {token}")
        return attrs.evolve(config, token=token)

    def _apply(self, config: Config) -> None:
        policy = self.guard_policy
        policy.max_connections = config.max_connections
        policy.send_timeout = config.send_timeout_ms / 1000
        policy.head_timeout = policy.tls_timeout = config.request_head_timeout_ms / 1000
        policy.keep_alive = config.keep_alive_ms / 1000
        policy.drain_send = min(1.0, config.drain_ms / 4000)

    def _wrap(self, web: App, config: Config) -> App:
        handler: App = BodyLimit(web, largest=config.max_body_bytes, timeout=config.request_body_timeout_ms / 1000)
        if self.nnrp is not None:
            handler = NnrpGate(handler, self.nnrp.service)
        handler = Security(handler, Policy.of(config, loopback=self._loopback))
        if config.trust_proxy:
            handler = TrustedProxies(handler, config.trust_proxy)
        return Exchange(handler, send_timeout=config.send_timeout_ms / 1000)


async def _on_foreign_loop(scope: Scope, receive: Receive, send: Send) -> None:
    """Started on asyncio after all: say at start-up how it is done, instead of answering every request with 500."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.failed", "message": FOREIGN_LOOP})
    elif scope["type"] == "http":
        await respond(send, 500, b'{"error":"%b"}' % FOREIGN_LOOP.encode())
    else:
        await send({"type": "websocket.close", "code": 1011})


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for each in error.exceptions for text in _leaves(each)]
    return [str(error) or type(error).__name__]
