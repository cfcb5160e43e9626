"""The fixed metadata of the 25 message types, one class each, by family."""

from __future__ import annotations

from protocol.nnrp.enums import MessageType
from protocol.nnrp.messages.cache import CacheAck, CacheInvalidate, CachePut
from protocol.nnrp.messages.control import (
    Close,
    Error,
    Ping,
    Pong,
    SessionMigrate,
    SessionMigrateAck,
    TransportProbe,
    TransportProbeAck,
)
from protocol.nnrp.messages.flow import FlowUpdate
from protocol.nnrp.messages.hello import ClientHello, ServerHelloAck
from protocol.nnrp.messages.result import ResultDrop, ResultHint, ResultPush
from protocol.nnrp.messages.session import (
    SessionClose,
    SessionCloseAck,
    SessionOpen,
    SessionOpenAck,
    SessionPatch,
    SessionPatchAck,
    TensorProfilePatchBlock,
)
from protocol.nnrp.messages.submit import FrameCancel, FrameSubmit
from protocol.nnrp.record import Message

__all__ = [
    "MESSAGES",
    "CacheAck",
    "CacheInvalidate",
    "CachePut",
    "ClientHello",
    "Close",
    "Error",
    "FlowUpdate",
    "FrameCancel",
    "FrameSubmit",
    "Message",
    "Ping",
    "Pong",
    "ResultDrop",
    "ResultHint",
    "ResultPush",
    "ServerHelloAck",
    "SessionClose",
    "SessionCloseAck",
    "SessionMigrate",
    "SessionMigrateAck",
    "SessionOpen",
    "SessionOpenAck",
    "SessionPatch",
    "SessionPatchAck",
    "TensorProfilePatchBlock",
    "TransportProbe",
    "TransportProbeAck",
]

_ALL: tuple[type[Message], ...] = (
    ClientHello,
    ServerHelloAck,
    SessionPatch,
    SessionPatchAck,
    Close,
    Error,
    SessionOpen,
    SessionOpenAck,
    SessionClose,
    SessionCloseAck,
    FrameSubmit,
    FrameCancel,
    ResultPush,
    ResultDrop,
    CachePut,
    CacheAck,
    CacheInvalidate,
    FlowUpdate,
    ResultHint,
    TransportProbe,
    TransportProbeAck,
    SessionMigrate,
    SessionMigrateAck,
    Ping,
    Pong,
)
MESSAGES: dict[MessageType, type[Message]] = {each.TYPE: each for each in _ALL}
"""The metadata class of every message type."""
