"""A JSON-RPC 2.0 peer over an agent's pipes: calls in flight by id, and who gets what the agent sends by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import trio
from msgspec import Raw

from server.backends.acp_stdio.diagnostics import Diagnostics
from server.backends.acp_stdio.lines import repaired
from server.backends.acp_stdio.messages import (
    INVALID_PARAMS,
    Envelope,
    RemoteError,
    decode_envelope,
    error_line,
    notification_line,
    request_line,
)
from server.backends.acp_stdio.writer import PipeWriter
from sessions.errors import RunnerError

__all__ = ["Call", "Inbound", "Peer"]

_AUTH_REQUIRED: Final = -32000
_decode_error = msgspec.json.Decoder(RemoteError).decode


class Inbound(Protocol):
    """Who serves the agent. All synchronous; each returns how many events it published."""

    def update(self, params: dict[str, Raw]) -> int: ...

    def notification(self, method: str, params: dict[str, Raw]) -> int: ...

    def request(self, number: Raw, method: str, params: dict[str, Raw]) -> int: ...


class Call:
    """One request of ours the agent has not answered yet."""

    __slots__ = ("_answered", "_error", "_result", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._answered = trio.Event()
        self._result = Raw(b"")
        self._error: Callable[[], RunnerError] | None = None

    @property
    def answered(self) -> bool:
        return self._answered.is_set()

    def settle(self, result: Raw) -> None:
        self._result = result
        self._answered.set()

    def fail(self, error: Callable[[], RunnerError]) -> None:
        self._error = error
        self._answered.set()

    async def wait(self) -> Raw:
        """The result as JSON text. Raises `RunnerError`; may be cancelled and waited for again."""
        await self._answered.wait()
        if self._error is not None:
            raise self._error()
        return self._result


def remote_error(raw: Raw) -> RunnerError:
    """The agent's error object as ours, with its own code and data (REST-002)."""
    try:
        error = _decode_error(raw)
    except msgspec.MsgspecError:
        error = RemoteError()
    code = int(error.code) if isinstance(error.code, float) else error.code
    kind = "auth_env_error" if code == _AUTH_REQUIRED else None
    return RunnerError(error.text(), code, error.data, kind)


class Peer:
    """Our end of one agent's pipes. Ids are unique per pipe and never reused (the agent counts its own, from 0 as well)."""

    def __init__(self, writer: PipeWriter, inbound: Inbound, diagnostics: Diagnostics) -> None:
        self._writer = writer
        self._inbound = inbound
        self._diagnostics = diagnostics
        self._last_id = 0
        self._calls: dict[bytes, Call] = {}
        self._lost: Callable[[], RunnerError] | None = None

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    # What we want

    async def start(self, method: str, params: object) -> Call:
        """Send a request as soon as the pipe has room for it. The caller must `forget` the call in the end."""
        await self._writer.wait_room()
        if self._lost is not None:
            raise self._lost()
        self._last_id += 1
        call = Call(b"%d" % self._last_id)
        self._calls[call.key] = call
        self._writer.write_nowait(request_line(self._last_id, method, params))
        return call

    def forget(self, call: Call) -> None:
        """Wait no longer; an answer that comes after all is counted and dropped."""
        self._calls.pop(call.key, None)

    async def request(self, method: str, params: object) -> Raw:
        """Send a request and wait for its result. Raises `RunnerError`, `RunnerLost`."""
        call = await self.start(method, params)
        try:
            return await call.wait()
        finally:
            self.forget(call)

    def notify(self, method: str, params: object) -> None:
        self._writer.write_nowait(notification_line(method, params))

    async def reply(self, line: bytes) -> None:
        """Send an encoded answer to a request of the agent."""
        await self._writer.wait_room()
        self._writer.write_nowait(line)

    # What happened

    def receive(self, line: bytes) -> int:
        """One line of the agent's stdout. Returns the number of events published; never raises."""
        try:
            message = decode_envelope(repaired(line))
        except (msgspec.MsgspecError, RecursionError):
            self._odd(line)
            return 0
        params = message.params
        if message.method:
            if message.method == "session/update" and params is not None:
                return self._inbound.update(params)
            return self._incoming(message, message.method)
        self._answer(message, line)
        return 0

    def lose(self, error: Callable[[], RunnerError]) -> None:
        """The agent is gone: every call in flight and every later one fails with this error."""
        self._lost = error
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.fail(error)

    def _incoming(self, message: Envelope, method: str) -> int:
        params = message.params if message.params is not None else {}
        number = bytes(message.id)
        if not number or number == b"null":
            return self._inbound.notification(method, params)
        return self._inbound.request(Raw(number), method, params)

    def _answer(self, message: Envelope, line: bytes) -> None:
        if not bytes(message.id) or not (bytes(message.result) or bytes(message.error)):
            self._diagnostics.noise(line)
            return
        call = self._calls.pop(bytes(message.id), None)
        if call is None:
            self._diagnostics.stray_answers += 1
            self._diagnostics.complain("agent_stray_answer", id=bytes(message.id)[:64].decode("utf-8", "replace"))
            return
        if bytes(message.error) and bytes(message.error) != b"null":
            # A copy: the raw member would keep the whole line alive.
            error = Raw(bytes(message.error))
            call.fail(lambda: remote_error(error))
        else:
            call.settle(message.result)

    def _odd(self, line: bytes) -> None:
        """Neither noise nor nonsense if it has a method and an id: then the agent waits for an answer."""
        try:
            message = msgspec.json.decode(repaired(line))
        except (msgspec.MsgspecError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("method"), str) and message.get("id") is not None:
            if self._writer.has_room:
                number = Raw(msgspec.json.encode(message["id"]))
                self._writer.write_nowait(error_line(number, INVALID_PARAMS, "params must be an object"))
            return
        self._diagnostics.noise(line)
