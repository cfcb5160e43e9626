"""JSON-RPC 2.0 messages: what a text is, and which waiting call a response belongs to."""

from protocol.jsonrpc.correlation import PendingCalls
from protocol.jsonrpc.envelope import (
    Id,
    Invalid,
    Message,
    Notification,
    Problem,
    Request,
    Response,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    parse_message,
)
from protocol.jsonrpc.lenient import InvalidJson, clean_json, decode_json

__all__ = [
    "Id",
    "Invalid",
    "InvalidJson",
    "Message",
    "Notification",
    "PendingCalls",
    "Problem",
    "Request",
    "Response",
    "clean_json",
    "decode_json",
    "encode_error",
    "encode_notification",
    "encode_request",
    "encode_result",
    "parse_message",
]
