"""A scripted OpenAI-compatible upstream: `POST /v1/chat/completions`, streaming or not, and `GET /v1/models`.

It stands in for a model wherever a test needs an agent that needs one. Every turn is deterministic and steered by words
in the newest user message, the same words the built-in demo agent understands:

`slow`        a pause between chunks (`pause_s`)
`permission`  asks for the tool `run_shell_command`; the turn that carries the tool's result ends with its text
`tool NAME {json}`  asks for any tool with these arguments; ends likewise
`long=N`      N content chunks `w0 w1 ...`
`fail`        HTTP 400 before any chunk
`hold`        one chunk, then silence until the peer closes
`echo TEXT`   TEXT as one chunk

Anything else is answered by `Hello from the stub.` in four chunks. Plain threads and blocking sockets: the stub must
not share a fault with what it helps to test. As a program it prints `openai stub listening on URL` and serves until its
stdin closes.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import msgspec

__all__ = ["OpenAIStub"]

_GREETING = ("Hello", " from", " the", " stub.")
_INJECTED = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_LONG = re.compile(r"\blong=(\d+)")
_TOOL = re.compile(r"\btool (\w+) (\{.*\})", re.DOTALL)
_ECHO = re.compile(r"\becho (.*)", re.DOTALL)
_MODEL = "stub-model"


def newest_user_text(messages: list[dict[str, Any]]) -> str:
    """The text of the last message from the user, without reminders an agent wrapped around it."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content") or ""
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            # Agents merge a failed turn's text into the next message: only the last part is the newest.
            spoken = [text for text in (_INJECTED.sub("", part).strip() for part in texts) if text]
            return spoken[-1] if spoken else ""
    return ""


def awaits_tool_result(messages: list[dict[str, Any]]) -> bool:
    """True when the newest message is the result of a tool this stub asked for."""
    return bool(messages) and messages[-1].get("role") == "tool"


def content_of(text: str) -> list[str]:
    """The chunks that answer `text`."""
    if found := _LONG.search(text):
        return [f"w{n} " for n in range(int(found[1]))]
    if found := _ECHO.search(text):
        return [found[1].strip()]
    return list(_GREETING)


class OpenAIStub:
    """Serves on 127.0.0.1, a free port, from `__enter__` to `__exit__`; `url` is what an agent wants as its base URL.

    `requests` holds every decoded request body in order of arrival; `cut_by_peer` counts the streams whose peer went
    away before the stub had finished.
    """

    def __init__(self, *, pause_s: float = 0.1, command: str = "touch stub-was-here.txt") -> None:
        self.pause_s = pause_s
        self.command = command
        self.requests: list[dict[str, Any]] = []
        self.cut_by_peer = 0
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stub = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> OpenAIStub:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def deltas(self, messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The `delta` objects of one answer; pauses happen between them."""
        text = newest_user_text(messages)
        if awaits_tool_result(messages):
            yield {"role": "assistant", "content": "tool done."}
            return
        if function := self._tool_of(text):
            yield {
                "role": "assistant",
                "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
            }
            return
        for chunk in content_of(text):
            yield {"role": "assistant", "content": chunk}
            if "slow" in text:
                time.sleep(self.pause_s)

    def _tool_of(self, text: str) -> dict[str, str] | None:
        """The function call `text` asks for, if any."""
        if found := _TOOL.search(text):
            return {"name": found[1], "arguments": found[2]}
        if "permission" in text:
            arguments = {"command": self.command, "description": "create a file", "is_background": False}
            return {"name": "run_shell_command", "arguments": msgspec.json.encode(arguments).decode()}
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    stub: OpenAIStub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that resets an idle connection is no news; anything else is printed as the base class does."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are recorded, not printed."""

    @property
    def stub(self) -> OpenAIStub:
        return cast(_Server, self.server).stub

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": _MODEL, "object": "model", "owned_by": "stub"}]})

    def do_POST(self) -> None:
        body = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        self.stub.requests.append(body)
        text = newest_user_text(body["messages"])
        if "fail" in text and not awaits_tool_result(body["messages"]):
            self._answer(
                400, {"error": {"message": "scripted failure", "type": "invalid_request_error", "code": "scripted"}}
            )
        elif body.get("stream"):
            try:
                self._stream(body["messages"], hold="hold" in text)
            except (BrokenPipeError, ConnectionResetError):
                self.stub.cut_by_peer += 1
                self.close_connection = True
        else:
            content = "".join(delta.get("content") or "" for delta in self.stub.deltas(body["messages"]))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
            self._answer(200, {**_envelope("chat.completion"), "choices": [choice], "usage": _USAGE})

    def _answer(self, status: int, value: object) -> None:
        data = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, messages: list[dict[str, Any]], *, hold: bool) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        finish = "stop"
        for delta in self.stub.deltas(messages):
            self._event({"index": 0, "delta": delta, "finish_reason": None})
            finish = "tool_calls" if "tool_calls" in delta else "stop"
            if hold:
                self._wait_for_peer_to_close()
        self._event({"index": 0, "delta": {}, "finish_reason": finish})
        self._chunk(msgspec.json.encode({**_envelope("chat.completion.chunk"), "choices": [], "usage": _USAGE}))
        self._chunk(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, choice: dict[str, Any]) -> None:
        self._chunk(msgspec.json.encode({**_envelope("chat.completion.chunk"), "choices": [choice]}))

    def _chunk(self, data: bytes) -> None:
        frame = b"data: " + data + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        self.wfile.flush()

    def _wait_for_peer_to_close(self) -> None:
        self.connection.settimeout(0.05)
        while not self.stub.stopping.is_set():
            try:
                if not self.connection.recv(4096):
                    break
            except TimeoutError:
                continue
        raise ConnectionResetError("the peer of a held answer went away")


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "stub-1", "object": kind, "created": 1700000000, "model": _MODEL}


def main() -> None:
    with OpenAIStub() as stub:
        print(f"openai stub listening on {stub.url}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
