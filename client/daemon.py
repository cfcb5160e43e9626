"""The client: one daemon, one transport, any number of sessions."""

from __future__ import annotations

import contextlib
import math
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Final

import trio

from client.background import Background
from client.backoff import ReconnectPolicy
from client.deadline import limited
from client.dial import Connect, open_tcp
from client.environment import default_token
from client.errors import DaemonConnectionError, DaemonError, PromptMayBeAcceptedError
from client.http import Answer
from client.limits import OMITTED, Omitted, PromptCounters, PromptLimit, effective_limit
from client.link import ClientContext, SessionLink
from client.open_transport import TransportOptions, make_transport
from client.prompts import Ticket
from client.reader import ReaderOptions
from client.requests import Prompt, PromptRequest, SessionRequest, Vote
from client.results import (
    Capabilities,
    Heartbeat,
    PromptOutcome,
    PromptReceipt,
    PromptResult,
    SessionInfo,
    SessionPage,
)
from client.transport import Transport, TransportKind

__all__ = ["IDEMPOTENCY_FEATURE", "DaemonClient", "open_daemon_client"]

DEFAULT_FETCH_TIMEOUT: Final = 30.0
RESTORE_TIMEOUT: Final = 70.0
"""Seconds for load and resume when nobody says anything else."""
RESTORE_MARGIN: Final = 10.0
"""Seconds given to a daemon beyond its own restore timeout, so that its answer comes first."""
CAPABILITIES_LIFETIME: Final = 60.0
IDEMPOTENCY_FEATURE: Final = "moorline_prompt_idempotency"
"""Feature tag of daemons that run a prompt with a known ``Idempotency-Key`` only once."""
REPEATS: Final = 3
"""How often a prompt whose answer was lost is sent again, to a daemon that recognises it."""


class DaemonClient:
    """One daemon. Calls may come from any task; background readers run in ``nursery`` and end with :meth:`aclose`.

    ``token`` defaults to the environment (``MOORLINE_TOKEN``, ``QWEN_SERVER_TOKEN``). ``fetch_timeout`` in seconds
    bounds every call but prompts, and the opening of streams; 0 and infinity switch it off. ``connect`` opens byte
    streams and ``rng`` provides all randomness (jitter, idempotency keys); time is Trio's clock.

    ``max_pending_prompts_per_session`` is the local limit (CLI-010): 5, ``None``, 0 and infinity are unlimited.
    ``default_vote`` answers permission requests that no consumer sees; ``None`` leaves them to others.
    """

    def __init__(
        self,
        base_url: str,
        *,
        nursery: trio.Nursery,
        token: str | None = None,
        transport: Transport | TransportKind | str = TransportKind.REST,
        fetch_timeout: float | Omitted = OMITTED,
        max_pending_prompts_per_session: PromptLimit = OMITTED,
        connect: Connect = open_tcp,
        ssl_context: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        reconnect: ReconnectPolicy | None = None,
        idle_timeout: float = 45.0,
        reload_on_resync: bool = True,
        default_vote: Vote | None = Vote(),  # noqa: B008 - frozen, and None means something else
    ) -> None:
        self.prompt_limit = effective_limit(max_pending_prompts_per_session)
        self.base_url = base_url.rstrip("/")
        self._explicit_timeout = None if isinstance(fetch_timeout, Omitted) else _timeout(fetch_timeout)
        self._timeout = DEFAULT_FETCH_TIMEOUT if self._explicit_timeout is None else self._explicit_timeout
        self._rng = rng or random.Random()
        policy = reconnect or ReconnectPolicy()
        options = TransportOptions(
            nursery=nursery,
            token=token if token is not None else default_token(),
            connect=connect,
            ssl_context=ssl_context,
            rng=self._rng,
            policy=policy,
            idle_timeout=idle_timeout,
            open_timeout=self._timeout,
        )
        self.transport = (
            transport if isinstance(transport, Transport) else make_transport(self.base_url, transport, options)
        )
        self.counters = PromptCounters()
        self._background = Background(nursery)
        self.context = ClientContext(
            background=self._background,
            transport=self.transport,
            rng=self._rng,
            reader=ReaderOptions(policy, idle_timeout, self._timeout, reload_on_resync=reload_on_resync),
            default_vote=default_vote,
        )
        self._links: set[SessionLink] = set()
        self._shared: dict[str, SessionLink] = {}
        self._capabilities: tuple[float, Capabilities] | None = None

    async def __aenter__(self) -> DaemonClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every reader and close every connection; waiting prompts fail. Any task, any order, more than once."""
        for link in list(self._links):
            link.close()
        self._links.clear()
        self._shared.clear()
        await self._background.aclose()
        await self.transport.aclose()

    async def health(self) -> None:
        """Return if the daemon is well. Raises what it says otherwise."""
        with self.limited("health"):
            await self.transport.health()

    async def capabilities(self) -> Capabilities:
        """What the daemon offers, asked now."""
        with self.limited("capabilities"):
            capabilities = await self.transport.capabilities()
        self._capabilities = (trio.current_time(), capabilities)
        return capabilities

    async def rest(self, method: str, path: str, body: object = None) -> Answer:
        """Any other route of the REST surface; the answer's status is 2xx."""
        with self.limited("rest"):
            return await self.transport.rest(method, path, body=body)

    async def create_session(self, request: SessionRequest | None = None, client_id: str | None = None) -> SessionInfo:
        """Create a session, or attach to the workspace's shared one (``scope="single"``, REST only)."""
        with self.limited("create_session"):
            return await self.transport.create_session(request or SessionRequest(), client_id)

    async def load_session(
        self, session_id: str, request: SessionRequest | None = None, client_id: str | None = None
    ) -> SessionInfo:
        """Attach to a live session or restore a stored one, with its history."""
        return await self._restore(session_id, request, client_id, history=True)

    async def resume_session(
        self, session_id: str, request: SessionRequest | None = None, client_id: str | None = None
    ) -> SessionInfo:
        """Like :meth:`load_session`, without history."""
        return await self._restore(session_id, request, client_id, history=False)

    async def list_sessions(
        self, cwd: str | None = None, *, size: int | None = None, cursor: str | None = None
    ) -> SessionPage:
        """Sessions of a workspace, by default the primary one, newest first."""
        if cwd is None:
            cwd = (await self.known_capabilities()).workspace_cwd or "/"
        with self.limited("list_sessions"):
            return await self.transport.list_sessions(cwd, size=size, cursor=cursor)

    async def close_session(self, session_id: str, client_id: str | None = None) -> None:
        """Close a session for everybody; its transcript stays. One that is not there is closed."""
        with self.limited("close_session"):
            await self.transport.close_session(session_id, client_id)

    async def detach_session(self, session_id: str, client_id: str | None = None) -> None:
        """Give up the registration as a client of the session."""
        with self.limited("detach_session"):
            await self.transport.detach_session(session_id, client_id)

    async def heartbeat(self, session_id: str, client_id: str | None = None) -> Heartbeat:
        """Keep the session from being taken for idle."""
        with self.limited("heartbeat"):
            return await self.transport.heartbeat(session_id, client_id)

    async def set_mode(self, session_id: str, mode: str, client_id: str | None = None) -> dict[str, Any]:
        """Change the approval mode."""
        async with self.held(session_id):
            with self.limited("set_mode"):
                return await self.transport.set_mode(session_id, mode, client_id)

    async def set_model(self, session_id: str, model_id: str, client_id: str | None = None) -> dict[str, Any]:
        """Change the model."""
        async with self.held(session_id):
            with self.limited("set_model"):
                return await self.transport.set_model(session_id, model_id, client_id)

    async def cancel(self, session_id: str, client_id: str | None = None) -> None:
        """End the running prompt; queued ones stay."""
        with self.limited("cancel"):
            await self.transport.cancel(session_id, client_id)

    async def vote(self, session_id: str, request_id: str, vote: Vote, client_id: str | None = None) -> bool:
        """Answer a permission request. False if nothing was pending for it (any more)."""
        with self.limited("vote"):
            return await self.transport.vote(session_id, request_id, vote, client_id)

    async def prompt(
        self, session_id: str, prompt: Prompt, client_id: str | None = None, **options: Any
    ) -> PromptResult:
        """Send a prompt and wait for its outcome; see :meth:`DaemonSessionClient.prompt`."""
        from client.session import DaemonSessionClient  # the session is built on this module

        async with DaemonSessionClient(self, SessionInfo(session_id, client_id=client_id)) as session:
            return await session.prompt(prompt, **options)

    async def submit_prompt(
        self, session_id: str, prompt: Prompt, client_id: str | None = None, **options: Any
    ) -> PromptReceipt:
        """Hand over a prompt and return: no reservation, no waiting (CLI-017)."""
        request = self.build_prompt(prompt, **options)
        return await self.send_prompt(session_id, request, Ticket(), client_id)

    async def prompt_outcome(self, session_id: str, prompt_id: str) -> PromptOutcome | None:
        """The outcome of a prompt accepted earlier; ``None`` if the daemon cannot tell."""
        with self.limited("prompt_outcome"):
            return await self.transport.prompt_outcome(session_id, prompt_id)

    def build_prompt(self, prompt: Prompt, **options: Any) -> PromptRequest:
        """A request with an idempotency key of its own, unless one is given."""
        options.setdefault("idempotency_key", f"{self._rng.getrandbits(128):032x}")
        return PromptRequest.build(prompt, **options)

    async def send_prompt(
        self, session_id: str, request: PromptRequest, ticket: Ticket, client_id: str | None
    ) -> PromptReceipt:
        """Hand over one prompt. An answer that got lost is asked for again only where that cannot run it twice.

        Raises :class:`PromptMayBeAcceptedError` if it remains unknown whether the daemon has it (C-108).
        """
        try:
            return await self.transport.send_prompt(session_id, request, ticket, client_id)
        except DaemonConnectionError as exc:
            if not exc.maybe_sent:
                raise
            failure = exc
        if self.transport.kind is TransportKind.REST and await self._recognises_prompts():
            for delay in (0.0, 1.0, 2.0)[:REPEATS]:
                await trio.sleep(delay * (0.5 + self._rng.random() / 2))
                try:
                    return await self.transport.send_prompt(session_id, request, ticket, client_id)
                except DaemonConnectionError as exc:
                    failure = exc
        raise PromptMayBeAcceptedError(
            f"the prompt may have been accepted: {failure}", idempotency_key=request.idempotency_key or ""
        ) from failure

    async def known_capabilities(self) -> Capabilities:
        """Capabilities, at most a minute old."""
        if self._capabilities is not None:
            asked, capabilities = self._capabilities
            if trio.current_time() - asked < CAPABILITIES_LIFETIME:
                return capabilities
        return await self.capabilities()

    def link(self, session_id: str, client_id: str | None, epoch: str | None) -> SessionLink:
        """What follows a session: shared where the wire has one stream per session, else the caller's own."""
        if not self.transport.always_reading:
            return self.own_link(session_id, client_id, epoch)
        link = self._shared.get(session_id)
        if link is None:
            link = self._shared[session_id] = self.own_link(session_id, client_id, epoch)
        else:
            link.users += 1
        return link

    def own_link(self, session_id: str, client_id: str | None, epoch: str | None) -> SessionLink:
        """A link for one user."""
        link = SessionLink(self.context, session_id, client_id, epoch)
        link.users = 1
        self._links.add(link)
        return link

    def release_link(self, link: SessionLink) -> None:
        """The caller of :meth:`link` or :meth:`own_link` is done with it."""
        link.users -= 1
        if link.users <= 0:
            link.close()
            self._links.discard(link)
            if self._shared.get(link.session_id) is link:
                del self._shared[link.session_id]

    @contextlib.asynccontextmanager
    async def held(self, session_id: str) -> AsyncIterator[SessionLink]:
        """Have the session's stream open, where answers come on it."""
        link = self.link(session_id, None, None)
        try:
            link.keep_reading(None)
            yield link
        finally:
            self.release_link(link)

    def limited(self, what: str) -> AbstractContextManager[None]:
        """The fetch timeout around one call."""
        return limited(self._timeout, what)

    async def _restore(
        self, session_id: str, request: SessionRequest | None, client_id: str | None, *, history: bool
    ) -> SessionInfo:
        request = request or SessionRequest()
        with limited(self._restore_timeout(request), "restore"):
            return await self.transport.restore_session(session_id, request, client_id, history=history)

    def _restore_timeout(self, request: SessionRequest) -> float:
        if request.timeout is not None:
            return _timeout(request.timeout)
        if self._explicit_timeout is not None:
            return self._explicit_timeout
        known = self._capabilities[1].session_restore_timeout if self._capabilities is not None else None
        return RESTORE_TIMEOUT if known is None else known + RESTORE_MARGIN

    async def _recognises_prompts(self) -> bool:
        try:
            return IDEMPOTENCY_FEATURE in (await self.known_capabilities()).features
        except DaemonError:
            return False


@contextlib.asynccontextmanager
async def open_daemon_client(base_url: str, **options: Any) -> AsyncIterator[DaemonClient]:
    """A client with a nursery of its own; everything it started is gone when the block ends.

    The options are those of :class:`DaemonClient`. An exception raised in the block comes out as it is, not in a
    group. Clients that must be closed in another order than they were opened take a nursery of their caller's.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        client = DaemonClient(base_url, nursery=nursery, **options)
        try:
            yield client
        except Exception as exc:
            # Raised inside the nursery it would come out wrapped in a group.
            failure = exc
        finally:
            await client.aclose()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _timeout(value: float) -> float:
    return math.inf if value <= 0 else value
