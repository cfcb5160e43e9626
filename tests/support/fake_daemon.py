"""A daemon of a few hundred lines for client tests: one ring per session, REST, ``/acp`` over HTTP and WebSocket.

It is not our server and shares no code with it. Tests reach into it: cut streams, lose connections, forget sessions,
refuse calls. The agent is a function of the test's.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trio
import trio_websocket

from client import DaemonClient, open_daemon_client
from tests.support.scripted_server import Cut, Exchange, MemoryNetwork

SESSION_ROUTED = {
    "session/prompt",
    "session/cancel",
    "session/set_mode",
    "session/set_model",
    "session/set_config_option",
}


@dataclass
class Turn:
    """One prompt as the agent function sees it."""

    session: FakeSession
    prompt_id: str
    text: str
    cancelled: trio.Event = field(default_factory=trio.Event)

    def say(self, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self.session.publish("session_update", {"sessionId": self.session.id, "update": update}, self.prompt_id)


Agent = Callable[[Turn], Awaitable[str]]


async def echo(turn: Turn) -> str:
    turn.say(turn.text)
    return "end_turn"


async def wait_for_cancel(turn: Turn) -> str:
    await turn.cancelled.wait()
    return "cancelled"


@dataclass
class FakeSession:
    id: str
    epoch: str = "epoch-1"
    ring: list[dict[str, Any]] = field(default_factory=list)
    first_id: int = 1
    changed: trio.Event = field(default_factory=trio.Event)
    turns: list[Turn] = field(default_factory=list)
    votes: list[tuple[str, Any]] = field(default_factory=list)
    closed: bool = False

    @property
    def head(self) -> int:
        return self.first_id + len(self.ring) - 1

    def publish(self, kind: str, data: Any, prompt_id: str | None = None) -> int:
        self.ring.append({"id": self.head + 1, "type": kind, "data": data, "promptId": prompt_id})
        self.wake()
        return self.head

    def after(self, cursor: int) -> list[dict[str, Any]]:
        return [event for event in self.ring if event["id"] > cursor]

    def evict(self, count: int) -> None:
        del self.ring[:count]
        self.first_id += count

    def restart(self) -> None:
        """Like a daemon that came up again: another epoch, ids from one."""
        self.epoch += "x"
        self.ring, self.first_id = [], 1
        self.wake()

    def wake(self) -> None:
        old, self.changed = self.changed, trio.Event()
        old.set()


@dataclass
class FakeConnection:
    """An ``/acp`` connection: what it owns and what waits for its streams."""

    id: str
    owned: set[str] = field(default_factory=set)
    replies: dict[str, list[bytes]] = field(default_factory=dict)
    changed: trio.Event = field(default_factory=trio.Event)
    generations: dict[str, int] = field(default_factory=dict)
    permission_ids: dict[str, str] = field(default_factory=dict)

    def reply(self, stream: str, message: dict[str, Any]) -> None:
        self.replies.setdefault(stream, []).append(json.dumps(message).encode())
        self.wake()

    def wake(self) -> None:
        old, self.changed = self.changed, trio.Event()
        old.set()


class FakeDaemon:
    """Use it with :func:`fake_daemon`. ``log`` lists ``"METHOD /path"`` and ``"rpc method"`` as they arrive."""

    def __init__(self, nursery: trio.Nursery, agent: Agent = echo) -> None:
        self.nursery = nursery
        self.agent = agent
        self.network = MemoryNetwork(self.handle, nursery)
        self.log: list[str] = []
        self.requests: list[Exchange] = []
        self.sessions: dict[str, FakeSession] = {}
        self.connections: dict[str, FakeConnection] = {}
        self.sockets: list[trio_websocket.WebSocketConnection] = []
        self.capabilities: dict[str, Any] = {
            "v": 1,
            "features": [],
            "transports": ["rest"],
            "workspaceCwd": "/work",
            "limits": {"maxPendingPromptsPerSession": 5},
        }
        self.moorline: dict[str, Any] | None = None
        self.overrides: dict[str, Callable[[Exchange], Awaitable[None]]] = {}
        self.refusals: dict[str, list[dict[str, Any]]] = {}
        self.client_ids: set[str] | None = None
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.cut_after: int | None = None
        self.cut_bytes = 0
        self.gates: dict[str, trio.Event] = {}
        self.streams = 0
        self.counter = 0

    # Tests reach in here.

    def new_id(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}-{self.counter}"

    def new_session(self, session_id: str | None = None) -> FakeSession:
        session = FakeSession(session_id or self.new_id("session"))
        self.sessions[session.id] = session
        return session

    def calls(self, name: str) -> int:
        return self.log.count(name)

    def start_turn(self, session: FakeSession, text: str) -> Turn:
        turn = Turn(session, self.new_id("prompt"), text)
        session.turns.append(turn)
        self.nursery.start_soon(self._run_turn, turn)
        return turn

    async def _run_turn(self, turn: Turn, on_done: Callable[[dict[str, Any]], None] | None = None) -> None:
        content = {"type": "text", "text": turn.text}
        update = {"sessionUpdate": "user_message_chunk", "content": content, "_meta": {"source": "bridge-echo"}}
        turn.session.publish("session_update", {"sessionId": turn.session.id, "update": update}, turn.prompt_id)
        base = {"sessionId": turn.session.id, "promptId": turn.prompt_id}
        try:
            stop = await self.agent(turn)
        except RuntimeError as exc:
            if on_done is not None:
                on_done({"error": {"code": -32603, "message": "Internal error", "data": {"errorKind": "internal"}}})
            self.outcomes[turn.prompt_id] = {"state": "failed", "error": {"message": str(exc)}}
            turn.session.publish("turn_error", base | {"message": str(exc), "code": "agent_failed"}, turn.prompt_id)
        else:
            if on_done is not None:
                on_done({"result": {"stopReason": stop}})
            self.outcomes[turn.prompt_id] = {"state": "completed", "stopReason": stop}
            turn.session.publish("turn_complete", base | {"stopReason": stop}, turn.prompt_id)
        turn.session.turns.remove(turn)

    # HTTP.

    async def handle(self, exchange: Exchange) -> None:
        self.log.append(exchange.route)
        self.requests.append(exchange)
        override = self.overrides.get(exchange.route)
        if override is not None:
            await override(exchange)
            return
        if exchange.path.startswith("/acp"):
            await self._acp(exchange)
            return
        await self._rest(exchange)

    async def _rest(self, exchange: Exchange) -> None:
        parts = [unquote(part) for part in urlsplit(exchange.path).path.split("/")[1:]]
        match (exchange.method, *parts):
            case ("GET", "health"):
                await exchange.answer(200, {"status": "ok"})
            case ("GET", "capabilities"):
                await exchange.answer(200, self.capabilities)
            case ("POST", "session"):
                session = self.new_session((exchange.json() or {}).get("sessionId"))
                await exchange.answer(200, self._describe(session) | {"attached": False})
            case ("GET", "workspace", cwd, "sessions"):
                await exchange.answer(200, self._list(cwd) | {"query": parse_qs(urlsplit(exchange.path).query)})
            case (_, "session", session_id, *rest):
                await self._rest_session(exchange, session_id, rest)
            case _:
                await exchange.answer(404, {"error": "Not found"})

    async def _rest_session(self, exchange: Exchange, session_id: str, rest: list[str]) -> None:
        session = self.sessions.get(session_id)
        if session is None:
            await exchange.answer(404, {"error": "No session", "code": "session_not_found", "sessionId": session_id})
            return
        client_id = exchange.headers.get("x-qwen-client-id")
        if self.client_ids is not None and client_id is not None and client_id not in self.client_ids:
            await exchange.answer(400, {"error": "unknown client", "code": "invalid_client_id"})
            return
        match (exchange.method, *rest):
            case ("POST", "load"):
                history = [envelope(event) for event in session.ring]
                body = self._describe(session) | {
                    "lastEventId": session.head,
                    "compactedReplay": history,
                    "liveJournal": [],
                }
                await exchange.answer(200, body | {"hasActivePrompt": bool(session.turns)})
            case ("POST", "resume"):
                await exchange.answer(200, self._describe(session) | {"lastEventId": session.head})
            case ("DELETE",):
                session.publish("session_closed", {"sessionId": session.id, "reason": "client_close"})
                session.closed = True
                del self.sessions[session.id]
                await exchange.answer(204)
            case ("POST", "detach" | "cancel" as verb):
                if verb == "cancel" and session.turns:
                    session.turns[0].cancelled.set()
                await exchange.answer(204)
            case ("GET", "status"):
                await exchange.answer(200, {"sessionId": session.id, "hasActivePrompt": bool(session.turns)})
            case ("POST", "heartbeat"):
                await exchange.answer(200, {"sessionId": session.id, "clientId": client_id, "lastSeenAt": 7})
            case ("POST", "model"):
                await exchange.answer(200, {})
            case ("POST", "approval-mode"):
                await exchange.answer(200, {"sessionId": session.id, "mode": exchange.json()["mode"]})
            case ("POST", "prompt"):
                head = session.head
                turn = self.start_turn(session, exchange.json()["prompt"][0].get("text", ""))
                await exchange.answer(
                    202, {"promptId": turn.prompt_id, "lastEventId": head, "eventEpoch": session.epoch}
                )
            case ("DELETE", "pending-prompts", prompt_id):
                queued = [t for t in session.turns[1:] if t.prompt_id == prompt_id]
                for turn in queued:
                    turn.cancelled.set()
                await exchange.answer(200, {"removed": bool(queued)})
            case ("GET", "prompts", prompt_id) if prompt_id in self.outcomes:
                await exchange.answer(200, {"promptId": prompt_id} | self.outcomes[prompt_id])
            case ("POST", "permission", request_id):
                await self._rest_vote(exchange, session, request_id)
            case ("GET", "events"):
                await self._rest_events(exchange, session)
            case _:
                await exchange.answer(404, {"error": "Not found"})

    async def _rest_vote(self, exchange: Exchange, session: FakeSession, request_id: str) -> None:
        if any(known == request_id for known, _ in session.votes):
            await exchange.answer(404, {"error": "No pending permission request", "requestId": request_id})
            return
        session.votes.append((request_id, exchange.json()["outcome"]))
        await exchange.answer(200, {})

    async def _rest_events(self, exchange: Exchange, session: FakeSession) -> None:
        await exchange.open_sse({"X-Qwen-Event-Epoch": session.epoch})
        await self._pump(exchange, session, rest_bytes)

    async def _pump(self, exchange: Exchange, session: FakeSession, encode: Callable[[dict[str, Any]], bytes]) -> None:
        sent = 0
        self.streams += 1
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    await exchange.wait_gone()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                async with contextlib.aclosing(follow(session, exchange.headers)) as events:
                    async for event in events:
                        data = encode(event)
                        if self.cut_after is not None and sent >= self.cut_after:
                            await exchange.send(data[: self.cut_bytes] or b":")
                            raise Cut
                        await exchange.send(data)
                        sent += event.get("id") is not None
                nursery.cancel_scope.cancel()
        except* (Cut, trio.BrokenResourceError):
            raise Cut from None
        finally:
            self.streams -= 1

    # /acp over HTTP.

    async def _acp(self, exchange: Exchange) -> None:
        if exchange.headers.get("upgrade", "").lower() == "websocket":
            await self._websocket(exchange)
            return
        connection = self.connections.get(exchange.headers.get("acp-connection-id", ""))
        message = exchange.json() if exchange.method == "POST" else {}
        if message.get("method") == "initialize":
            connection = FakeConnection(self.new_id("connection"))
            self.connections[connection.id] = connection
            self.log.append("rpc initialize")
            result = {"jsonrpc": "2.0", "id": message["id"], "result": self._offer(connection)}
            await exchange.answer(200, result, {"Acp-Connection-Id": connection.id})
            return
        if exchange.method == "DELETE":
            if connection is not None:
                del self.connections[connection.id]
            await exchange.answer(202)
            return
        if connection is None:
            await exchange.answer(404, {"error": "Unknown Acp-Connection-Id"})
            return
        if exchange.method == "GET":
            await self._acp_stream(exchange, connection)
            return
        await exchange.answer(202)
        self._dispatch(connection, message)

    def _offer(self, connection: FakeConnection) -> dict[str, Any]:
        meta: dict[str, Any] = {"qwen": {"connectionId": connection.id}}
        if self.moorline is not None:
            meta["moorline"] = self.moorline
        return {"protocolVersion": 1, "agentCapabilities": {"loadSession": True, "_meta": meta}}

    def _dispatch(self, connection: FakeConnection, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._vote_by_response(connection, message)
            return
        method, params = message["method"], message.get("params", {})
        self.log.append(f"rpc {method}")
        if "id" not in message:
            if method == "session/cancel" and self.sessions[params["sessionId"]].turns:
                self.sessions[params["sessionId"]].turns[0].cancelled.set()
            return
        stream = params["sessionId"] if method in SESSION_ROUTED else ""
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        scripted = self.refusals.get(method)
        if scripted:
            connection.reply(stream, answer | {"error": scripted.pop(0)})
            return
        gate = self.gates.get(method)
        if gate is not None:
            self.nursery.start_soon(self._dispatch_later, gate, connection, message)
            return
        self._execute(connection, method, params, answer, stream)

    async def _dispatch_later(self, gate: trio.Event, connection: FakeConnection, message: dict[str, Any]) -> None:
        method = message["method"]
        await gate.wait()
        self.gates.pop(method, None)
        stream = message["params"]["sessionId"] if method in SESSION_ROUTED else ""
        self._execute(connection, method, message["params"], {"jsonrpc": "2.0", "id": message["id"]}, stream)

    def _execute(
        self, connection: FakeConnection, method: str, params: dict[str, Any], answer: dict[str, Any], stream: str
    ) -> None:
        session_id = params.get("sessionId", "")
        restoring = method in ("session/load", "session/resume", "_moorline/session/attach")
        if method == "session/new":
            session = self.new_session(params.get("_meta", {}).get("qwen-code/sessionId"))
            connection.owned.add(session.id)
            connection.reply("", answer | {"result": {"sessionId": session.id}})
        elif method == "session/list":
            connection.reply("", answer | {"result": self._list(params.get("workspaceCwd", ""))})
        elif restoring and session_id in self.sessions:
            connection.owned.add(session_id)
            connection.reply("", answer | {"result": {}})
        elif session_id not in connection.owned or session_id not in self.sessions:
            error = {"code": -32602, "message": f"Session {session_id} is not owned by this connection"}
            connection.reply("", answer | {"error": error})
        elif method == "session/prompt":
            turn = Turn(self.sessions[session_id], self.new_id("prompt"), params["prompt"][0].get("text", ""))
            turn.session.turns.append(turn)
            self.nursery.start_soon(self._run_turn, turn, lambda r: connection.reply(stream, answer | r))
        elif method == "session/permission":
            self.sessions[session_id].votes.append((params["requestId"], params["outcome"]))
            connection.reply("", answer | {"result": {}})
        elif method == "session/close":
            session = self.sessions.pop(session_id)
            session.publish("session_closed", {"sessionId": session.id, "reason": "client_close"})
            session.closed = True
            session.wake()
            connection.owned.discard(session_id)
            connection.reply("", answer | {"result": {}})
        elif method == "_qwen/session/heartbeat":
            connection.reply("", answer | {"result": {"sessionId": session_id, "clientId": "c", "lastSeenAt": 7}})
        elif method == "_qwen/session/detach":
            connection.owned.discard(session_id)
            connection.reply("", answer | {"result": {"ok": True}})
        elif method in SESSION_ROUTED:
            connection.reply(stream, answer | {"result": {}})
        else:
            error = {"code": -32601, "message": f"Unknown method: {method}"}
            connection.reply("", answer | {"error": error})

    def _vote_by_response(self, connection: FakeConnection, message: dict[str, Any]) -> None:
        self.log.append("rpc response")
        outbound = str(message["id"])
        for request_id, known in connection.permission_ids.items():
            if known == outbound:
                for session in self.sessions.values():
                    if any(e["data"].get("requestId") == request_id for e in session.ring):
                        session.votes.append((request_id, message["result"]["outcome"]))

    async def _acp_stream(self, exchange: Exchange, connection: FakeConnection) -> None:
        session_id = exchange.headers.get("acp-session-id", "")
        session = self.sessions.get(session_id)
        if session_id and (session is None or session_id not in connection.owned):
            await exchange.answer(403, {"error": "Session not owned by this connection"})
            return
        generation = connection.generations[session_id] = connection.generations.get(session_id, 0) + 1
        self.log.append(f"stream {session_id or 'connection'}")
        await exchange.open_sse({"X-Qwen-Event-Epoch": session.epoch} if session is not None else {})
        self.streams += 1
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    await exchange.wait_gone()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                nursery.start_soon(self._send_replies, exchange, connection, session_id, generation)
                if session is not None:
                    await self._send_events(exchange, connection, session)
                    nursery.cancel_scope.cancel()
        except* (Cut, trio.BrokenResourceError):
            raise Cut from None
        finally:
            self.streams -= 1

    async def _send_replies(self, exchange: Exchange, connection: FakeConnection, stream: str, generation: int) -> None:
        while connection.generations[stream] == generation:
            changed = connection.changed
            waiting = connection.replies.get(stream, [])
            if waiting:
                await exchange.send(b"data: " + waiting[0] + b"\n\n")
                del waiting[0]
                continue
            await changed.wait()

    async def _send_events(self, exchange: Exchange, connection: FakeConnection, session: FakeSession) -> None:
        sent = 0
        async with contextlib.aclosing(follow(session, exchange.headers)) as events:
            async for event in events:
                data = acp_bytes(event, session, connection)
                if self.cut_after is not None and sent >= self.cut_after:
                    await exchange.send(data[: self.cut_bytes] or b":")
                    raise Cut
                await exchange.send(data)
                sent += event.get("id") is not None

    # /acp over a WebSocket.

    async def _websocket(self, exchange: Exchange) -> None:
        async with trio.open_nursery() as nursery:
            stream = _Replayed(exchange.received, exchange.stream)
            request = await trio_websocket.wrap_server_stream(nursery, stream)  # type: ignore[arg-type]
            socket = await request.accept()
            self.sockets.append(socket)
            connection = FakeConnection(self.new_id("socket"))
            with contextlib.suppress(trio_websocket.ConnectionClosed):
                await self._serve_socket(socket, connection, nursery)
            nursery.cancel_scope.cancel()
        for session_id in connection.owned:
            if self.moorline is None and session_id in self.sessions:
                for turn in list(self.sessions[session_id].turns):
                    turn.cancelled.set()

    async def _serve_socket(
        self, socket: trio_websocket.WebSocketConnection, connection: FakeConnection, nursery: trio.Nursery
    ) -> None:
        followed: dict[str, trio.CancelScope] = {}
        nursery.start_soon(self._send_socket_replies, socket, connection, followed, nursery)
        while True:
            message = json.loads(await socket.get_message())
            if message.get("method") == "initialize":
                self.log.append("rpc initialize")
                reply = {"jsonrpc": "2.0", "id": message["id"], "result": self._offer(connection)}
                await socket.send_message(json.dumps(reply))
                continue
            cursors = message.get("params", {})
            if message.get("method") == "_moorline/session/attach":
                connection.replies.setdefault("attach", []).append(json.dumps(cursors).encode())
            self._dispatch(connection, message)

    async def _send_socket_replies(
        self,
        socket: trio_websocket.WebSocketConnection,
        connection: FakeConnection,
        followed: dict[str, trio.CancelScope],
        nursery: trio.Nursery,
    ) -> None:
        with contextlib.suppress(trio_websocket.ConnectionClosed):
            while True:
                changed = connection.changed
                for stream, waiting in list(connection.replies.items()):
                    while waiting and stream != "attach":
                        await socket.send_message(waiting.pop(0).decode())
                attaches = connection.replies.pop("attach", [])
                for raw in attaches:
                    params = json.loads(raw)
                    if params["sessionId"] in connection.owned:
                        if params["sessionId"] in followed:
                            followed.pop(params["sessionId"]).cancel()
                        headers = {"last-event-id": str(params["lastEventId"])}
                        if "epoch" in params:
                            headers["x-qwen-event-epoch"] = params["epoch"]
                        followed[params["sessionId"]] = trio.CancelScope()
                        nursery.start_soon(
                            self._follow_on_socket, socket, connection, params["sessionId"], headers, followed
                        )
                for session_id in connection.owned - set(followed):
                    followed[session_id] = trio.CancelScope()
                    nursery.start_soon(self._follow_on_socket, socket, connection, session_id, {}, followed)
                await changed.wait()

    async def _follow_on_socket(
        self,
        socket: trio_websocket.WebSocketConnection,
        connection: FakeConnection,
        session_id: str,
        headers: dict[str, str],
        followed: dict[str, trio.CancelScope],
    ) -> None:
        session = self.sessions[session_id]
        with followed[session_id], contextlib.suppress(trio_websocket.ConnectionClosed):
            async with contextlib.aclosing(follow(session, headers)) as events:
                async for event in events:
                    message = acp_message(event, session, connection)
                    if event.get("id") is None:
                        message["params"]["sessionId"] = session_id
                    await socket.send_message(json.dumps(message))

    def _describe(self, session: FakeSession) -> dict[str, Any]:
        client_id = self.new_id("client")
        if self.client_ids is not None:
            self.client_ids.add(client_id)
        return {
            "sessionId": session.id,
            "workspaceCwd": "/work",
            "attached": True,
            "clientId": client_id,
            "eventEpoch": session.epoch,
        }

    def _list(self, cwd: str) -> dict[str, Any]:
        return {"sessions": [{"sessionId": s, "workspaceCwd": cwd} for s in self.sessions], "nextCursor": "next"}


async def follow(session: FakeSession, headers: dict[str, str]) -> AsyncGenerator[dict[str, Any], None]:
    """What a subscriber gets: resync notice, replay, ``replay_complete``, then live events until the session closes."""
    cursor = int(headers["last-event-id"]) if "last-event-id" in headers else None
    epoch = session.epoch
    if cursor is None:
        cursor = session.head
    else:
        resync = _resync(session, cursor, headers.get("x-qwen-event-epoch"))
        if resync is not None:
            yield {"type": "state_resync_required", "data": resync}
            if resync["reason"] == "epoch_reset":
                cursor = 0
        replayed = session.after(cursor)
        for event in replayed:
            yield event
            cursor = event["id"]
        yield {"type": "replay_complete", "data": {"replayedCount": len(replayed)}}
    while not session.closed or session.after(cursor):
        changed = session.changed
        if session.epoch != epoch:
            raise Cut
        for event in session.after(cursor):
            yield event
            cursor = event["id"]
        if not session.closed and not session.after(cursor):
            await changed.wait()


def _resync(session: FakeSession, cursor: int, epoch: str | None) -> dict[str, Any] | None:
    earliest = session.first_id if session.ring else session.head + 1
    if epoch is not None and epoch != session.epoch:
        return {
            "reason": "epoch_reset",
            "detail": "epoch_mismatch",
            "lastDeliveredId": cursor,
            "earliestAvailableId": earliest,
        }
    if cursor > session.head:
        return {"reason": "epoch_reset", "lastDeliveredId": cursor, "earliestAvailableId": earliest}
    if session.ring and session.first_id > cursor + 1:
        return {"reason": "ring_evicted", "lastDeliveredId": cursor, "earliestAvailableId": earliest}
    return None


def envelope(event: dict[str, Any]) -> dict[str, Any]:
    return {"v": 1, "_meta": {"serverTimestamp": 1}} | {k: v for k, v in event.items() if v is not None}


def rest_bytes(event: dict[str, Any]) -> bytes:
    lines = f"id: {event['id']}\n" if event.get("id") is not None else ""
    return f"{lines}event: {event['type']}\ndata: {json.dumps(envelope(event))}\n\n".encode()


def acp_message(event: dict[str, Any], session: FakeSession, connection: FakeConnection) -> dict[str, Any]:
    if event["type"] == "session_update":
        return {"jsonrpc": "2.0", "method": "session/update", "params": event["data"]}
    if event["type"] == "permission_request":
        request_id = event["data"]["requestId"]
        answered = any(known == request_id for known, _ in session.votes)
        if answered or request_id not in connection.permission_ids:
            connection.permission_ids[request_id] = (
                f"_qwen_perm_{connection.id}_{len(connection.permission_ids)}_{len(session.votes)}"
            )
        params = {k: v for k, v in event["data"].items() if k != "requestId"}
        meta = {"requestId": request_id, "qwen": {"requestId": request_id}}
        return {
            "jsonrpc": "2.0",
            "id": connection.permission_ids[request_id],
            "method": "session/request_permission",
            "params": params | {"_meta": meta},
        }
    return {"jsonrpc": "2.0", "method": "_qwen/notify", "params": {"kind": event["type"], "data": event["data"]}}


def acp_bytes(event: dict[str, Any], session: FakeSession, connection: FakeConnection) -> bytes:
    lines = f"id: {event['id']}\n" if event.get("id") is not None else ""
    return f"{lines}data: {json.dumps(acp_message(event, session, connection))}\n\n".encode()


class _Replayed(trio.abc.Stream):
    """The stream with the bytes put back that the request parser has taken."""

    def __init__(self, first: bytes, stream: trio.abc.Stream) -> None:
        self._first = first
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextlib.asynccontextmanager
async def fake_daemon(agent: Agent = echo) -> AsyncIterator[FakeDaemon]:
    """A daemon in memory for one test."""
    async with trio.open_nursery() as nursery:
        yield FakeDaemon(nursery, agent)
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def client_of(daemon: FakeDaemon, transport: str = "rest", **options: Any) -> AsyncIterator[DaemonClient]:
    """A client of the daemon, on its in-memory network and with a fixed seed."""
    options.setdefault("rng", random.Random(7))
    async with open_daemon_client(
        "http://daemon", transport=transport, connect=daemon.network.connect, **options
    ) as client:
        yield client


ALL_TRANSPORTS = ("rest", "acp-http", "acp-ws")


async def eventually(condition: Callable[[], bool], within: float = 60.0) -> None:
    """Return once the condition holds, checked whenever virtual time moves; fail after ``within`` seconds."""
    with trio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - what is waited for is inside the code under test
            await trio.sleep(0.01)
