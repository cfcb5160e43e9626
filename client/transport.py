"""The interface behind which the three wires look alike (client-sdk section 1)."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import Any

from client.events import Event
from client.http import Answer
from client.prompts import Ticket
from client.requests import PromptRequest, SessionRequest, Vote
from client.results import Capabilities, Heartbeat, PromptOutcome, PromptReceipt, SessionInfo, SessionPage
from protocol.jsonrpc import Id

__all__ = ["Feed", "StreamRequest", "Transport", "TransportKind"]


class TransportKind(enum.Enum):
    """Names as in ``capabilities.transports``."""

    REST = "rest"
    ACP_HTTP = "acp-http"
    ACP_WS = "acp-ws"


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Where a session stream is to begin. Without a cursor it is live only (CLI-024).

    ``consumer`` is false for a stream that only routes replies and answers nothing.
    """

    session_id: str
    cursor: int | None = None
    epoch: str | None = None
    client_id: str | None = None
    consumer: bool = True


class Feed(abc.ABC):
    """One open session stream. Belongs to one task."""

    epoch: str | None = None
    """Epoch of the session's ids, as the stream announced it."""
    heartbeats: bool = True
    """Whether a healthy stream shows signs of life when nothing happens, so that silence means it is dead (CLI-023)."""

    replays: bool = True
    """Whether it begins, when it was opened with a cursor, with a replay and ``replay_complete``."""

    @property
    @abc.abstractmethod
    def retry(self) -> float | None:
        """The reconnect hint in seconds, if the server gave one (CLI-022)."""

    @abc.abstractmethod
    async def receive(self) -> list[Event]:
        """Wait for bytes and return the events in them: none if it was only a heartbeat.

        Raises ``trio.EndOfChannel`` at the end, :class:`DaemonConnectionError` if the connection broke and
        :class:`SseFramingError` if the bytes make no sense.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Leave the stream. Safe under cancellation, and more than once."""


class Transport(abc.ABC):
    """One way to speak to one daemon.

    Every method raises :class:`DaemonHttpError` (or a subclass) when the daemon refuses,
    :class:`DaemonConnectionError` when the connection fails, :class:`DaemonTransportClosedError` after ``aclose``.
    Timeouts are cancel scopes of the caller; cancelling a call may leave its effect on the daemon open.
    """

    kind: TransportKind
    always_reading: bool
    """Whether a session needs an open stream to get answers at all (CLI-035)."""

    @property
    @abc.abstractmethod
    def supports_replay(self) -> bool:
        """Whether a stream can continue from a cursor."""

    @property
    @abc.abstractmethod
    def closed(self) -> bool:
        """Whether ``aclose`` was called."""

    @property
    def silent_replies_stream(self) -> bool:
        """Whether the server knows that a stream opened with ``consumer=False`` answers no permission requests."""
        return False

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close every connection. More than once is fine."""

    @abc.abstractmethod
    async def rest(self, method: str, path: str, *, body: object = None, client_id: str | None = None) -> Answer:
        """A plain HTTP request to the REST surface, on every transport."""

    @abc.abstractmethod
    async def health(self) -> None:
        """Return if the daemon is well."""

    @abc.abstractmethod
    async def capabilities(self) -> Capabilities:
        """What the daemon offers."""

    @abc.abstractmethod
    async def create_session(self, request: SessionRequest, client_id: str | None) -> SessionInfo:
        """Create a session, or attach to the workspace's shared one."""

    @abc.abstractmethod
    async def restore_session(
        self,
        session_id: str,
        request: SessionRequest,
        client_id: str | None,
        *,
        history: bool,
    ) -> SessionInfo:
        """Attach to a live session or restore a stored one; ``history`` chooses load instead of resume."""

    @abc.abstractmethod
    async def list_sessions(self, cwd: str, *, size: int | None = None, cursor: str | None = None) -> SessionPage:
        """Sessions of a workspace, newest first."""

    @abc.abstractmethod
    async def close_session(self, session_id: str, client_id: str | None) -> None:
        """Close for everybody. A session that is not there is closed."""

    @abc.abstractmethod
    async def detach_session(self, session_id: str, client_id: str | None) -> None:
        """Give up the caller's registration."""

    @abc.abstractmethod
    async def heartbeat(self, session_id: str, client_id: str | None) -> Heartbeat:
        """Say that the client is alive."""

    @abc.abstractmethod
    async def set_mode(self, session_id: str, mode: str, client_id: str | None) -> dict[str, Any]:
        """Change the approval mode."""

    @abc.abstractmethod
    async def set_model(self, session_id: str, model_id: str, client_id: str | None) -> dict[str, Any]:
        """Change the model."""

    @abc.abstractmethod
    async def cancel(self, session_id: str, client_id: str | None) -> None:
        """End the running prompt. Fine when nothing runs."""

    @abc.abstractmethod
    async def vote(
        self,
        session_id: str,
        request_id: str,
        vote: Vote,
        client_id: str | None,
        *,
        outbound_id: Id | None = None,
    ) -> bool:
        """Answer a permission request. False if nothing was pending for it (any more)."""

    @abc.abstractmethod
    async def send_prompt(
        self, session_id: str, request: PromptRequest, ticket: Ticket, client_id: str | None
    ) -> PromptReceipt:
        """Hand over a prompt. Returns when it is accepted, or sent where acceptance is not answered (``/acp``).

        The ticket gets its prompt id (REST), or its outcome when the daemon answers with that.
        """

    @abc.abstractmethod
    async def abandon_prompt(self, session_id: str, ticket: Ticket, client_id: str | None) -> None:
        """Best effort to stop a prompt nobody waits for."""

    @abc.abstractmethod
    async def prompt_outcome(self, session_id: str, prompt_id: str) -> PromptOutcome | None:
        """The polled outcome; ``None`` if the daemon does not know the prompt or offers no polling."""

    @abc.abstractmethod
    async def open_stream(self, request: StreamRequest) -> Feed:
        """Open a session's stream. Refusals are raised here: 401, 403, 404..."""

    @abc.abstractmethod
    async def recover_session(self, session_id: str) -> SessionInfo:
        """After a stream was refused with 403 or 404: get the session back, so that it can be opened again."""
