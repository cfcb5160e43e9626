"""Dial, resume, iterate events. Imports ``protocol`` only.

``open_daemon_client`` opens a client, ``DaemonSessionClient.create_or_attach`` a session, ``session.events()`` its
events. See ``docs/client.md``.
"""

from client.auto_reconnect import AutoReconnectTransport
from client.backoff import ReconnectPolicy
from client.daemon import DaemonClient, open_daemon_client
from client.dial import Connect, open_tcp
from client.errors import (
    DaemonConnectionError,
    DaemonError,
    DaemonHttpError,
    DaemonPendingPromptLimitError,
    DaemonPromptQueueFullError,
    DaemonProtocolError,
    DaemonStreamEndedError,
    DaemonTimeoutError,
    DaemonTransportClosedError,
    DaemonTurnError,
    JsonRpcError,
    PromptMayBeAcceptedError,
    SseFramingError,
)
from client.event_stream import EventStream
from client.events import Event
from client.limits import OMITTED
from client.open_transport import TransportOptions, make_transport, negotiate_transport
from client.requests import PromptRequest, SessionRequest, Vote
from client.results import (
    Capabilities,
    Heartbeat,
    PromptOutcome,
    PromptReceipt,
    PromptResult,
    SessionInfo,
    SessionPage,
    SessionSummary,
)
from client.session import DaemonSessionClient
from client.transport import StreamRequest, Transport, TransportKind

__all__ = [
    "OMITTED",
    "AutoReconnectTransport",
    "Capabilities",
    "Connect",
    "DaemonClient",
    "DaemonConnectionError",
    "DaemonError",
    "DaemonHttpError",
    "DaemonPendingPromptLimitError",
    "DaemonPromptQueueFullError",
    "DaemonProtocolError",
    "DaemonSessionClient",
    "DaemonStreamEndedError",
    "DaemonTimeoutError",
    "DaemonTransportClosedError",
    "DaemonTurnError",
    "Event",
    "EventStream",
    "Heartbeat",
    "JsonRpcError",
    "PromptMayBeAcceptedError",
    "PromptOutcome",
    "PromptReceipt",
    "PromptRequest",
    "PromptResult",
    "ReconnectPolicy",
    "SessionInfo",
    "SessionPage",
    "SessionRequest",
    "SessionSummary",
    "SseFramingError",
    "StreamRequest",
    "Transport",
    "TransportKind",
    "TransportOptions",
    "Vote",
    "make_transport",
    "negotiate_transport",
    "open_daemon_client",
    "open_tcp",
]
